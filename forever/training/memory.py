"""Episodic memory: a few kept examples of every finished task, chosen once (docs/protocol.md)."""

import random
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import count, islice

from forever.data.batching import Batch, batches, shuffled
from forever.data.tasks import Example, Task
from forever.seeding import derive, permutation


class Memory:
    """The examples kept of finished tasks, replayed in shuffled passes.

    Of each task with N training examples floor(fraction * N) are kept, at least 1 unless the
    fraction is zero. Which ones depends on (seed, task) alone, so all methods of a seed replay the
    same ones.
    """

    def __init__(self, fraction: float, batch_size: int, seed: int) -> None:
        self.fraction = fraction
        self.batch_size = batch_size
        self.seed = seed
        self.kept: dict[str, tuple[Example, ...]] = {}
        # What another run chose of tasks whose training examples are gone.
        self.chosen: dict[str, tuple[Example, ...]] = {}
        self._passes: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(len(examples) for examples in self.kept.values())

    @property
    def examples(self) -> tuple[Example, ...]:
        """All kept examples, oldest task first."""
        return tuple(example for examples in self.kept.values() for example in examples)

    def quota(self, count: int) -> int:
        """How many of a task's `count` examples are kept."""
        return quota(self.fraction, count)

    def choose(self, task: Task, count: int | None = None) -> tuple[Example, ...]:
        """The examples to keep of a task, or `count` of them chosen in the same way."""
        if task.name in self.chosen:
            return self.chosen[task.name]
        order = permutation(len(task.train), self.seed, "memory", task.name)
        answers = [example.output.strip() for example in task.train]
        chosen = balanced_choice(answers, count or self.quota(len(answers)), order)
        return tuple(task.train[i] for i in chosen)

    def add(self, task: Task, examples: Sequence[Example] | None = None) -> None:
        """Keep `examples` of a task that is over; by default those that `choose` gives."""
        self.kept[task.name] = self.choose(task) if examples is None else tuple(examples)

    def batches(self, epochs: int, learning: str, batch_size: int | None = None) -> Iterator[Batch]:
        """Shuffled passes over all kept examples; each call while `learning` a task draws anew."""
        self._passes[learning] += 1
        size = batch_size or self.batch_size
        return batches(
            self.examples, epochs, size, self.seed, "replay", learning, self._passes[learning]
        )

    def drawn(self, learning: str) -> Iterator[Example]:
        """Kept examples one by one while `learning` a task: none comes again before all have come.

        All ways to spend a budget of examples draw from it, so they replay the same ones.
        """
        return shuffled(self.examples, self.seed, "mixed", learning)

    def further(self, seen: int, learning: str, batch_size: int | None = None) -> Iterator[Batch]:
        """Endless batches of `drawn` after the examples that were `seen`."""
        examples = islice(self.drawn(learning), seen, None)
        while True:
            yield Batch(tuple(islice(examples, batch_size or self.batch_size)))

    def draws(self, learning: str, purpose: str) -> Iterator[Batch]:
        """Endless random batches of kept examples, each drawn without regard to those before."""
        examples = self.examples
        for number in count():
            stream = random.Random(derive(self.seed, purpose, learning, number))
            yield Batch(tuple(stream.sample(examples, min(self.batch_size, len(examples)))))


def quota(fraction: float, count: int) -> int:
    """How many of a task's `count` examples a memory of this fraction keeps."""
    if not fraction:
        return 0
    return max(1, int(fraction * count + 1e-9))  # not 28.999..., where it is 0.29 * 100


def balanced_choice(answers: Sequence[Hashable], count: int, order: Sequence[int]) -> list[int]:
    """The indices of `count` examples with balanced answers, taken in the random `order`.

    With at most `count` distinct answers each gets the quota count // answers, and the rest is
    filled at random, so that an answer may get more than one of it; with more answers, as for
    generation, the choice is uniform.
    """
    distinct = len(set(answers))
    if distinct > count:
        return list(order[:count])
    taken = Counter[Hashable]()
    chosen: list[int] = []
    rest: list[int] = []
    for i in order:
        taken[answers[i]] += 1
        part = chosen if taken[answers[i]] <= count // distinct else rest
        part.append(i)
    return [*chosen, *rest][:count]
