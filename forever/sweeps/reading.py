"""YAML files whose mistakes are said with their line."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from forever.errors import InputError

SUFFIXES = (".yaml", ".yml")


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
            InputError: there is no such file, or it holds something else, or a key twice.
        """
        if not path.is_file():
            raise InputError(f"there is no file {path}")
        text = path.read_text(encoding="utf-8")
        try:
            tree, values = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
        if not isinstance(values, dict):
            kind = type(values).__name__
            raise InputError(f"{path} must hold keys and values, as a mapping; it holds a {kind}")
        file = cls(path, text, values)
        file._find_lines(tree, ())
        return file

    def _find_lines(self, node: Any, place: tuple[str, ...]) -> None:
        """Note the line of every key, and refuse one that occurs twice: YAML takes the last."""
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[(*place, str(index))] = item.start_mark.line + 1
                self._find_lines(item, (*place, str(index)))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                path, line = (*place, key.value), key.start_mark.line + 1
                if path in self.lines:
                    raise InputError(f"{self.path}, line {line}: {key.value!r} occurs twice")
                self.lines[path] = line
                self._find_lines(value, path)

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
