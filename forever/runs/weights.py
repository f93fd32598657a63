"""The weights that a run leaves for others, adapter/ or model/: their digests are in its result.

They may be large, or not kept. So whoever reads them checks them, and nobody else does.
"""

import hashlib
from pathlib import Path

from forever.errors import InputError
from forever.files import DAMAGED
from forever.runs.directory import RunDirectory


def weight_digests(run: Path, folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder of a run, by its name relative to the run."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(run).as_posix(): _digest(path) for path in files}


def check_weights(directory: RunDirectory) -> None:
    """Refuse weights that are there and are not what was written, by an InputError.

    The results of earlier releases say nothing of them.
    """
    noted: dict[str, str] = (directory.finished() or {}).get("weights", {})
    for name, digest in noted.items():
        path = directory.path / name
        if path.is_file() and _digest(path) != digest:
            result = directory.result.name
            raise InputError(f"{path} is damaged: it is not what {result} says; {DAMAGED}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
