"""What the fields of a run's files must be, and which releases' files are read."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from forever.errors import InputError, shown
from forever.files import DAMAGED, Entries, Shape, sha256
from forever.reading import check_within

# Of a run's folder and a sweep's. 1: without SHA256SUMS and digests of the journal.
SCHEMA_VERSION = 2
_READABLE = range(1, SCHEMA_VERSION + 1)


Count = Annotated[int, Field(ge=0, lt=2**63)]
Single = Annotated[float, Field(ge=-3.5e38, le=3.5e38)]  # what fp32 can hold


class Sizes(Shape):
    train: Count = 0
    test: Count


class Examples(Shape):
    __pydantic_extra__: dict[str, Count]  # pyright: ignore[reportIncompatibleVariableOverride]
    replayed: Count


class Note(Shape):
    """Of a stage: what methods note are numbers as well."""

    __pydantic_extra__: dict[str, float | None]  # pyright: ignore[reportIncompatibleVariableOverride]
    examples: dict[str, Count] = {}
    truncated: Count = 0
    planned: float = Field(default=1, gt=0)


class Result(Shape):
    """Fields of result.json, of which earlier releases did not write all."""

    benchmark: str = ""
    order: str = ""
    method: str = ""
    seed: int = 0
    tasks: Entries[str] = []
    stages: Entries[str] = []
    matrix: Entries[Entries[float | None]] = []
    op: float = 0.0
    bwt: float | None = None
    fwt: float | None = None
    forgetting: float | None = None
    rows: dict[str, Sizes] = {}
    data: dict[str, str] = {}
    notes: dict[str, Note] = {}
    examples: Examples | None = None
    metrics: dict[str, str] = {}
    events: dict[str, dict[str, Count]] = {}
    updates: dict[str, Count] = {}
    rows_seen: dict[str, Count] = {}
    tokens: Count = 0
    seconds: dict[str, float] = {}
    world_size: Count = 1
    parameters: dict[str, Count] = {}
    peak_memory_bytes: Count = 0
    journal: dict[str, str] = {}  # digests of the journal's files
    weights: dict[str, str] = {}  # digests of what is there for others to use


class Place(Shape):
    cpu: str | None = None
    cores: int | None = None
    gpus: Entries[str] = []
    packages: dict[str, str | None] = {}
    revision: str | None = None
    argv: Entries[str] = []


class Environment(Place):
    resumed: Entries[Place] = []


class Answer(Shape):
    id: str
    reference: str = ""
    score: float


class Line(Shape):
    """Fields of a line of the journal, of which an update and an event have not the same."""

    task: str
    kind: str = ""
    step: Count = 0
    day: Single | None = None
    days: Single | None = None
    next_day: Single | None = None
    mu: Single | None = None
    loss: Single | None = None
    penalty: Single | None = None
    beta: Single | None = None
    update_norm: Annotated[Single, Field(ge=0)] | None = None
    loss_before: Single | None = None
    loss_after: Single | None = None
    losses: dict[str, Single] = {}


class Ended(Shape):
    state: Literal["failed", "stopped"]
    reason: str


class _Data(Shape):
    benchmark: str
    order: str | list[str]


class _Method(Shape):
    name: str


class Settings(Shape):
    """Of config.yaml what all releases have and a report cannot do without."""

    seed: Count
    data: _Data
    method: _Method


class Fork(Shape):
    run: str
    stage: int
    origin: str


def check_version(path: Path, version: Any) -> None:
    """Refuse what a release wrote that this one does not know, by an InputError."""
    if type(version) is not int or version not in _READABLE:
        raise InputError(
            f"{path} has schema_version {shown(version)}, and this release reads 1 to "
            f"{SCHEMA_VERSION}; read it with the release that wrote it, or run again into "
            "another --out"
        )


def check_digest(path: Path, content: bytes, digest: str | None) -> None:
    """Refuse a part of the journal that is not what was counted, by an InputError."""
    if sha256(content) != digest:
        raise InputError(f"{path} is damaged: it is not what was counted; {DAMAGED}")


# ---- the weights that a run leaves for others: large, or not kept, so who reads them checks them


def weight_digests(run: Path, folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder of a run, by its name relative to the run."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(run).as_posix(): file_digest(path) for path in files}


def check_weights(run: Path, result: Mapping[str, Any]) -> None:
    """Refuse weights that are there and are not what was written, by an InputError.

    The results of earlier releases say nothing of them.
    """
    for name, digest in result.get("weights", {}).items():
        path = run / name
        check_within(run, path)
        if path.is_file() and file_digest(path) != digest:
            raise InputError(f"{path} is damaged: it is not what result.json says; {DAMAGED}")


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, which may be larger than the memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
