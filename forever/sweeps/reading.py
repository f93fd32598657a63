"""YAML files whose mistakes are said with their line."""

from pathlib import Path
from typing import Any

import yaml

from forever.errors import InputError

Lines = dict[tuple[str, ...], int]


def read_yaml(path: Path) -> tuple[dict[str, Any], Lines]:
    """What a YAML file says, and on which line each of its keys stands.

    Raises:
        InputError: there is no such file, or it holds something else.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        text = path.read_text(encoding="utf-8")
        tree, values = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise InputError(f"{path} must hold keys and values, as a mapping; it holds a {kind}")
    lines: Lines = {}
    _find_lines(tree, (), lines, path)
    return values, lines


def _find_lines(node: Any, place: tuple[str, ...], lines: Lines, path: Path) -> None:
    """Note the line of every key, and refuse a key that occurs twice: YAML would take the last."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*place, str(index))] = item.start_mark.line + 1
            _find_lines(item, (*place, str(index)), lines, path)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            if (*place, key.value) in lines:
                raise InputError(f"{path}, line {line}: {key.value!r} occurs twice")
            lines[(*place, key.value)] = line
            _find_lines(value, (*place, key.value), lines, path)
