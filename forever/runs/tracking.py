"""Who is told what happens in a run, and a list of them that shields the run.

A tracker hears of everything after it is on disk, so one that fails loses nothing: it is reported
once and left out.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from forever.data.tasks import Benchmark
from forever.runs.directory import RunDirectory
from forever.runs.environment import without_credentials
from forever.training.events import LossEvent, ReplayEvent


class Tracker:
    """Hears what a run tells.

    Only the run's leading rank speaks. This one does nothing, so that others override what they
    care about.
    """

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


class Trackers:
    """Tells each tracker; one that raises is named once on stderr and not told again."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def tell(self, what: str, *details: Any) -> None:
        """Call the method `what` of every tracker."""
        for tracker in list(self.trackers):
            try:
                getattr(tracker, what)(*details)
            except Exception as error:  # a tracker must never end a run, whatever it raises
                self.trackers.remove(tracker)
                name = type(tracker).__name__
                reason = without_credentials(f"{type(error).__name__}: {error}")
                print(f"{name} failed and is left out from here: {reason}", file=sys.stderr)
