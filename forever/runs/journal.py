"""The journal of a run: one line an update in steps.jsonl, one a replay in events.jsonl."""

import json
import os
from typing import IO, Any

from forever.runs.directory import RunDirectory, keep_lines


class Journal:
    """Writes lines that other processes see at once.

    It keeps as many lines as are given. What follows them was written after the checkpoint that the
    run goes on from, and will be written again.
    """

    def __init__(self, directory: RunDirectory, steps: int = 0, events: int = 0) -> None:
        self.lines = {"steps": steps, "events": events}
        self._files: dict[str, IO[str]] = {}
        for name, path in (("steps", directory.steps), ("events", directory.events)):
            keep_lines(path, self.lines[name])
            self._files[name] = path.open("a", encoding="utf-8", buffering=1)

    def write(self, kind: str, content: Any) -> None:
        """Write down a line of steps.jsonl (`kind` is "step"), or an event ("event")."""
        line = content if kind == "step" else vars(content)
        self._files[f"{kind}s"].write(json.dumps(line, allow_nan=False) + "\n")
        self.lines[f"{kind}s"] += 1

    def sync(self) -> None:
        """Bring all lines to the disk itself, lest a checkpoint counts what a power cut takes."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
