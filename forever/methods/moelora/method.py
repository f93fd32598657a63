"""MoELoRA: a mixture of LoRA experts (Luo et al. 2024), as a continual-learning baseline.

Each layer has N adapters and a router that sends every token through k of them. Nothing is frozen
or kept between tasks. A balance term spreads the tokens, and a contrastive term makes the experts
unlike each other:

    L = CE + lb * mean_m L_balance,m + lc * mean_m L_contrast,m

Followed, because no official code was found:
- the contrastive term as the paper's abstract and a survey describe it; `contrast=0` is the plain
  mixture that others may have run;
- N is the number of tasks, as the MIGU paper, which shares an author, says of its MoELoRA.

Both terms are means over the tokens of one micro-batch on one rank (f P is not linear). So here,
and here only, the number of workers and `micro_batch` change the result a little.
"""

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from forever.config.methods.baselines import MoeLoraConfig
from forever.config.run import RunConfig
from forever.methods.moelora.router import TopKRouter
from forever.models import lora
from forever.seeding import derive
from forever.training.learner import Learner
from forever.training.method import Card, Method
from forever.training.past import Past
from forever.training.steps import Forward


class MoeLora(Method[MoeLoraConfig]):
    """Routing of each token over N experts."""

    card = Card(
        title="MoELoRA",
        paper="Luo et al. 2024",
        memory="nothing",
        extra="Each layer has a branch of rank N r, a router and the similarities of 64 tokens.",
        uncertain="N, k, lb, lc and tau: there is no code, and we did not read the full paper.",
    )
    private = True

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        experts = self.config.experts_for(tasks)
        lora.adapt(model, config.model, config.seed, experts)
        for name, bank in lora.banks(model):
            stream = torch.Generator().manual_seed(derive(config.seed, "router", name))
            router = TopKRouter(self.config, experts, bank.base.in_features, stream)
            bank.router = router.to(bank.A.device)

    def begin_passes(self, learner: Learner) -> None:
        for _, bank in lora.banks(learner.backbone.model):
            cast(TopKRouter, bank.router).forget()

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        added = forward.cross_entropy.new_zeros(())
        banks = list(lora.banks(learner.backbone.model))
        for _, bank in banks:
            router = cast(TopKRouter, bank.router)
            balance = self.config.balance * router.balance
            added = added + (balance + self.config.contrast * router.contrast)
        return forward.cross_entropy + forward.share * added / len(banks)

    def save(self, learner: Learner, folder: Path) -> Path:
        model, name = learner.backbone.model, learner.config.model.name
        lora.save_mixture(model, folder / "adapter", name, self.tensors)
        return folder / "adapter"

    def can_follow(self, past: Past, tasks: int) -> str | None:
        before, experts = past.config, self.config.experts_for(tasks)
        there = before.experts_for(past.tasks) if isinstance(before, MoeLoraConfig) else experts
        if there != experts:
            return (
                f"moelora has {there} experts there, {experts} here; a fork keeps them, with "
                f"method.experts={there}"
            )
        return super().can_follow(past, tasks)
