"""Files and folders that people give: read within bounds, or refused in one line."""

import json
import os
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError

from forever.errors import InputError, one_line, shown

_LONGEST_TEXT = 2**20  # characters of a field; a tokenizer takes a hundred bytes for each


def read_file(path: Path, most: int) -> bytes:
    """The content of a file.

    Raises:
        InputError: there is no such file, it cannot be read, or it has more than `most` bytes.
    """
    try:
        if not path.is_file():
            raise InputError(f"there is no file {path}")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    if len(content) > most:
        raise InputError(f"{path} has more than {most >> 10} KiB; that is too much to read")
    return content


def decode(content: bytes, path: Path, line: int = 1) -> str:
    """The text of a file, or of what begins in it at a line, without a mark of its byte order.

    Raises:
        InputError: it is not UTF-8; the message has the line.
    """
    if line == 1:
        content = content.removeprefix(BOM_UTF8)  # which some editors and spreadsheets write
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line += content.count(b"\n", 0, error.start)
        byte = content[error.start]
        raise InputError(
            f"{path}, line {line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"
        ) from None


def fault_of(text: str) -> str | None:
    """What makes a text one that cannot be stored or compared; None for nothing."""
    if "\0" in text:
        return "has a NUL character; remove it"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which is no character; remove it"
    return None


def path_of(text: str, setting: str) -> Path:
    """The path that a setting means, with the user's home for `~`.

    Raises:
        InputError: nobody of that name has a home.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"{setting}: there is no home folder for {shown(text)}") from None


def is_folder(path: Path) -> bool:
    """Whether a path is a folder; one that cannot be looked at, or not be named, is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


# ---- text and JSON


def check_text(text: str) -> str:
    """The text, if it can be stored, compared and tokenized.

    Raises:
        InputError: it has half a character or a NUL, or it has no end.
    """
    fault = fault_of(text)
    if len(text) > _LONGEST_TEXT:
        fault = f"has {len(text)} characters, of {_LONGEST_TEXT} that are read; cut it"
    if fault:
        raise InputError(fault)
    return text


Text = Annotated[str, AfterValidator(check_text)]


def parse_json(text: str, kind: TypeAdapter[Any], where: str) -> Any:
    """Read JSON that must hold `kind`; no name may occur twice in an object.

    Raises:
        InputError: it does not; the message has `where`, the place, the rule and the value.
    """
    try:
        return kind.validate_python(_DECODER.decode(text))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ", ".join([where, *(str(part) for part in problem["loc"])])
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise InputError(f"{place} {cause}") from None
        rule = problem["msg"][0].lower() + problem["msg"][1:]
        if problem["type"] == "model_type":
            rule = "input should be an object"
        raise InputError(f"{place}: {rule} ({shown(problem['input'])})") from None
    except json.JSONDecodeError as error:
        place = f"at line {error.lineno} column {error.colno}"
        raise InputError(f"{where}: invalid JSON: {error.msg} {place}") from None
    except _RefusedJsonError as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: the values are nested too deeply") from None


class _RefusedJsonError(Exception):
    """JSON that Python would read, and that nobody can mean."""


def _named(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object, whose names must differ: Python and others take the last of two."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise _RefusedJsonError(f"{shown(name)} occurs twice in an object")
    return fields


def _whole(digits: str) -> int:
    """A whole number, of which Python reads up to 4300 digits."""
    if len(digits) > 1000:
        raise _RefusedJsonError(f"a number of {len(digits)} digits is too long")
    return int(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_named, parse_int=_whole)


def check_within(folder: Path, path: Path) -> None:
    """Refuse a path in a folder that leads elsewhere, by an InputError."""
    try:
        leads_to = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a name with a NUL
        raise InputError(f"{path} leads nowhere ({one_line(error)}); remove it") from None
    if not leads_to.is_relative_to(folder.resolve()):
        raise InputError(f"{path} leads out of {folder}; put a copy in its place")


def check_links(folder: Path) -> None:
    """Refuse a folder with a link that leads out of it, by an InputError, whoever made it.

    What is read could be sent to a server, and what is written would land elsewhere. A pipe, which
    would be waited for, is refused as well.
    """
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            if path.is_symlink():
                check_within(folder, path)
            elif path.is_fifo():
                raise InputError(f"{path} is a pipe, not a file; remove it")
