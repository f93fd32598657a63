"""Episodic memory: a few kept rows of every finished task, chosen once (docs/protocol.md)."""

from collections import Counter
from collections.abc import Iterator, Sequence

from forever.data.batching import Batch, batches
from forever.data.tasks import Example, Task
from forever.seeding import permutation


class Memory:
    """The rows kept of finished tasks, replayed in shuffled passes.

    Which rows are kept depends on (seed, task) alone, so all methods of a seed replay the same ones.

    Args:
        fraction: share of each task's training rows; exactly floor(fraction * N), at least 1.
        batch_size: rows of a replay batch.
        seed: the run's seed.
    """

    def __init__(self, fraction: float, batch_size: int, seed: int) -> None:
        self.fraction = fraction
        self.batch_size = batch_size
        self.seed = seed
        self.kept: dict[str, tuple[Example, ...]] = {}
        self._passes: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.kept.values())

    @property
    def examples(self) -> tuple[Example, ...]:
        """All kept rows, oldest task first."""
        return tuple(example for rows in self.kept.values() for example in rows)

    def quota(self, rows: int) -> int:
        """How many of a task's `rows` are kept. The small term undoes binary rounding, as in 0.29 * 100."""
        return max(1, int(self.fraction * rows + 1e-9))

    def add(self, task: Task) -> None:
        """Keep some rows of a task that is over."""
        order = permutation(len(task.train), self.seed, "memory", task.name)
        self.kept[task.name] = tuple(balanced_choice(task.train, self.quota(len(task.train)), order))

    def batches(self, epochs: int, learning: str) -> Iterator[Batch]:
        """Shuffled passes over all kept rows; each call while learning the task `learning` shuffles anew."""
        self._passes[learning] += 1
        return batches(self.examples, epochs, self.batch_size, self.seed, "replay", learning, self._passes[learning])


def balanced_choice(examples: Sequence[Example], count: int, order: Sequence[int]) -> list[Example]:
    """`count` examples with answers as balanced as they can be, taken in the random `order`.

    With at most `count` distinct answers each gets the quota count // answers, and the rest is filled at random;
    with more, the choice is uniform (a class-balanced one would keep a row of every answer and exceed the quota).
    """
    shuffled = [examples[i] for i in order]
    answers = {example.output.strip() for example in shuffled}
    if len(answers) > count:
        return shuffled[:count]
    quota = dict.fromkeys(answers, count // len(answers))
    chosen: list[Example] = []
    rest: list[Example] = []
    for example in shuffled:
        answer = example.output.strip()
        if quota[answer] > 0:
            quota[answer] -= 1
            chosen.append(example)
        else:
            rest.append(example)
    return chosen + rest[: count - len(chosen)]
