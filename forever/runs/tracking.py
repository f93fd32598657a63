"""Who is told what happens: a small protocol, the journal that is always written, and a list that
shields the run.

A tracker hears of everything after it is on disk, so one that fails loses nothing: it is reported
once and left out.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Protocol

from forever.data.tasks import Benchmark
from forever.runs.directory import RunDirectory, keep_lines
from forever.runs.environment import without_credentials
from forever.training.steps import LossEvent, ReplayEvent


class Tracker(Protocol):
    """What a run tells. Only the leading rank of a run speaks."""

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        """Training begins or goes on."""
        ...

    def step(self, line: Mapping[str, Any]) -> None:
        """One update: a line of steps.jsonl, and `planned`, the task updates of this task."""
        ...

    def event(self, event: ReplayEvent | LossEvent) -> None:
        """A replay is over."""
        ...

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        """Stage `number` (from 0) has been scored: percent by task, and `op`, `bwt` so far."""
        ...

    def finished(self, result: Mapping[str, Any]) -> None:
        """The result has been written."""
        ...


class SilentTracker:
    """Hears everything and does nothing: a base for trackers that care about some of it."""

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None: ...

    def step(self, line: Mapping[str, Any]) -> None: ...

    def event(self, event: ReplayEvent | LossEvent) -> None: ...

    def stage(self, number: int, scores: Mapping[str, float]) -> None: ...

    def finished(self, result: Mapping[str, Any]) -> None: ...


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


class Journal:
    """steps.jsonl and events.jsonl of a run: one line an update, one an event, on disk at once.

    Args:
        directory: of the run.
        steps, events: lines to keep; what follows was written after the checkpoint that the run
        goes on from.
    """

    def __init__(self, directory: RunDirectory, steps: int = 0, events: int = 0) -> None:
        keep_lines(directory.steps, steps)
        keep_lines(directory.events, events)
        self.lines = {"steps": steps, "events": events}
        self._files: dict[str, IO[str]] = {
            "steps": directory.steps.open("a", encoding="utf-8", buffering=1),
            "events": directory.events.open("a", encoding="utf-8", buffering=1),
        }

    def step(self, line: Mapping[str, Any]) -> None:
        self._write("steps", line)

    def event(self, event: ReplayEvent | LossEvent) -> None:
        self._write("events", dataclasses.asdict(event))

    def _write(self, file: str, line: Mapping[str, Any]) -> None:
        self._files[file].write(json.dumps(line, allow_nan=False) + "\n")
        self.lines[file] += 1

    def sync(self) -> None:
        """Bring all lines to the disk itself, so that a checkpoint never counts lines that a power
        cut takes away."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in self._files.values():
            file.close()
