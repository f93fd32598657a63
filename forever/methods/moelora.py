"""MoELoRA: a mixture of LoRA experts (Luo et al. 2024), as a continual-learning baseline.

Each layer has N adapters and a router that sends every token through k of them. Nothing is frozen or kept between
tasks; a balance term spreads the tokens, a contrastive term makes experts unlike each other:

    L = CE + lb * mean_m L_balance,m + lc * mean_m L_contrast,m

No official code was found: the contrastive form is that of the paper's abstract and of a survey. N = number of tasks,
as the MIGU paper (which shares an author) describes its MoELoRA row; `contrast=0` is the plain mixture that it may have
run. Both terms are means over the tokens of one micro-batch on one rank (f P is not linear): here, and here only, the
number of workers and `micro_batch` change the result a little.
"""

from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field

from forever.data.benchmarks import named_tasks
from forever.errors import InputError
from forever.learner import Learner
from forever.methods.base import Card, Method, MethodConfig, needs_lora
from forever.seeding import derive
from forever.steps import Forward

if TYPE_CHECKING:
    from torch import Tensor, nn

    from forever.config import RunConfig
    from forever.models.router import TopKRouter


class MoeLoraConfig(MethodConfig):
    """No value here is from the authors' code, which is not public."""

    name: Literal["moelora"] = "moelora"
    experts: Annotated[int, Field(ge=1)] | None = None
    """N; None is the number of tasks, which must then be known before the first (MIGU paper). 8 in CoIN."""
    top_k: Annotated[int, Field(ge=1)] = 2
    """k: 2 is the common choice."""
    renormalise: bool = True
    """The k gates sum to one."""
    balance: Annotated[float, Field(ge=0)] = 0.01
    """lb: the convention of Switch Transformers."""
    contrast: Annotated[float, Field(ge=0)] = 0.01
    """lc: ours; 0 is the plain mixture of experts."""
    temperature: Annotated[float, Field(gt=0)] = 0.1
    """tau of the contrastive term: ours."""
    contrast_tokens: Annotated[int, Field(ge=1)] = 64
    """Tokens of a micro-batch whose outputs are compared, evenly spread: ours, it bounds the cost."""

    def check(self, run: "RunConfig") -> None:
        needs_lora(run)
        experts = self.experts_for(named_tasks(run.data) or 2)  # an order that does not exist is refused later
        if self.top_k > experts:
            raise InputError(f"method moelora: top_k={self.top_k} of {experts} experts; lower method.top_k")
        if self.top_k == 1 and self.renormalise and experts > 1:
            raise InputError(
                "method moelora: with top_k=1 and renormalise the gate is always 1 and the router learns nothing; "
                "set method.renormalise=false or method.top_k=2"
            )

    def experts_for(self, tasks: int) -> int:
        """N for a run of so many tasks; if they are fewer than the experts of a token, each token sees all."""
        return self.experts or max(tasks, self.top_k)


class MoeLora(Method[MoeLoraConfig]):
    """Token-level routing over N experts."""

    card = Card(
        title="MoELoRA",
        paper="Luo et al. 2024",
        memory="none",
        extra="a branch of rank N r, a router a layer, similarities of 64 tokens",
        uncertain="N, k, lb, lc, tau: no code, full paper not read",
    )
    mixed = True

    def build(self, model: "nn.Module", config: "RunConfig", tasks: int) -> None:
        import torch

        from forever.models import lora
        from forever.models.router import TopKRouter

        c, part = self.config, config.model
        experts = c.experts_for(tasks)
        lora.adapt(model, part.targets, part.rank, part.alpha, part.dropout, config.seed, experts)
        tokens = c.contrast_tokens if c.contrast else 0
        for name, bank in lora.banks(model):
            stream = torch.Generator().manual_seed(derive(config.seed, "router", name))
            width = bank.base.in_features
            router = TopKRouter(width, experts, c.top_k, c.renormalise, tokens, c.temperature, stream)
            bank.router = router.to(bank.A.device)

    def loss(self, learner: Learner, forward: Forward) -> "Tensor":
        from forever.models import lora

        routers = [cast("TopKRouter", bank.router) for _, bank in lora.banks(learner.backbone.model)]
        added = sum(self.config.balance * r.balance + self.config.contrast * r.contrast for r in routers)
        return forward.cross_entropy + forward.share * added / max(len(routers), 1)
