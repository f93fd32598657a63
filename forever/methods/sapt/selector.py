"""Which task's adapter a prompt needs (SAPT).

A query from the prompt's words attends over the learned keys of all tasks.

B prompts, D model width, H bottleneck, t tasks so far.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forever.seeding import derive


class Selector(nn.Module):
    """q = LayerNorm(SiLU(W_up W_down u)), and the key of the current task.

    Args:
        width: D.
        hidden: H, 100 in the authors' code.
        seed: the run's seed.
    """

    def __init__(self, width: int, hidden: int, seed: int) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(derive(seed, "query"))
        bound = 1 / math.sqrt(width)
        down = torch.empty(hidden, width).uniform_(-bound, bound, generator=stream)
        bound = 1 / math.sqrt(hidden)
        up = torch.empty(width, hidden).uniform_(-bound, bound, generator=stream)
        self.down = nn.Parameter(down)
        self.up = nn.Parameter(up)
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
        """Return u [B, D] of `prompts`, see `pool`.

        The embedding is frozen, so each prompt is pooled once and kept off the accelerator.
        """
        for prompt in prompts:
            if prompt not in self._pooled:
                self._pooled[prompt] = pool(embedding, prompt).cpu()
        return torch.stack([self._pooled[prompt] for prompt in prompts]).to(embedding.weight.device)

    def log_attention(self, words: Tensor, frozen: Tensor | None) -> Tensor:
        """Return log a = log softmax(k_i . q / sqrt(D)), [B, t], over all keys.

        Args:
            words: u [B, D], see `pool`.
            frozen: the keys of finished tasks, [t-1, D].
        """
        hidden = F.silu(words @ self.down.T @ self.up.T)
        query = F.layer_norm(hidden, self.scale.shape, self.scale, self.shift)
        return (query @ self.all_keys(frozen).T / math.sqrt(words.shape[1])).log_softmax(-1)


def pool(embedding: nn.Embedding, prompt: Sequence[int]) -> Tensor:
    """Return u [D], the largest value of each coordinate over a prompt's word embeddings.

    A prompt has no pads here.
    """
    weight = embedding.weight.detach()
    return weight[torch.tensor(prompt, device=weight.device)].float().amax(0)


def divergence(target: Tensor, log_attention: Tensor) -> Tensor:
    """Return the mean over prompts of KL([target, 0, ..., 0] || a), with 0 log 0 = 0.

    Args:
        target: at most t weights.
        log_attention: log a, [B, t].
    """
    log_a = log_attention[:, : len(target)]
    return (torch.xlogy(target, target) - target * log_a).sum(-1).mean()
