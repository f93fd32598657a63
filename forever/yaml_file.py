"""YAML 1.2 as people write it: `yes` is text, 010 is ten and 1e-3 is a number.

PyYAML reads YAML 1.1. Here its loader gets the rules of YAML 1.2's core schema, so that a plain
value means what it means in JSON; a key that occurs twice is an error.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from forever.errors import InputError, one_line, shown
from forever.reading import read_text

SUFFIXES = (".yaml", ".yml")
_LONGEST = 2**17  # bytes of a file that somebody writes
_DEEPEST = 100  # levels of nesting; libyaml sets no limit, and 20,000 overflow the stack
# The core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema): the type of a plain
# value, its pattern, and the characters that it may begin with.
_TYPES = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is six times as fast


class _Loader(_Base):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def build(self, node: yaml.Node, key: str, lines: dict[str, int]) -> Any:
        """Return the value of a node, and note the line of each key below it in `lines`."""
        below = f"{key}." if key else ""
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                lines[f"{below}{number}"] = item.start_mark.line + 1
            return [self.build(item, f"{below}{i}", lines) for i, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return self.construct_object(node)
        values: dict[str, Any] = {}
        for name_node, item in node.value:
            name, mark = self.construct_object(name_node), name_node.start_mark
            if not isinstance(name, str):
                problem = f"the key {shown(name)} must be text; put it in quotes"
                raise ConstructorError(None, None, problem, mark)
            if name in values:
                raise ConstructorError(None, None, f"{shown(name)} occurs twice", mark)
            lines[f"{below}{name}"] = mark.line + 1
            values[name] = self.build(item, f"{below}{name}", lines)
        return values


for _name, (_pattern, _first) in _TYPES.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_pattern})\\Z"), _first
    )
_Loader.add_constructor(
    "tag:yaml.org,2002:int",
    lambda _, node: int(node.value, 16 if node.value.startswith("0x") else 10),
)


@dataclass
class YamlFile:
    """The content of a file, and the line of each key and list item by its dotted key."""

    path: Path
    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "YamlFile":
        """Read a file that holds a mapping.

        Raises:
            InputError: the file is missing, not YAML, or holds something else.
        """
        file = cls(path, read_text(path, _LONGEST))
        file.values = _load(file.text, path, file.lines)
        if not isinstance(file.values, dict):
            kind = type(file.values).__name__
            raise InputError(f"{path} must hold keys and values; it holds a {kind}", path=path)
        return file

    def located(self, error: InputError, *place: str) -> InputError:
        """Return the error with the file and line of its key below `place`, or of the nearest key
        above that the file has; of the keys below that one, the one that the message quotes."""
        key = ".".join(part for part in (*place, error.key) if part)
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        line, below = self.lines.get(key, 1), f"{key}." if key else ""
        for other, its_line in self.lines.items():
            if other.startswith(below) and repr(other.removeprefix(below)) in str(error):
                line = its_line
        message = f"{self.path}, line {line}: {error}"
        return InputError(message, key=error.key, path=self.path, line=line)


def read_value(text: str) -> Any:
    """Return the value of a text such as `[1, 2, 4]`; InputError if it is not valid YAML."""
    return _load(text, None, {})


def _load(text: str, path: Path | None, lines: dict[str, int]) -> Any:
    """Return the value of a text, and note the line of each key in `lines`."""
    depth = 0
    try:
        for event in yaml.parse(text, _Loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                problem = f"values are nested more than {_DEEPEST} levels deep"
                raise ConstructorError(None, None, problem, event.start_mark)
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else loader.build(node, "", lines)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = error.problem
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # A character that YAML does not allow, or an alias of a value within that value.
        line, problem = 1, one_line(error)
    where = f"{path}, line {line}: " if path else ""
    raise InputError(f"{where}not valid YAML ({problem})", path=path, line=line)


def to_yaml(value: Any, **layout: Any) -> str:
    """Return text that `YamlFile` reads as the value; `layout` is PyYAML's, such as `width`."""
    return yaml.dump(value, Dumper=_Writer, sort_keys=False, **layout)


class _Writer(yaml.SafeDumper):
    """Writes what YAML 1.1 and 1.2 read alike, and text of several lines as a block."""


def _represent(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # 1e3 and 08 are text for YAML 1.1 only.
    style = "'" if text[:1] in "+-.0123456789" else None
    if "\n" in text:
        style = "|"
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _represent)
