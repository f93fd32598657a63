"""A run's YAML with every key, its meaning and its default, from the configuration's classes."""

import math
import textwrap
from typing import Any

from pydantic import BaseModel

from forever.config.methods import METHOD_CONFIGS
from forever.config.run import RunConfig
from forever.yaml_file import to_yaml

_HEAD = """\
# A run: forever run {file}
# What it costs: forever plan {file}; what the model sees: forever data check {file}
#
# A line may be left out: then its default holds, which is the paper's unless a comment says
# otherwise. A key can be changed on the command line, too: "optim.lr=1e-3".
"""


def run_text(config: RunConfig, file: str) -> str:
    """The text of a file that is the run `config`; `file` is its name."""
    lines = _HEAD.format(file=file).splitlines()
    for part in type(config).model_fields:
        section = getattr(config, part)
        lines.append("")
        if not isinstance(section, BaseModel):
            lines += _entry(config, part, "")
            continue
        about = (type(section).__doc__ or "").partition("\n\n")[0]
        if part == "method":
            about = f"The method: {', '.join(METHOD_CONFIGS)} (docs/methods.md)."
        lines += [*_comment(about, ""), f"{part}:"]
        for name in type(section).model_fields:
            lines += _entry(section, name, "  ")
    return "\n".join(lines) + "\n"


def _entry(section: BaseModel, name: str, indent: str) -> list[str]:
    """The comment of a key, and the key with its value and its default."""
    field, value = type(section).model_fields[name], getattr(section, name)
    default = field.get_default(call_default_factory=True)
    note = ""
    if value != default and not field.is_required():
        note = f"  # default {as_yaml(default)}"
    return [*_comment(field.description or "", indent), f"{indent}{name}: {as_yaml(value)}{note}"]


def _comment(text: str, indent: str) -> list[str]:
    """A text as lines of comment."""
    head = f"{indent}# "
    words = " ".join(text.split())
    return textwrap.wrap(words, 96, initial_indent=head, subsequent_indent=head)


def as_yaml(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, tuple):
        value = list(value)
    text = to_yaml(value, default_flow_style=True, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").rstrip("\n")  # the end of a document that is one word
