"""Checkpoints: folders `<stage>-<update>` that are complete, or not there.

tensors.safetensors, state.json and manifest.json (sha256 of the other two) are written under a
temporary name, synced to disk and renamed. The last two checkpoints are kept, so a damaged one
costs only the work since the one before.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from forever.config.overrides import difference_lines
from forever.files import file_digest, make_folder, sync, writing
from forever.runs.directory import SCHEMA_VERSION, check_version

_KEEP = 2
_FILES = ("tensors.safetensors", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to resume: its tensors by name, and its `State` as plain JSON."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


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
    # Of the run's past, by the names of the files: of these lines, and of all answers so far.
    digests: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)  # of a method, by stage
    memory: dict[str, str] = field(default_factory=dict)  # of the examples that each stage kept
    notes: list[dict[str, Any]] = field(default_factory=list)  # about each trained stage
    seconds: dict[str, float] = field(default_factory=dict)  # where the time went
    # What the run began with: digests of the tasks, of their test examples alone, of the models'
    # files, of this program's.
    data: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)  # `Learned`, for who comes after
    model: dict[str, str] = field(default_factory=dict)
    code: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def done(self) -> int:
        """How many stages are trained to their end."""
        return self.stage + self.trained

    def changes(self, now: "State", tasks: Sequence[str]) -> list[str]:
        """Return in what the run's beginning differs from `now`, a line each."""
        names = [f"data of {task}" for task in tasks]
        then: dict[str, str] = dict(zip(names, self.data, strict=False))
        here: dict[str, str] = dict(zip(names, now.data, strict=False))
        for part in self.model.keys() & now.model.keys():
            then[f"model {part}"], here[f"model {part}"] = self.model[part], now.model[part]
        if self.code:
            then["code"], here["code"] = self.code, now.code
        return difference_lines(then, here)

    @classmethod
    def of(cls, saved: Checkpoint, folder: Path) -> "State":
        """Return the state in a checkpoint of `folder`; InputError if of another release."""
        check_version(folder, saved.state.get("schema_version"))
        return cls(**saved.state)


def save(
    folder: Path, stage: int, update: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Path:
    """Write a checkpoint below `folder` and drop all but the last two."""
    target = write(folder / f"{stage:03d}-{update:08d}", tensors, state)
    # Later ones are damaged, since the run resumed from one before; a kill left the hidden ones.
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
        make_folder(folder)
        temporary.mkdir()
        try:
            cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(cpu, temporary / "tensors.safetensors")
            (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
            manifest = json.dumps(_digests(temporary))
            (temporary / "manifest.json").write_text(manifest, encoding="utf-8")
            for path in [*temporary.iterdir(), temporary]:
                sync(path)
        except (OSError, SafetensorError):
            shutil.rmtree(temporary, ignore_errors=True)  # a full disk has no room for it
            raise
        if target.exists():  # a resumed run comes past the same update again
            shutil.rmtree(target)
        temporary.rename(target)
        sync(folder)
    return target


def write_constants(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write what a method computed for good after a stage, and return its digest."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, temporary)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    return file_digest(path)


def latest(
    folder: Path, say: Callable[[str], object] = id, begun: bool = False
) -> Checkpoint | None:
    """Return the newest checkpoint whose digests hold, or None; `say` hears of damaged ones.

    Args:
        begun: whether the run has trained, so that a missing checkpoint is said.
    """
    damaged: list[str] = []
    found: Checkpoint | None = None
    for path in reversed(_complete(folder)):
        if (found := read(path)) is not None:
            break
        damaged.append(str(path))
    if damaged:
        then = "the run resumes from the one before" if found else "the run starts again"
        say(f"{', '.join(damaged)} damaged; {then}")
    elif begun and not found:
        say(f"{folder} has no checkpoint; the run starts again")
    return found


def read(path: Path) -> Checkpoint | None:
    """Return the checkpoint in the folder `path`; None if a file is missing or has changed.

    A disk that cannot be read now is no damage: its OSError is raised.
    """
    try:
        if json.loads((path / "manifest.json").read_text(encoding="utf-8")) != _digests(path):
            return None
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return Checkpoint(load_file(path / "tensors.safetensors"), state)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError, SafetensorError):
        return None


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[!.]*") if path.is_dir())


def _digests(folder: Path) -> dict[str, str]:
    return {name: file_digest(folder / name) for name in _FILES}
