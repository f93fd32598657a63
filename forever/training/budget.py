"""What a task may replay: a number of examples, or seconds, as far as some is left."""

import math
import sys
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise, takewhile

from forever.config.parts import BudgetConfig
from forever.data.batching import Batch, cut
from forever.data.tasks import Example


class Budget:
    """Counts what the current task has replayed, and cuts its batches where the budget ends."""

    def __init__(self, config: BudgetConfig) -> None:
        self.config = config
        self.begin(0)

    def begin(self, stage: int) -> None:
        """Set all counters to the start of a task."""
        self.total = self.config.of(stage)  # of examples
        self.examples = 0  # replayed or padded, views counted
        # With `budget.seconds`: the time of all updates, the part that replayed or padded examples
        # had in it, and the longest update with such examples.
        self.update_s = self.replay_s = self.longest_replay_s = 0.0

    def count(self, batch: Batch, replayed: int, seconds: float) -> None:
        """Count an update on a batch with so many examples from memory, or in their place."""
        self.examples += batch.views * replayed
        self.update_s += seconds
        if replayed:
            self.replay_s += seconds * replayed / len(batch.examples)
            self.longest_replay_s = max(self.longest_replay_s, seconds)

    def passes(self, kept: int) -> int:
        """Return how many passes over `kept` examples spend the whole budget; 0 without one."""
        if self.config.seconds is not None:
            return sys.maxsize  # time will tell
        return math.ceil((self.total or 0) / max(kept, 1))

    def afforded(self, batches: Iterable[Batch], parts: int = 1) -> Iterator[Batch]:
        """Yield the batches for which there is budget left, and at most one of `parts` of it.

        Seconds are spent by the update that goes past their end, so take the next batch when the
        one before is over.
        """
        if self.config.seconds is not None:
            # To the end of the share in which it begins: what went past one is taken off the next.
            share_s = self.config.seconds / parts
            until_s = min(self.config.seconds, (self.replay_s // share_s + 1) * share_s)
            return takewhile(lambda _: self.replay_s < until_s, batches)
        if self.total is None:
            return iter(batches)
        return cut(batches, min(self.total - self.examples, self.total // parts))

    def shares(self, epochs: int) -> list[int]:
        """Divide the budget of examples into equal parts, one an epoch."""
        total = self.total or 0
        ends = [epoch * total // epochs for epoch in range(epochs + 1)]
        return [end - begin for begin, end in pairwise(ends)]

    def mixed_by_time(
        self, batches: Iterable[Batch], kept: Iterator[Example], updates: int
    ) -> Iterator[Batch]:
        """Yield a task's batches, each with as many kept examples as the time that is due pays for.

        The share of the budget that is due grows with the `updates` of the task, and an example is
        taken to cost what one has cost so far. So there are as many updates as in fine-tuning.
        """
        assert self.config.seconds is not None
        shown = count = 0
        for number, batch in enumerate(batches, start=1):
            if self.update_s:
                due_s = self.config.seconds * number / updates - self.replay_s
                count = max(0, round(due_s * shown / self.update_s))
            mixed = batch.examples + tuple(islice(kept, count))
            shown += len(mixed)
            yield Batch(mixed, batch.epoch)
