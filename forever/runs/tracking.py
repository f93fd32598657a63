"""Trackers hear what happens in a run. One that fails is dropped: all is on disk already."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from forever.data.tasks import Benchmark
from forever.runs.directory import RunDirectory
from forever.text import complain
from forever.training.events import LossEvent, ReplayEvent


class Tracker:
    """Hears what a run's leading rank reports, and does nothing; others override what they need."""

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        """Training begins or resumes."""

    def step(self, line: Mapping[str, Any]) -> None:
        """An update is over; `line` is that of steps.jsonl."""

    def event(self, event: ReplayEvent | LossEvent) -> None:
        """A replay is over, or a probe of earlier tasks."""

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        """Stage `number` (from 0) has been scored: percent by task, and `op`, `bwt` so far."""

    def finished(self, result: Mapping[str, Any]) -> None:
        """The result has been written."""


def tell(trackers: list[Tracker], what: str, *details: Any) -> None:
    """Call the method `what` of every tracker; one that raises is reported and dropped."""
    for tracker in list(trackers):
        try:
            getattr(tracker, what)(*details)
        except (Exception, SystemExit) as error:
            # A tracker must never end a run, whatever it raises: rich leaves by SystemExit where
            # nobody reads. A request to stop is not a failure, and passes.
            trackers.remove(tracker)
            name = type(tracker).__name__
            reason = f"{type(error).__name__}: {error}"
            with suppress(OSError):  # nobody may read that either
                complain(f"{name} failed and is left out from here: {reason}")
