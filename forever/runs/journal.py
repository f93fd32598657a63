"""The journal of a run: one line an update in steps.jsonl, one a replay in events.jsonl."""

import hashlib
import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from forever.errors import InputError
from forever.files import DAMAGED, check_digest, read_bytes, write_bytes, writing
from forever.runs.directory import RunDirectory
from forever.training.learner import Learner
from forever.training.steps import Step, StepRecord


class Journal:
    """The two files, to which lines are written that other processes see at once.

    It keeps the given numbers of lines, and checks them by the `digests`, which go by the names of
    the files. Later lines were written after the checkpoint from which the run resumes, and will be
    written again.

    Raises:
        InputError: lines are missing, or have changed.
    """

    def __init__(
        self,
        directory: RunDirectory,
        steps: int = 0,
        events: int = 0,
        digests: Mapping[str, str] = {},
    ) -> None:
        self.lines = {"steps": steps, "events": events}
        self._paths = {"steps": directory.steps, "events": directory.events}
        self._hashes: dict[str, Any] = {}
        self._files: dict[str, FileIO] = {}
        for name, path in self._paths.items():
            kept = first_lines(path, self.lines[name], digests.get(path.name))
            self._hashes[name] = hashlib.sha256(kept)
            if path.is_file() and path.stat().st_size != len(kept):
                write_bytes(path, kept)
        for name, path in self._paths.items():
            with writing(path):
                # Without a buffer, which a full disk would leave full for the end of the process.
                self._files[name] = FileIO(path, "a")

    @property
    def digests(self) -> dict[str, str]:
        """The digests of all lines, by the names of the files."""
        return {path.name: self._hashes[name].hexdigest() for name, path in self._paths.items()}

    def write(self, kind: str, content: Any) -> None:
        """Write down a line of steps.jsonl (`kind` is "step"), or an event ("event")."""
        line = content if kind == "step" else vars(content)
        text, name = (json.dumps(line, allow_nan=False) + "\n").encode(), f"{kind}s"
        with writing(self._paths[name]):
            left = text
            while left:
                left = left[self._files[name].write(left) :]
        self._hashes[name].update(text)
        self.lines[name] += 1

    def sync(self) -> None:
        """Bring all lines to the disk itself, lest a checkpoint counts what a power cut takes."""
        for name, file in self._files.items():
            with writing(self._paths[name]):
                os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def first_lines(path: Path, count: int, digest: str | None = None) -> bytes:
    """Return the first `count` lines of a file; InputError if some are missing, or they do not have
    the digest."""
    lines = read_bytes(path).split(b"\n")[:-1] if path.is_file() else []
    if len(lines) < count:
        raise InputError(
            f"{path} is damaged: of the {count} lines that a checkpoint counts it has "
            f"{len(lines)}; {DAMAGED}"
        )
    kept = b"".join(line + b"\n" for line in lines[:count])
    if digest is not None:
        check_digest(path, digest, kept)
    return kept


def step_line(learner: Learner, step: Step, record: StepRecord) -> dict[str, Any]:
    """Return the line of steps.jsonl for an update."""
    assert learner.task is not None
    return {
        "task": learner.task.name,
        "step": learner.step,
        "planned": learner.planned_steps,
        "update": learner.updates,
        "epoch": step.batch.epoch,
        "kind": step.kind,
        "loss": None if record.skipped else record.loss,
        "penalty": record.penalty,
        "update_norm": record.update_norm,
        "beta": step.penalty.beta if step.penalty else None,
        "lr": record.lr,
        "rows": len(step.batch.examples),
        "tokens": record.tokens,
        **({"skipped": True} if record.skipped else {}),
        **learner.gauges,
    }
