"""Files of a run directory, read so that a damaged one is named."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from forever.errors import InputError
from forever.runs.directory import read_lines


def read_mapping(path: Path, parse: Any) -> Any:
    """The mapping in a file.

    Raises:
        InputError: it cannot be read or is not what its name says.
    """
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, Mapping):
        raise InputError(
            f"{path} cannot be read: it holds {type(content).__name__}, not named fields"
        )
    return content


def read_records(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return read_lines(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
