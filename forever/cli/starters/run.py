"""A run's YAML in which every key stands, with what it means, its default and where that is from.

It is made of the configuration's own classes, so it says what the code says.
"""

import math
import textwrap
import typing
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from forever.config.methods import METHOD_CONFIGS
from forever.config.run import RunConfig
from forever.yaml_file import to_yaml

_WIDTH = 96


def run_text(config: RunConfig, name: str) -> str:
    """The text of a file that is the run `config`; `name` is that of the file."""
    lines = [
        f"# A run: forever run {name}",
        f"# What it costs: forever plan {name}; what the model sees: forever data check {name}",
        "#",
        "# A line may be left out: then its default holds, which is the paper's unless a comment",
        '# says otherwise. A key is changed on the command line, too: "optim.lr=1e-3".',
    ]
    for part, field in RunConfig.model_fields.items():
        value = getattr(config, part)
        if isinstance(value, BaseModel):
            lines += ["", *_section(part, value)]
        else:
            lines += ["", *_entry(part, field, value, "")]
    return "\n".join(lines) + "\n"


def _section(part: str, settings: BaseModel) -> Iterator[str]:
    """The lines of a part of the configuration."""
    kind = type(settings)
    if part == "method":
        yield from comment(f"The method. There are: {', '.join(METHOD_CONFIGS)} (docs/methods.md).")
    about = (kind.__doc__ or "").split("\n\n")[0]
    if "name" not in kind.model_fields or part == "model":
        yield from comment(about)
    yield f"{part}:"
    for name, field in kind.model_fields.items():
        yield from _entry(name, field, getattr(settings, name), "  ")


def _entry(name: str, field: FieldInfo, value: Any, indent: str) -> Iterator[str]:
    """The comment of a key, and the key with its value, its other values and its default."""
    if field.description:
        yield from comment(field.description, indent)
    notes: list[str] = []
    default = field.get_default(call_default_factory=True)
    if typing.get_origin(field.annotation) is Literal and name != "name":
        others = [str(choice) for choice in typing.get_args(field.annotation) if choice != value]
        notes.append(f"or {', '.join(others)}")
    if value != default and (name != "name" or isinstance(default, str)):
        notes.append(f"default {as_yaml(default)}")
    note = f"  # {'; '.join(notes)}" if notes else ""
    yield f"{indent}{name}: {as_yaml(value)}{note}"


def comment(text: str, indent: str = "") -> list[str]:
    """A text as lines of comment."""
    words = " ".join(text.split())
    return textwrap.wrap(
        words, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
    )


def as_yaml(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, tuple):
        value = list(value)
    text = to_yaml(value, default_flow_style=True, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").rstrip("\n")  # the end of a document that is one word
