"""YAML that people write, read as JSON is meant: null, true, false, numbers, text, lists, mappings.

What YAML 1.1 understands in its own way (`yes` is true, 010 is 8, 1:30 is 90, the last of two equal
keys counts) is refused, and so is what could take memory or time without end.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yaml.composer import ComposerError

from forever.errors import InputError, shown
from forever.reading import decode, fault_of, read_file

SUFFIXES = (".yaml", ".yml")
_LONGEST_YAML = 2**17  # bytes, for which PyYAML takes up to two seconds
_LONGEST_OURS = 2 * _LONGEST_YAML  # characters of a run's configuration, with all defaults
_DEEPEST = 30  # levels of values in values
_MOST_VALUES = 20_000  # with what aliases repeat
_LONGEST_NUMBER = 100  # digits
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+|0b[01]+)")
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")  # text for YAML 1.1, as in 1e-3
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")  # YAML 1.1 reads 010 as 8, and 08 as text


@dataclass
class YamlFile:
    """What a file says; `lines` has the line of each key, by the keys that lead to it."""

    path: Path
    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "YamlFile":
        """Read a file that holds keys and values.

        Raises:
            InputError: there is no such file, or it holds something else, or what is refused.
        """
        text = decode(read_file(path, _LONGEST_YAML), path)
        reader = _Reader(path)
        values = reader.read(text)
        if not isinstance(values, dict):
            kind = type(values).__name__
            raise InputError(f"{path} must hold keys and values, as a mapping; it holds a {kind}")
        return cls(path, text, values, reader.lines)

    def where(self, place: tuple[str, ...], message: str) -> str:
        """The file and the line of a place, or of the key below it that a message names."""
        while place and place not in self.lines:
            place = place[:-1]
        line = self.lines.get(place, 1)
        for path, key_line in self.lines.items():
            named = message.startswith(f"{path[-1]}=") or repr(path[-1]) in message
            if path[:-1] == place and named:
                line = key_line
        return f"{self.path}, line {line}: "

    def where_named(self, message: str) -> str:
        """The file and the line of the key that a message begins with, or quotes, with its dots."""
        named: tuple[str, ...] = ()
        for path in self.lines:
            key = ".".join(path)
            begins = message.startswith((f"{key}=", f"{key}:", f"{key}."))
            if len(path) > len(named) and (begins or repr(key) in message):
                named = path
        return f"{self.path}, line {self.lines.get(named, 1)}: "


def read_value(text: str) -> Any:
    """The value that a text such as `[1, 2, 4]` is in YAML; InputError as for a file."""
    return _Reader().read(text)


def to_yaml(value: Any, **layout: Any) -> str:
    """Text that `YamlFile` reads as the value; `layout` is PyYAML's, such as `width`."""
    return yaml.dump(value, Dumper=_Writer, sort_keys=False, **layout)


class _Writer(yaml.SafeDumper):
    """Puts text in quotes that begins like a number: 1e3 and 08 are text for YAML 1.1 only.

    Text of several lines is a block, as one would write it.
    """


def _written(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if text[:1] in "+-.0123456789" else None
    if "\n" in text:
        style = "|"
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _written)


class _Composer(yaml.SafeLoader):
    """Makes a tree of nodes, which must not be so deep that functions call themselves too often."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            mark = self.peek_event().start_mark
            raise ComposerError(None, None, f"values in values, more than {_DEEPEST} times", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Reader:
    """Values from the nodes of one document, with the line of each key and each item."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.lines: dict[tuple[str, ...], int] = {}
        self._count = 0

    def read(self, text: str) -> Any:
        if len(text) > _LONGEST_YAML:
            raise InputError(f"{len(text)} characters are too much to read as YAML")
        try:
            self._loader = _Composer(text)
            node = self._loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            self._refuse(line, f"not valid YAML ({error.problem})")
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            self._refuse(line, f"not valid YAML ({error.reason})")
        return None if node is None else self._value(node, ())

    def _refuse(self, line: int, problem: str) -> NoReturn:
        place = f"{self.path}, line {line}: " if self.path else ""
        raise InputError(place + problem)

    def _value(self, node: Any, place: tuple[str, ...]) -> Any:
        line = node.start_mark.line + 1
        self._count += 1
        # An alias repeats what it stands for, which may have aliases in it.
        if self._count > _MOST_VALUES or len(place) > _DEEPEST:
            self._refuse(line, f"more than {_MOST_VALUES} values, or more than {_DEEPEST} levels")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, line)
        kind = node.tag.rpartition(":")[2]
        if kind not in ("seq", "map"):
            self._refuse(line, f"the tag {shown(node.tag)} is not read; leave it out")
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*place, str(i))) for i, item in enumerate(node.value)]
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            key = self._key(key_node, key_line)
            if key in values:
                self._refuse(key_line, f"{shown(key)} occurs twice")
            self.lines[(*place, key)] = key_line
            values[key] = self._value(value_node, (*place, key))
        return values

    def _item(self, node: Any, place: tuple[str, ...]) -> Any:
        self.lines[place] = node.start_mark.line + 1
        return self._value(node, place)

    def _key(self, node: Any, line: int) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._refuse(line, "a key must be text, not a list or a mapping")
        if node.tag.endswith(":merge"):
            self._refuse(line, "keys are not merged by <<; write them out")
        key = self._scalar(node, line)
        if not isinstance(key, str):
            self._refuse(line, f"the key {node.value} must be text; put it in quotes")
        return key

    def _scalar(self, node: Any, line: int) -> Any:
        text, kind = node.value, node.tag.rpartition(":")[2]
        plain = node.style is None
        meant = "tag:yaml.org,2002:str"
        if plain:
            meant = self._loader.resolve(yaml.ScalarNode, text, (True, False))
        if node.tag != meant:
            self._refuse(line, f"the tag {shown(node.tag)} is not read; leave it out")
        if fault := fault_of(text):
            self._refuse(line, f"{shown(text)} {fault}")
        if kind == "null":
            return None
        if kind == "bool":
            return self._truth(text, line)
        if plain and _EXPONENT.fullmatch(text) and len(text) <= _LONGEST_NUMBER:
            return float(text)
        if kind in ("int", "float") or (plain and _LEADING_ZERO.fullmatch(text)):
            return self._number(node, kind, line)
        return text  # also what would be a date

    def _truth(self, text: str, line: int) -> bool:
        word = text.lower()
        if word not in ("true", "false"):
            meant = "true" if word in ("yes", "on") else "false"
            self._refuse(line, f"{text} has two meanings; write {meant}, or {text!r} in quotes")
        return word == "true"

    def _number(self, node: yaml.ScalarNode, kind: str, line: int) -> int | float:
        text = node.value
        if len(text) > _LONGEST_NUMBER:
            self._refuse(line, f"a number of {len(text)} characters is too long")
        if kind == "int" and _INTEGER.fullmatch(text):
            return int(text.replace("_", ""), 0)
        if kind == "float" and ":" not in text:
            try:
                return self._loader.construct_yaml_float(node)
            except ValueError:
                self._refuse(line, f"{text} is no number; put it in quotes if it is text")
        meanings = f"{text} has two meanings; write it as a decimal number, or {text!r} in quotes"
        return self._refuse(line, meanings)


# ---- what we wrote


# Six times as fast with libyaml, which PyYAML's wheels have, and the same for what we write.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def safe_load(text: str) -> Any:
    """What YAML of ours says, if reading it takes seconds and not minutes.

    Aliases are refused, since a few of them can stand for billions of values, and so is what is so
    deep that functions would call themselves too often. We write neither.

    Raises:
        yaml.YAMLError: it is refused, or no YAML.
    """
    if len(text) > _LONGEST_OURS:
        raise yaml.YAMLError(f"{len(text)} characters, and {_LONGEST_OURS} are read")
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("an alias is not allowed here")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"values in values, more than {_DEEPEST} times")
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
