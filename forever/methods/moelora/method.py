"""MoELoRA: a mixture of LoRA experts (Luo et al. 2024), as a continual-learning baseline.

Each layer has N adapters and a router that sends every token through k of them. Nothing is frozen
or kept between tasks; a balance term spreads the tokens, a contrastive term makes experts unlike
each other:

    L = CE + lb * mean_m L_balance,m + lc * mean_m L_contrast,m

No official code was found: the contrastive form is that of the paper's abstract and of a survey. N
= number of tasks, as the MIGU paper (which shares an author) describes its MoELoRA row;
`contrast=0` is the plain mixture that it may have run. Both terms are means over the tokens of one
micro-batch on one rank (f P is not linear): here, and here only, the number of workers and
`micro_batch` change the result a little.
"""

from typing import cast

import torch
from torch import Tensor, nn

from forever.config.methods.baselines import MoeLoraConfig
from forever.config.run import RunConfig
from forever.methods.base import Card, Method
from forever.methods.moelora.router import TopKRouter
from forever.models import lora
from forever.seeding import derive
from forever.training.learner import Learner
from forever.training.steps import Forward


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

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        c = self.config
        experts = c.experts_for(tasks)
        lora.adapt(model, config.model, config.seed, experts)
        tokens = c.contrast_tokens if c.contrast else 0
        for name, bank in lora.banks(model):
            stream = torch.Generator().manual_seed(derive(config.seed, "router", name))
            width = bank.base.in_features
            router = TopKRouter(
                width, experts, c.top_k, c.renormalise, tokens, c.temperature, stream
            )
            bank.router = router.to(bank.A.device)

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        routers = [
            cast("TopKRouter", bank.router) for _, bank in lora.banks(learner.backbone.model)
        ]
        added = sum(
            self.config.balance * r.balance + self.config.contrast * r.contrast for r in routers
        )
        return forward.cross_entropy + forward.share * added / max(len(routers), 1)
