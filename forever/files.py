"""Files that are there as a whole or not at all, and digests of their content."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from safetensors import SafetensorError

from forever.errors import InputError, one_line

DAMAGED = "take it from a backup, or run again into another --out"
T = TypeVar("T")


class WriteError(InputError):
    """A file cannot be written: the disk is full, the folder is read-only, a file is in the way."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line that `path` cannot be written, and why, by a WriteError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        if isinstance(error, FileNotFoundError | NotADirectoryError | FileExistsError):
            # Nothing that room would help: a file is where a folder should be, or as below /proc.
            raise InputError(f"{path} cannot be made ({reason}); give another folder") from None
        raise WriteError(
            f"{path} cannot be written ({reason or one_line(error)}); make room there, or give "
            "another folder; the same command resumes (a run: with --resume)"
        ) from None


# ---- reading


def read_bytes(path: Path, remedy: str = DAMAGED) -> bytes:
    """Return the content of a file; InputError if it is missing or cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is missing; {remedy}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({one_line(error)}); {remedy}") from None


def as_fields(
    where: Path | str,
    content: bytes,
    parse: Callable[[str], Any] = json.loads,
    remedy: str = DAMAGED,
) -> Any:
    """Return the named fields in a file's content; InputError, that says where, if it has none."""
    try:
        fields = parse(content.decode("utf-8"))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{where} cannot be read ({one_line(error)}); {remedy}") from None
    if not isinstance(fields, dict):
        kind = type(fields).__name__
        raise InputError(f"{where} cannot be read: it holds {kind}, not named fields; {remedy}")
    return fields


def read_json(path: Path, remedy: str = DAMAGED) -> dict[str, Any]:
    """Return the object in a JSON file; InputError, with the remedy, if it is damaged."""
    return as_fields(path, read_bytes(path, remedy), remedy=remedy)


def as_lines(path: Path, content: bytes) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file, without a last line that was cut off."""
    # Not splitlines: it also breaks at U+2028 and others, which JSON leaves inside of a text.
    lines = content.split(b"\n")[:-1]
    return [as_fields(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file, none if it does not exist; see `as_lines`."""
    return as_lines(path, read_bytes(path)) if path.is_file() else []


def last_line(path: Path) -> dict[str, Any] | None:
    """Return the last complete object of a JSON-lines file, if there is one."""
    lines = read_bytes(path).split(b"\n")[:-1] if path.is_file() else []
    return as_fields(path, lines[-1]) if lines else None


# ---- writing


def json_lines(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a JSON-lines file."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON-lines file as a whole."""
    write_text(path, json_lines(records))


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Write a text file as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"), durable)


def write_bytes(path: Path, content: bytes, durable: bool = True) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part.

    Raises:
        WriteError: see `writing`. The old content stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        make_folder(path.parent)
        try:
            with temporary.open("wb") as file:
                file.write(content)
            if durable:  # else the caller brings it to the disk itself, or can lose it
                sync(temporary)
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        if durable:
            sync(path.parent)  # otherwise a power cut could take the name away


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, so that a power cut does not take them away."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Bring a folder with all that is in it to the disk itself."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # somebody's temporary file
                sync(Path(place, name))
        sync(Path(place))


# ---- digests


def sha256(content: bytes) -> str:
    """Return the digest of some bytes in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, which may be larger than the memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, digest: str | None, content: bytes | None = None) -> None:
    """Refuse, by an InputError, a file (or the part `content` of one) without this digest."""
    if not path.is_file():
        raise InputError(f"{path} is missing; {DAMAGED}")
    if (file_digest(path) if content is None else sha256(content)) != digest:
        raise InputError(f"{path} is damaged: its content changed since it was written; {DAMAGED}")
