"""Files that others made: read within a limit, or refused in one line with their line."""

import gzip
import zlib
from codecs import BOM_UTF8
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from forever.errors import InputError, Missing, one_line, shown

Text = Annotated[str, Field(max_length=2**20)]  # a tokenizer takes a hundred bytes a character


def read_text(path: Path, most: int) -> str:
    """Return the text of a file, unpacked if it is gzipped, without a byte order mark.

    Raises:
        InputError: the file cannot be read, has more than `most` bytes or is not UTF-8.
        Missing: there is no such file.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(most + 1)
    except (FileNotFoundError, IsADirectoryError):
        raise Missing(f"{path} does not exist", path=path) from None
    except (OSError, ValueError, EOFError, zlib.error) as error:  # the last two of gzip
        raise InputError(f"{path} cannot be read ({one_line(error)})", path=path) from None
    if len(content) > most:
        raise too_large(path, most)
    content = content.removeprefix(BOM_UTF8)  # which some editors and spreadsheets write
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise InputError(f"{path}, line {line}: {problem}", path=path, line=line) from None


def too_large(path: Path, most: int) -> InputError:
    """Make the error for a file that has more than `most` bytes, unpacked."""
    return InputError(f"{path} is larger than {most >> 10} KiB, the limit", path=path)


def parse_json(text: str, kind: TypeAdapter[Any], path: Path, line: int | None = None) -> Any:
    """Return the value of JSON that must hold `kind`.

    Args:
        line: the line of the file that the text is, if it is not the whole file.

    Raises:
        InputError: the text is something else; the message has the file, the key and the value.
    """
    try:
        return kind.validate_json(text)
    except ValidationError as error:
        where = str(path) if line is None else f"{path}, line {line}"
        key, message = first_problem(error, where)
        raise InputError(message, key=key, path=path, line=line) from None


def first_problem(error: ValidationError, where: str) -> tuple[str, str]:
    """Return the key of the first problem, and a line with the place, the rule and the value."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if key:
        where = f"{where}, {key}"
    rule = problem["msg"][0].lower() + problem["msg"][1:]
    value = "" if problem["type"] == "json_invalid" else f" ({shown(problem['input'])})"
    if problem["type"] == "string_type":
        value += "; write it as text"
    return key, f"{where}: {rule}{value}"


def path_of(text: str, setting: str) -> Path:
    """Return the path that a setting names, with the user's home for `~`."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        message = f"{setting}: {shown(text)} names an unknown user"
        raise InputError(message, key=setting) from None


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder; a path that cannot exist is not."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
