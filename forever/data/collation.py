"""From encoded examples to the tensors of one pass: packed into one sequence, or padded.

In a causal model a token depends on nothing but the tokens before it. So a beginning that several
examples have in common, such as the instruction of their task, needs to be computed only once: the
examples form a tree of prefixes, laid out as one sequence in which each token sees the way from the
root to itself. Nothing in it is padding. The padded layout is the reference that tests compare
with, and what remains for a model that cannot attend so (see `models.attention`).

B sequences, T tokens in each, N tokens of all examples, n of them supervised.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from forever.data.encoding import Encoded

# Up to so many tokens in a packed sequence, attention over its square is less work on a CPU than to
# lay out the examples in rows, whose squares together may be smaller (docs/performance.md).
_FEW_TOKENS = 256


@dataclass(frozen=True)
class Layout:
    """Where the tokens of packed examples are, for B examples of at most L tokens.

    Attributes:
        rows: [B, L], the place in the sequence of each token of each example; after its end
            the last of them again.
        back: [T], where among all B L each token of the sequence is.
        mask: [T, T], 0 for what a token sees, else -inf; None where B rows are less work.
    """

    rows: Tensor
    back: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class Collated:
    """The tensors of one pass.

    Attributes:
        inputs: what the model is called with; `input_ids` is [B, T].
        places: [N], where each token of each example stands among all B T, example by example;
            a shared token occurs as often as it is shared.
        predicts: [n], the places after which a supervised token comes.
        targets: [n], those tokens.
        counts: [B, T], how many examples have the token; 0 is padding.
        owners: [B, T], the number of one of them.
    """

    inputs: dict[str, Any]
    places: Tensor
    predicts: Tensor
    targets: Tensor
    counts: Tensor
    owners: Tensor


def pack(examples: Sequence[Encoded], kinds: Sequence[int], device: torch.device) -> Collated:
    """Lay out examples as one sequence (B = 1).

    Args:
        kinds: a number for each example; only examples of the same kind share tokens.
    """
    ids: list[int] = []
    depths: list[int] = []
    owners: list[int] = []
    back: list[int] = []
    paths: dict[int, list[int]] = {}
    width = max(len(example.prompt) + len(example.answer) for example in examples)
    path: list[int] = []
    for i, shared in shared_beginnings(examples, kinds):
        tokens = examples[i].prompt + examples[i].answer
        added = tokens[shared:]
        path = [*path[:shared], *range(len(ids), len(ids) + len(added))]
        ids += added
        depths += range(shared, len(tokens))
        owners += [i] * len(added)
        back += range(i * width + shared, i * width + len(tokens))
        paths[i] = path
    in_order = [paths[i] for i in range(len(examples))]
    rows = _integers([path + path[-1:] * (width - len(path)) for path in in_order])
    mask = None
    if device.type == "cpu" and len(ids) ** 2 <= max(rows.numel() * width, _FEW_TOKENS**2):
        mask = _mask(rows, len(ids))
    inputs = {
        "input_ids": _integers([ids]),
        "position_ids": _integers([depths]),
        "attention_mask": torch.ones(1, 1, 1, 1),  # not used; without one a model makes its own
        "layout": Layout(rows.to(device), _integers(back).to(device), mask),
    }
    return _collated(examples, inputs, in_order, _integers([owners]), device)


def _mask(rows: Tensor, count: int) -> Tensor:
    """0 where one of `count` tokens sees another, in the same row and not after it, else -inf."""
    in_row = torch.zeros(len(rows), count).scatter_(1, rows, 1.0)
    together = (in_row.T @ in_row).tril()  # how many rows have both
    return torch.where(together > 0, 0.0, -torch.inf)


def _integers(values: Any) -> Tensor:
    """A tensor from lists, by way of NumPy, which reads them several times as fast."""
    return torch.from_numpy(np.array(values, dtype=np.int64))


def kinds_of(marks: Sequence[int | str], gate: Tensor | None) -> list[int]:
    """Number the kinds of examples for `pack`.

    Args:
        marks: what must be alike, such as the instruction, or which view of its example each of
            them is: views share nothing, so that dropout treats each of them in its own way.
        gate: the weights of the adapters, [B, E] if each example has its own. A beginning has
            another state under other weights.
    """
    weights = [()] * len(marks) if gate is None or gate.dim() == 1 else map(tuple, gate.tolist())
    known: dict[Any, int] = {}
    return [known.setdefault(mark, len(known)) for mark in zip(marks, weights, strict=True)]


def shared_beginnings(
    examples: Sequence[Encoded], kinds: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield each example's number, and how many tokens it shares with the one yielded before.

    In this order no earlier example has more in common with it.
    """
    tokens = [example.prompt + example.answer for example in examples]
    before: tuple[int, ...] = ()
    kind = None
    for i in sorted(range(len(examples)), key=lambda i: (kinds[i], tokens[i])):
        yield i, alike(before, tokens[i]) if kinds[i] == kind else 0
        before, kind = tokens[i], kinds[i]


def alike(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for count, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return count
    return min(len(a), len(b))


def pad(examples: Sequence[Encoded], token: int, device: torch.device) -> Collated:
    """Lay out every example as a sequence of its own, padded on the right with `token`.

    No token sees a pad, as attention is causal.
    """
    lengths = [len(example.prompt) + len(example.answer) for example in examples]
    ids = torch.full((len(examples), max(lengths)), token, dtype=torch.long)
    owners = torch.arange(len(examples))[:, None].expand(ids.shape)
    for i, example in enumerate(examples):
        ids[i, : lengths[i]] = torch.tensor(example.prompt + example.answer)
    paths: list[list[int]] = []
    for i, length in enumerate(lengths):
        paths.append(list(range(i * ids.shape[1], i * ids.shape[1] + length)))
    return _collated(examples, {"input_ids": ids}, paths, owners, device)


def _collated(
    examples: Sequence[Encoded],
    inputs: dict[str, Any],
    paths: Sequence[Sequence[int]],
    owners: Tensor,
    device: torch.device,
) -> Collated:
    predicts: list[int] = []
    targets: list[int] = []
    for example, path in zip(examples, paths, strict=True):
        before = len(example.prompt) - 1
        predicts += [path[before + i] for i in example.learned]
        targets += [example.answer[i] for i in example.learned]
    places = _integers(list(chain.from_iterable(paths)))
    counts = torch.bincount(places, minlength=owners.numel())
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            inputs[name] = value.to(device)
    return Collated(
        inputs=inputs,
        places=places.to(device),
        predicts=_integers(predicts).to(device),
        targets=_integers(targets).to(device),
        counts=counts.view(owners.shape).to(device),
        owners=owners.to(device),
    )


def collate_prompts(
    examples: Sequence[Encoded], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Left-padded prompts for decoding: ids [B, T] and attention mask [B, T]."""
    prompts = [torch.tensor(example.prompt, dtype=torch.long) for example in examples]
    ids = pad_sequence(prompts, batch_first=True, padding_value=pad, padding_side="left")
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    mask = (torch.arange(ids.shape[1]) >= ids.shape[1] - lengths[:, None]).long()
    return ids.to(device), mask.to(device)
