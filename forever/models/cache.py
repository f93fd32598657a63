"""Keys and values of prompts that are being answered, so that a step of decoding is cheap.

What many prompts begin with, such as the instruction of their task, is there once: the trunk. What
else a prompt has, and its answer, is a row of its own; an answer that ends makes room for another.

N rows of R places; B answers, each with at most L new tokens, T in all; S tokens of the trunk that
they see, and W places of their rows; H heads of keys, each for G heads of queries, of width D.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Cache:
    """The keys and values of each layer, by its number.

    Attributes:
        trunk: of [H, S, D] each.
        rows: of [N, H, R, D] each; a layer makes its own when it is called for the first time.
    """

    count: int  # N
    width: int  # R
    trunk: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def of(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's rows, for keys and values like these [H, B, L, D], whose types may differ."""
        if layer not in self.rows:
            rows: list[Tensor] = []
            trunk: list[Tensor] = []
            for states in (key, value):  # values may be narrower than keys
                heads, depth = states.shape[0], states.shape[-1]
                rows.append(states.new_zeros(self.count, heads, self.width, depth))
                trunk.append(states.new_zeros(heads, 0, depth))
            self.rows[layer] = rows[0], rows[1]
            self.trunk.setdefault(layer, (trunk[0], trunk[1]))
        return self.rows[layer]

    def move(self, origins: Sequence[int], targets: Sequence[int]) -> None:
        """Put rows in the place of others."""
        for keys, values in self.rows.values():
            keys[targets] = keys[origins]
            values[targets] = values[origins]


@dataclass(frozen=True)
class Turn:
    """The new tokens of neighbouring rows, for one pass.

    Attributes:
        trunk: the S tokens of it that one of the rows sees.
        first: the number of the first of the B rows.
        rows: [B, L], the place in the sequence of each new token of each answer.
        back: [T], where among all B L each token of the sequence is.
        places: [B, L], where in its row each token belongs; those beyond its end are overwritten
            before they are seen.
        mask: [B, 1, 1, L, S + W], 0 for what a token sees in the trunk and in its row, else -inf.
    """

    cache: Cache
    trunk: slice
    first: int
    rows: Tensor
    back: Tensor
    places: Tensor
    mask: Tensor

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """Keep the new keys and values, and attend to all that is to be seen.

        Args:
            query, key, value: [1, G H, T, D] and [1, H, T, D].

        Returns:
            [1, T, G H, D].
        """
        q, k, v = (self._by_row(states) for states in (query * scaling, key, value))
        count = self.rows.shape[0]
        used = slice(self.first, self.first + count)
        numbers = torch.arange(self.first, self.first + count, device=q.device)[:, None]
        keys, values = self.cache.of(layer, k, v)
        keys[numbers, :, self.places] = k.permute(1, 2, 0, 3)
        values[numbers, :, self.places] = v.permute(1, 2, 0, 3)

        trunk_keys, trunk_values = (states[:, self.trunk] for states in self.cache.trunk[layer])
        trunk = trunk_keys.shape[1]
        width = self.mask.shape[-1] - trunk
        keys, values = keys[used, :, :width], values[used, :, :width]
        q = q.unflatten(0, (len(trunk_keys), -1))  # [H, G, B, L, D]
        shape = q.shape[1:-1]
        of_trunk = (q.flatten(1, 3) @ trunk_keys.mT).unflatten(1, shape).permute(2, 0, 1, 3, 4)
        q = q.permute(2, 0, 1, 3, 4)  # [B, H, G, L, D]
        of_row = (q.flatten(2, 3) @ keys.mT).unflatten(2, q.shape[2:4])
        scores = torch.cat([of_trunk, of_row], dim=-1) + self.mask
        weights = scores.softmax(-1).to(values.dtype)

        of_trunk, of_row = weights.split([trunk, width], dim=-1)
        out = (of_row.flatten(2, 3) @ values).unflatten(2, q.shape[2:4])
        of_trunk = of_trunk.permute(1, 2, 0, 3, 4).flatten(1, 3) @ trunk_values
        out = out + of_trunk.unflatten(1, shape).permute(2, 0, 1, 3, 4)  # [B, H, G, L, D]
        out = out.permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)
        return out.index_select(0, self.back)[None]

    def _by_row(self, states: Tensor) -> Tensor:
        """From [1, H, T, D] to [H, B, L, D]."""
        return states[0].index_select(1, self.rows.flatten()).unflatten(1, self.rows.shape)
