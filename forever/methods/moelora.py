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

B batch, T tokens, E experts, D input width, O output width, n real tokens, m compared outputs.
"""

from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forever.config.methods.ours import MoeLoraConfig
from forever.config.run import RunConfig
from forever.models import lora
from forever.models.lora import LoraBank
from forever.seeding import derive
from forever.training.learner import Learner
from forever.training.method import Card, Method
from forever.training.steps import Forward

# z / sqrt(||z||^2 + this): plain normalisation has huge gradients while B is near zero.
_SMOOTH = 1e-4


class TopKRouter(nn.Module):
    """g_e is the softmax of R x at its k largest entries, and 0 elsewhere.

    R [E, D] is fp32 and sees x without dropout. `balance` and `contrast` are the terms of the last
    pass in training.
    """

    def __init__(
        self, config: MoeLoraConfig, experts: int, width: int, stream: torch.Generator
    ) -> None:
        super().__init__()
        self.config = config
        self.R = nn.Parameter(torch.empty(experts, width).normal_(0, 0.02, generator=stream))
        self.forget()

    def forget(self) -> None:
        """Let go of the last pass, which the terms keep alive."""
        self.balance = self.contrast = torch.zeros(())

    def forward(self, bank: LoraBank, x: Tensor) -> Tensor:
        """Return the gate [B, T, E]."""
        c = self.config
        logits = F.linear(x, self.R)
        p = logits.softmax(-1)
        top = logits.topk(c.top_k, dim=-1)
        kept = top.values.softmax(-1) if c.renormalise else p.gather(-1, top.indices)
        gate = torch.zeros_like(p).scatter(-1, top.indices, kept)
        if self.training and bank.places is not None:
            self.balance = balance_loss(_at(p, bank.places), _at(top.indices, bank.places))
            if c.contrast:
                # At most N tokens, evenly spread.
                real = len(bank.places)
                compared = min(real, c.contrast_tokens)
                some = bank.places[torch.arange(compared, device=x.device) * real // compared]
                z, experts = expert_outputs(bank, _at(x, some), _at(top.indices, some))
                self.contrast = contrastive_loss(z, experts, c.temperature)
        return gate


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Take [n, W] of values [B, T, W]."""
    return values.flatten(0, 1).index_select(0, places)


def balance_loss(p: Tensor, chosen: Tensor) -> Tensor:
    """Return L_b = E sum_e f_e P_e for p [n, E] and the choices [n, k] (Fedus et al. 2022, eq. 4).

    f_e is expert e's share of the choices, and P_e is its mean probability. L_b is 1 if all is
    balanced, and E if one expert takes all.
    """
    share = F.one_hot(chosen, p.shape[-1]).float().mean((0, 1))
    return p.shape[-1] * (share * p.mean(0)).sum()


def expert_outputs(bank: LoraBank, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return z = B_e A_e x of each token's chosen experts, normalised [m, O], and each e [m]."""
    h = torch.einsum("erd,nd->ner", bank.A, x)
    z = torch.einsum("eor,ner->neo", bank.B, h)
    z = z.gather(1, chosen[..., None].expand(-1, -1, z.shape[-1])).flatten(0, 1)
    return z / (z.square().sum(-1, keepdim=True) + _SMOOTH).sqrt(), chosen.flatten()


def contrastive_loss(z: Tensor, experts: Tensor, tau: float) -> Tensor:
    """Return L_c, an InfoNCE loss: outputs of the same expert attract, those of others repel.

    L_c is the mean of -log(exp(z.p / tau) / sum_c exp(z.c / tau)) over the vectors z [m, O] that
    have a positive p and over those positives; the candidates c are all other vectors. L_c is 0 if
    no expert [m] occurs twice.
    """
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similar = (z @ z.T / tau).masked_fill(itself, float("-inf"))
    log_p = similar.log_softmax(-1).masked_fill(itself, 0.0)
    positive = (experts[:, None] == experts[None]) & ~itself
    count = positive.sum(-1)
    means = (log_p * positive).sum(-1) / count.clamp_min(1)  # 0 where there is no positive
    return -means.sum() / (count > 0).sum().clamp_min(1)


class MoeLora(Method[MoeLoraConfig]):
    """Routing of each token over N experts."""

    card = Card(
        title="MoELoRA",
        paper="Luo et al. 2024",
        memory="nothing",
        extra="Each layer has a branch of rank N r, a router and the similarities of 64 tokens.",
        uncertain="N, k, lb, lc and tau: no code is published, we did not read the full paper.",
    )

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        experts = self.config.experts_for(tasks)
        lora.adapt(model, config.model, config.seed, experts)
        for name, bank in lora.banks(model):
            stream = torch.Generator().manual_seed(derive(config.seed, "router", name))
            router = TopKRouter(self.config, experts, bank.A.shape[-1], stream)
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
