"""A learned router, and two terms that keep the experts apart.

The router says which of a layer's adapters each token passes through.

B batch, T tokens, E experts, D input width, O output width, n real tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forever.models.lora import LoraBank

# Z / sqrt(||z||^2 + this): plain normalisation has huge gradients while B is near zero.
_SMOOTH = 1e-4


class TopKRouter(nn.Module):
    """g_e is the softmax of R x at its k largest entries, and 0 elsewhere.

    The router is fp32 and sees x without dropout.

    Args:
        width: D.
        experts: E.
        k: how many experts a token passes through.
        renormalise: whether the k gates sum to one; else they are those of the whole softmax.
        tokens: how many tokens the contrastive term compares at most; 0 leaves the term out.
        tau: the temperature of the contrastive term.
        stream: the random stream of the first weights.

    Attributes:
        balance: the term of the last pass in training, see `balance_loss`.
        contrast: the same, see `contrastive_loss`.
    """

    def __init__(
        self,
        width: int,
        experts: int,
        k: int,
        renormalise: bool,
        tokens: int,
        tau: float,
        stream: torch.Generator,
    ) -> None:
        super().__init__()
        self.R = nn.Parameter(torch.empty(experts, width).normal_(0, 0.02, generator=stream))
        self.k, self.renormalise, self.tokens, self.tau = k, renormalise, tokens, tau
        self.balance = self.contrast = torch.zeros(())

    def forward(self, bank: LoraBank, x: Tensor) -> Tensor:
        """Return the gate [B, T, E]."""
        logits = F.linear(x, self.R)
        p = logits.softmax(-1)
        top = logits.topk(self.k, dim=-1)
        kept = top.values.softmax(-1) if self.renormalise else p.gather(-1, top.indices)
        gate = torch.zeros_like(p).scatter(-1, top.indices, kept)
        if self.training and bank.places is not None:
            self.balance = balance_loss(_at(p, bank.places), _at(top.indices, bank.places))
            if self.tokens:
                chosen = bank.places[evenly(len(bank.places), self.tokens, x.device)]
                z, experts = expert_outputs(bank, _at(x, chosen), _at(top.indices, chosen))
                self.contrast = contrastive_loss(z, experts, self.tau)
        return gate


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Take [n, W] of values [B, T, W]."""
    return values.flatten(0, 1).index_select(0, places)


def balance_loss(p: Tensor, chosen: Tensor) -> Tensor:
    """Return L_b = E sum_e f_e P_e over n tokens (Fedus et al. 2022, eq. 4, for k choices).

    f_e is expert e's share of the choices, and P_e is its mean probability. L_b is 1 if all is
    balanced, and E if one expert takes all.

    Args:
        p: the probabilities, [n, E].
        chosen: the experts of each token, [n, k].
    """
    share = F.one_hot(chosen, p.shape[-1]).float().mean((0, 1))
    return p.shape[-1] * (share * p.mean(0)).sum()


def evenly(count: int, limit: int, device: torch.device) -> Tensor:
    """Choose at most `limit` of the indices 0..count-1, evenly spread."""
    chosen = min(count, limit)
    return torch.arange(chosen, device=device) * count // max(chosen, 1)


def expert_outputs(bank: LoraBank, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Compute z = B_e A_e x of each token's chosen experts, normalised.

    Returns:
        z [m, O], and the expert that each comes from, [m].
    """
    h = torch.einsum("erd,nd->ner", bank.A, x)
    z = torch.einsum("eor,ner->neo", bank.B, h)
    z = z.gather(1, chosen[..., None].expand(-1, -1, z.shape[-1])).flatten(0, 1)
    return z / (z.square().sum(-1, keepdim=True) + _SMOOTH).sqrt(), chosen.flatten()


def contrastive_loss(z: Tensor, experts: Tensor, tau: float) -> Tensor:
    """Return L_c, an InfoNCE loss: outputs of the same expert attract, those of others repel.

    L_c is the mean of -log(exp(z.p / tau) / sum_c exp(z.c / tau)) over the vectors z that have a
    positive p and over those positives; the candidates c are all other vectors. L_c is 0 if no
    expert occurs twice.

    Args:
        z: vectors of about unit length, [m, O].
        experts: the expert of each vector, [m].
        tau: the temperature.
    """
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similar = (z @ z.T / tau).masked_fill(itself, float("-inf"))
    log_p = similar.log_softmax(-1).masked_fill(itself, 0.0)
    positive = (experts[:, None] == experts[None]) & ~itself
    count = positive.sum(-1)
    means = (log_p * positive).sum(-1) / count.clamp_min(1)  # 0 where there is no positive
    return -means.sum() / (count > 0).sum().clamp_min(1)
