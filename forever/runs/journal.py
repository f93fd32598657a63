"""The journal of a run: one line an update in steps.jsonl, one a replay in events.jsonl."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import IO, Any

from forever.runs.directory import RunDirectory, keep_lines
from forever.training.events import LossEvent, ReplayEvent


class Journal:
    """Writes lines that are on disk at once.

    Args:
        directory: the run's directory.
        steps, events: how many lines to keep; what follows them was written after the checkpoint
            that the run goes on from, and will be written again.
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
        """Write down one update."""
        self._write("steps", line)

    def event(self, event: ReplayEvent | LossEvent) -> None:
        """Write down one replay, or one look at earlier tasks."""
        self._write("events", dataclasses.asdict(event))

    def _write(self, file: str, line: Mapping[str, Any]) -> None:
        self._files[file].write(json.dumps(line, allow_nan=False) + "\n")
        self.lines[file] += 1

    def sync(self) -> None:
        """Bring all lines to the disk itself.

        So a checkpoint never counts lines that a power cut takes away.
        """
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
