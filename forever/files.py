"""Files that are there as a whole or not at all, and whose damage is noticed.

The file SHA256SUMS of a folder has a line for everything that a file of the folder was written
with, in the format of `sha256sum`. A line comes before its file, so that a file without one was
never written, whenever the process is killed. A file that is written again has several.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, FailFast, ValidationError
from safetensors import SafetensorError

from forever.errors import InputError, one_line, shown

SUMS = "SHA256SUMS"
# A line of it. No name leads out of the folder.
_SUM = re.compile(r"([0-9a-f]{64})  ((?:(?!\.\./)[\w.-]+/)*(?!\.\.?$)[\w.-]+)")
DAMAGED = "take it from a backup, or run again into another --out"
Sums = Mapping[str, set[str]]  # by name, relative to the folder: what a file may hold
T = TypeVar("T")
# All bad fields of a mapping would be named, which takes gigabytes for a million.
_MOST_FIELDS = 10_000
_KINDS = ("str", "list[str]", "float", "bool")
# The first of a list's million bad entries is enough.
Entries = Annotated[list[T], FailFast()]


class WriteError(InputError):
    """A file cannot be written: the disk is full, the folder is read-only, a file is in the way."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line that `path` cannot be written, and why, by a WriteError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise WriteError(
            f"{path} cannot be written ({reason or one_line(error)}); make room there, or give "
            "another folder; the same command goes on (a run: with --resume)"
        ) from None


# ---- reading


def read_bytes(path: Path) -> bytes:
    """The content of a file; InputError if it is not there or cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is missing; {DAMAGED}") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise InputError(f"{path} cannot be read ({one_line(error)}); {DAMAGED}") from None


def decoded(place: Path | str, content: bytes, parse: Callable[[str], T]) -> T:
    """What a file's content means; InputError, which names the place, if it means nothing."""
    try:
        return parse(content.decode("utf-8"))
    except RecursionError:
        raise InputError(f"{place} cannot be read (nested too deeply); {DAMAGED}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{place} cannot be read ({one_line(error)}); {DAMAGED}") from None


def as_fields(place: Path | str, content: bytes, parse: Callable[[str], Any] = json.loads) -> Any:
    """The named fields in a file; InputError if it holds anything else."""
    fields = decoded(place, content, parse)
    if not isinstance(fields, dict):
        kind = type(fields).__name__
        raise InputError(f"{place} cannot be read: it holds {kind}, not named fields; {DAMAGED}")
    return fields


def as_lines(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, without a last line that was cut off."""
    # Not splitlines: it also breaks at U+2028 and others, which JSON leaves inside of a text.
    lines = content.split(b"\n")[:-1]
    return [as_fields(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; InputError if it is damaged."""
    return as_fields(path, read_bytes(path))


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` wrote; earlier releases sealed nothing. InputError if it is damaged."""
    fields = read_json(path)
    if fields.pop("sha256", None) not in (None, _seal(fields)):
        raise InputError(f"{path} is not what was written; {DAMAGED}")
    return fields


def _seal(fields: Mapping[str, Any]) -> str:
    return sha256(json.dumps(fields, sort_keys=True).encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, if it exists, without a last line that was cut off."""
    return as_lines(path, read_bytes(path)) if path.is_file() else []


def last_line(path: Path) -> dict[str, Any] | None:
    """The last complete object of a JSON-lines file, if there is one."""
    lines = read_bytes(path).split(b"\n")[:-1] if path.is_file() else []
    return as_fields(path, lines[-1]) if lines else None


class Shape(BaseModel):
    """Of which kinds the fields of a file are; it may have others besides."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


def shaped(path: Path | str, content: dict[str, Any], shape: type[Shape]) -> dict[str, Any]:
    """The content of a file whose fields are of the kinds that `shape` says; else InputError."""
    if (count := _most_fields(content)) > _MOST_FIELDS:
        raise InputError(f"{path} has {count} fields in one place, and {_MOST_FIELDS} are read")
    try:
        shape.model_validate(content)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        # Of a field that may be one of several kinds, the last name is that of a kind.
        place = ".".join(str(name) for name in problem["loc"] if name not in _KINDS)
        raise InputError(f"{path} has a strange field {shown(place)} ({problem['msg']})") from None
    return content


def _most_fields(content: Any, levels: int = 5) -> int:
    """The most fields that a mapping has, of those that the content is or holds."""
    if not levels or not isinstance(content, dict | list):
        return 0
    inner = content.values() if isinstance(content, dict) else content
    own = len(content) if isinstance(content, dict) else 0
    return max([own, *[_most_fields(part, levels - 1) for part in inner]])


# ---- writing


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON-lines file as a whole."""
    write_text(path, json_lines(records))


def write_sealed(path: Path, fields: Mapping[str, Any]) -> None:
    """Write an object with its own digest, since others than the folder's holder write it, too."""
    write_text(path, json.dumps({**fields, "sha256": _seal(fields)}) + "\n")


def json_lines(records: Iterable[Mapping[str, Any]]) -> str:
    """The text of a JSON-lines file."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


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


# ---- sums


def sha256(content: bytes) -> str:
    """The digest of some bytes in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def read_sums(folder: Path) -> Sums | None:
    """The lines of a folder's SHA256SUMS; None for a folder of a release that wrote none."""
    path = folder / SUMS
    if not path.is_file():
        return None
    sums: dict[str, set[str]] = {}
    for line in read_bytes(path).decode("utf-8", errors="replace").split("\n"):
        if parts := _SUM.fullmatch(line):  # a torn line is none
            sums.setdefault(parts[2], set()).add(parts[1])
    return sums


def note(folder: Path, contents: Mapping[str, bytes], durable: bool = True) -> None:
    """Write down what files of a folder hold, or are about to, by name: all of it or nothing."""
    path, sums = folder / SUMS, read_sums(folder) or {}
    lines = ""
    for name, content in contents.items():
        digest = sha256(content)
        if digest not in sums.get(name, ()):
            lines += f"{digest}  {name}\n"
    if not lines:
        return
    with writing(path):
        make_folder(folder)
        new = not path.is_file()
        torn = not new and not path.read_bytes().endswith(b"\n")
        with path.open("ab") as file:
            file.write(b"\n" * torn + lines.encode())
        if durable:
            sync(path)
        if new:
            sync(folder)


def write_noted(folder: Path, name: str, text: str, durable: bool = True) -> None:
    """Write a file of a folder, after its line in SHA256SUMS; `durable` as in `write_bytes`."""
    path = folder / name
    if path.is_file() and name not in (read_sums(folder) or {}):
        # Of a release that wrote no sums: it counts until it is replaced.
        note(folder, {name: read_bytes(path)})
    note(folder, {name: text.encode("utf-8")}, durable)
    write_text(path, text, durable)


def read_noted(folder: Path, name: str, sums: Sums | None) -> bytes:
    """The content of a file of a folder; InputError if it is not what was written there.

    Args:
        sums: of the folder; None if its files have none.
    """
    path, content = folder / name, read_bytes(folder / name)
    if sums is None or sha256(content) in sums.get(name, ()):
        return content
    sums = read_sums(folder) or {}  # somebody may have written since
    if sha256(content) in sums.get(name, ()):
        return content
    if name in sums:
        raise InputError(f"{path} is damaged: it is not what {SUMS} says; {DAMAGED}")
    raise InputError(f"{path} has no line in {SUMS}, which is damaged; {DAMAGED}")


def check_noted(folder: Path, complete: bool) -> None:
    """Refuse a folder with a file that is not what was written there, by an InputError; also one
    that lacks a file, if it is `complete`."""
    sums = read_sums(folder)
    for name in sums or ():
        if complete or (folder / name).is_file():
            read_noted(folder, name, sums)
