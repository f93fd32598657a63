"""A query from a prompt's words attends over the keys of all tasks: whose adapter is needed?

B prompts, D model width, H bottleneck, t tasks so far.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forever.seeding import derive


class Selector(nn.Module):
    """q = LayerNorm(SiLU(W_up W_down u)) of D = `width` and H = `hidden`, and the current key."""

    def __init__(self, width: int, hidden: int, seed: int) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(derive(seed, "query"))
        self.down = _uniform((hidden, width), 1 / math.sqrt(width), stream)
        self.up = _uniform((width, hidden), 1 / math.sqrt(hidden), stream)
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.key = nn.Parameter(torch.zeros(1, width))
        self.draw_key(seed, 0)
        self._pooled: dict[tuple[int, ...], Tensor] = {}

    @torch.no_grad()
    def draw_key(self, seed: int, stage: int) -> None:
        """Draw a new key, uniform in [-1, 1], for the task of a stage."""
        stream = torch.Generator().manual_seed(derive(seed, "key", stage))
        self.key.copy_(torch.empty(self.key.shape).uniform_(-1, 1, generator=stream))

    def all_keys(self, frozen: Tensor | None) -> Tensor:
        """Return the keys of the finished tasks and of the current one, [t, D], oldest first."""
        return self.key.clone() if frozen is None else torch.cat([frozen, self.key])

    def pooled(self, embedding: nn.Embedding, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Return u [B, D], the largest value of each coordinate over a prompt's word embeddings.

        The embedding is frozen, so each prompt is pooled once and kept off the accelerator.
        """
        weight = embedding.weight.detach()
        for prompt in prompts:
            if prompt not in self._pooled:
                words = weight[torch.tensor(prompt, device=weight.device)]
                self._pooled[prompt] = words.float().amax(0).cpu()
        return torch.stack([self._pooled[prompt] for prompt in prompts]).to(weight.device)

    def log_attention(self, words: Tensor, frozen: Tensor | None) -> Tensor:
        """Return log a = log softmax(k_i . q / sqrt(D)), [B, t], of u = `words` over all keys."""
        hidden = F.silu(words @ self.down.T @ self.up.T)
        query = F.layer_norm(hidden, self.scale.shape, self.scale, self.shift)
        return (query @ self.all_keys(frozen).T / math.sqrt(words.shape[1])).log_softmax(-1)


def _uniform(shape: tuple[int, int], bound: float, stream: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=stream))


def divergence(target: Tensor, log_attention: Tensor) -> Tensor:
    """Return the mean over prompts of KL([target, 0, ..., 0] || a), with 0 log 0 = 0.

    The target has at most t weights, and log a is [B, t].
    """
    log_a = log_attention[:, : len(target)]
    return (torch.xlogy(target, target) - target * log_a).sum(-1).mean()
