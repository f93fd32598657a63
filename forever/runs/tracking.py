"""Who is told what happens in a run. A tracker that fails is left out: all is on disk already."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from forever.data.tasks import Benchmark
from forever.runs.directory import RunDirectory
from forever.text import complain
from forever.training.events import LossEvent, ReplayEvent


class Tracker:
    """Hears what a run's leading rank tells, and does nothing; others override what they need."""

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        """Training begins or goes on."""

    def step(self, line: Mapping[str, Any]) -> None:
        """An update is over; `line` is that of steps.jsonl."""

    def event(self, event: ReplayEvent | LossEvent) -> None:
        """A replay is over, or a look at earlier tasks."""

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        """Stage `number` (from 0) has been scored: percent by task, and `op`, `bwt` so far."""

    def finished(self, result: Mapping[str, Any]) -> None:
        """The result has been written."""


def tell(trackers: list[Tracker], what: str, *details: Any) -> None:
    """Call the method `what` of every tracker; one that raises is named and taken off the list."""
    for tracker in list(trackers):
        try:
            getattr(tracker, what)(*details)
        except (Exception, SystemExit) as error:
            # A tracker must never end a run, whatever it raises: rich leaves by SystemExit where
            # nobody reads. To be told to stop is no failure, and passes.
            trackers.remove(tracker)
            name = type(tracker).__name__
            reason = f"{type(error).__name__}: {error}"
            with suppress(OSError):  # nobody may read that either
                complain(f"{name} failed and is left out from here: {reason}")
