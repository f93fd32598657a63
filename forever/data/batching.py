"""The order in which examples are seen: shuffled global batches."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

from forever.data.tasks import Example
from forever.seeding import permutation

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """The global batch of one update: every rank has it and computes its own share."""

    examples: tuple[Example, ...]
    epoch: int = 0
    views: int = 1  # how often each example is shown in it, in different forms


Batches = Iterator[Batch]


def batches(
    examples: Sequence[Example], epochs: int, batch_size: int, seed: int, *stream: str | int
) -> Iterator[Batch]:
    """Yield every example once an epoch, newly shuffled; an epoch's last batch may be short."""
    for epoch in range(epochs):
        yield from one_pass(examples, epoch, batch_size, seed, *stream)


def one_pass(
    examples: Sequence[Example], epoch: int, batch_size: int, seed: int, *stream: str | int
) -> Iterator[Batch]:
    """Yield the batches of a single epoch."""
    order = permutation(len(examples), seed, *stream, epoch)
    for start in range(0, len(order), batch_size):
        yield Batch(tuple(examples[i] for i in order[start : start + batch_size]), epoch)


def shuffled(examples: Sequence[T], seed: int, *stream: str | int) -> Iterator[T]:
    """Yield examples, or whatever stands for them, in endless passes, each newly shuffled."""
    for number in count():
        for place in permutation(len(examples), seed, *stream, number):
            yield examples[place]


def cut(batches: Iterable[Batch], examples: int) -> Iterator[Batch]:
    """Yield batches up to so many examples, views counted; the last one is cut short."""
    for batch in batches:
        whole = batch.examples[: examples // batch.views]
        if not whole:
            return
        yield replace(batch, examples=whole)
        examples -= batch.views * len(whole)


def batch_count(count: int, epochs: int, batch_size: int) -> int:
    """How many batches `batches` yields."""
    return epochs * math.ceil(count / batch_size)
