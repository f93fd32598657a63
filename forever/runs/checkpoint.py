"""Checkpoints: folders `<stage>-<update>` that are complete, or not there.

tensors.safetensors, state.json and manifest.json (sha256 of the other two) are written under a
temporary name, synced to disk and renamed. The last two checkpoints are kept, so a damaged one
costs only the work since the one before.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from forever.config.overrides import difference_lines
from forever.errors import InputError, shown
from forever.files import DAMAGED, Entries, Shape, as_fields, make_folder, shaped, sync, writing
from forever.runs.shapes import SCHEMA_VERSION, Count, Note, check_version, file_digest
from forever.training.steps import StepRecord

_KEEP = 2
_FILES = ("tensors.safetensors", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on: its tensors by name, and its `State` as plain JSON."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


# The fields of a StepRecord, of which release 0.1.0 had seven.
Record = Annotated[Entries[float | bool], Field(min_length=7, max_length=len(fields(StepRecord)))]


class Progress(Shape):
    """The kinds of a `State`'s fields."""

    stage: Annotated[int, Field(ge=-1)] = -1
    trained: bool = True
    records: Entries[Record] = []
    method: dict[str, Any] = {}
    steps: Count = 0
    events: Count = 0
    digests: dict[str, str] = {}
    notes: Entries[Note] = []
    seconds: dict[str, float] = {}
    data: Entries[str] = []
    model: dict[str, str] = {}
    code: str = ""


@dataclass
class State:
    """How far a run is: state.json of a checkpoint, field by field."""

    stage: int = -1  # the stage that is or was trained last; -1 before the first
    trained: bool = True  # to its end, importance and memory included
    # The StepRecords of the stage so far, as lists of numbers; none once it is trained.
    records: list[Any] = field(default_factory=list)
    method: dict[str, Any] = field(default_factory=dict)  # what the method carries
    # Lines of the journal at the end of the stage or, within one, at its start: the records write
    # the others again.
    steps: int = 0
    events: int = 0
    digests: dict[str, str] = field(default_factory=dict)  # of these lines, by the files' names
    notes: list[dict[str, Any]] = field(default_factory=list)  # about each trained stage
    seconds: dict[str, float] = field(default_factory=dict)  # where the time went
    # What the run began with: digests of the tasks, of the models' files, of this program's.
    data: list[str] = field(default_factory=list)
    model: dict[str, str] = field(default_factory=dict)
    code: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def done(self) -> int:
        """How many stages are trained to their end."""
        return self.stage + self.trained

    def changes(self, now: "State", tasks: Sequence[str]) -> list[str]:
        """What the run began with and is another `now`, a line each; some noted less of it."""
        names = [f"data of {task}" for task in tasks]
        there: dict[str, str] = dict(zip(names, self.data, strict=False))
        here: dict[str, str] = dict(zip(names, now.data, strict=False))
        for part in self.model.keys() & now.model.keys():
            there[f"model {part}"], here[f"model {part}"] = self.model[part], now.model[part]
        if self.code:
            there["code"], here["code"] = self.code, now.code
        return difference_lines(there, here)

    @classmethod
    def of(cls, saved: Checkpoint, folder: Path) -> "State":
        """The state in a checkpoint from `folder`.

        Raises:
            InputError: a newer release wrote it, or its fields are not of their kinds.
        """
        version = saved.state.get("schema_version", 1)
        check_version(folder, version)
        strange = saved.state.keys() - {field.name for field in fields(cls)}
        if strange:
            raise InputError(f"{folder} has checkpoints with a strange field {shown(min(strange))}")
        shaped(folder, saved.state, Progress)
        state = cls(**{**saved.state, "schema_version": version})
        if len(state.notes) != state.done or (state.trained and state.records):
            raise InputError(
                f"{folder} has checkpoints whose fields disagree: {state.done} trained stages, "
                f"notes about {len(state.notes)}, {len(state.records)} updates since; {DAMAGED}"
            )
        return state


def save(
    folder: Path, stage: int, update: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Path:
    """Write a checkpoint below `folder` and drop all but the last two."""
    target = write(folder / f"{stage:03d}-{update:08d}", tensors, state)
    # Later ones are damaged, since the run went on from one before. A kill left the hidden ones.
    kept = [path for path in _complete(folder) if path.name <= target.name][-_KEEP:]
    with writing(folder):
        for path in folder.iterdir():
            if path.is_dir() and path not in kept:
                shutil.rmtree(path)
    return target


def write(target: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write one checkpoint as the folder `target`: it is complete or it is not there."""
    folder = target.parent
    temporary = folder / f".{target.name}.{os.getpid()}"
    with writing(target):
        shutil.rmtree(temporary, ignore_errors=True)
        make_folder(folder)
        temporary.mkdir()
        try:
            _fill(temporary, tensors, state)
        except (OSError, SafetensorError):
            shutil.rmtree(temporary, ignore_errors=True)  # a full disk has no room for it
            raise
        if target.exists():  # a resumed run comes past the same place again
            shutil.rmtree(target)
        temporary.rename(target)
        sync(folder)
    return target


def _fill(folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write the files of a checkpoint."""
    save_file(
        {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
        folder / "tensors.safetensors",
    )
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps(_digests(folder)), encoding="utf-8")
    for path in [*folder.iterdir(), folder]:
        sync(path)


def latest(
    folder: Path, say: Callable[[str], object] = id, begun: bool = False
) -> Checkpoint | None:
    """The newest checkpoint whose digests hold, or None; damaged ones are passed over and named.

    Args:
        begun: whether the run has trained, so that it is said if there is no checkpoint.
    """
    damaged: list[str] = []
    found: Checkpoint | None = None
    for path in reversed(_complete(folder)):
        if (found := read(path)) is not None:
            break
        damaged.append(str(path))
    if damaged:
        goes_on = "the run goes on from the one before" if found else "the run begins anew"
        say(f"{', '.join(damaged)} damaged; {goes_on}")
    elif begun and not found:
        say(f"{folder} has no checkpoint; the run begins anew")
    return found


def read(path: Path) -> Checkpoint | None:
    """The checkpoint in the folder `path`; None if a file is missing or not as it was written.

    A disk that cannot be read now is no damage: its OSError is raised.
    """
    try:
        if json.loads((path / "manifest.json").read_text(encoding="utf-8")) != _digests(path):
            return None
        state = as_fields(path, (path / "state.json").read_bytes())
        return Checkpoint(load_file(path / "tensors.safetensors"), state)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    except (ValueError, RecursionError, SafetensorError):
        return None


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[!.]*") if path.is_dir())


def _digests(folder: Path) -> dict[str, str]:
    return {name: file_digest(folder / name) for name in _FILES}
