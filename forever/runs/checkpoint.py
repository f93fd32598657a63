"""Atomic, verified checkpoints: tensors in safetensors, everything else JSON, no pickle.

A checkpoint is a folder `<stage>-<update>` with tensors.safetensors, state.json and manifest.json
(sha256 of the other two). It is written under a temporary name, synced to disk and renamed; the
last two are kept, so a torn or damaged one costs only the work since the one before.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from forever.runs.directory import sync as _sync

_KEEP = 2
_FILES = ("tensors.safetensors", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on. `tensors` by name; `state` is plain JSON."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save(
    folder: Path, stage: int, update: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Path:
    """Write a checkpoint below `folder` and drop all but the last two.

    Names sort in the order of training.
    """
    target = write(folder / f"{stage:03d}-{update:08d}", tensors, state)
    # The run went on from the newest good one, so later ones are damaged. A kill left the hidden
    # ones behind.
    kept = [path for path in _complete(folder) if path.name <= target.name][-_KEEP:]
    for path in folder.iterdir():
        if path.is_dir() and path not in kept:
            shutil.rmtree(path)
    return target


def write(target: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write one checkpoint as the folder `target`: it is complete or it is not there."""
    folder = target.parent
    temporary = folder / f".{target.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file(
        {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
        temporary / "tensors.safetensors",
    )
    (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
    (temporary / "manifest.json").write_text(json.dumps(_digests(temporary)), encoding="utf-8")
    for path in [*temporary.iterdir(), temporary]:
        _sync(path)
    if target.exists():  # a resumed run comes past the same place again
        shutil.rmtree(target)
    temporary.rename(target)
    _sync(folder)
    return target


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose digests hold, or None. Damaged ones are passed over."""
    for path in reversed(_complete(folder)):
        if (checkpoint := read(path)) is not None:
            return checkpoint
    return None


def read(path: Path) -> Checkpoint | None:
    """Read the checkpoint in the folder `path`; None if it is not there or damaged.

    It is damaged if a file is missing, cut, not readable, or has another digest.
    """
    try:
        if json.loads((path / "manifest.json").read_text(encoding="utf-8")) != _digests(path):
            return None
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return Checkpoint(load_file(path / "tensors.safetensors"), state)
    except (OSError, ValueError):
        return None


def _complete(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.glob("*") if path.is_dir() and not path.name.startswith(".")
    )


def _digests(path: Path) -> dict[str, str]:
    return {name: _digest(path / name) for name in _FILES}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
