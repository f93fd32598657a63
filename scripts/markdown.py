"""Tables of Markdown for pages that are written from data."""

import re
from collections.abc import Iterable, Sequence
from typing import Any


def table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Format a table, whose cells have no bar and no line break of their own."""
    lines = [" | ".join(columns), " | ".join(["---"] * len(columns))]
    lines += [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


_PAGE = re.compile(r"\bdocs/([\w/-]+)\.md(#[\w-]+)?")
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def head(names: Sequence[str]) -> str:
    """The first two lines of a table."""
    return row(names) + "|---" * len(names) + "|\n"


def row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |\n"


def text(description: str | None) -> str:
    """A docstring as a cell: in one line, no bar of its own, no markup outside of code, and with
    links where it names pages of docs/."""
    parts = " ".join((description or "").split()).replace("|", "\\|").split("`")
    for place in range(0, len(parts), 2):
        part = parts[place].replace("&", "&amp;").replace("<", "&lt;")
        parts[place] = _PAGE.sub(r"[\1](../\1.md\2)", part)
    return "`".join(parts)


def allowed(field: dict[str, Any]) -> str:
    """Say which values a field takes, from its bounds or its choices in a JSON schema."""
    if field.get("type") == "boolean":
        return "true, false"
    values: list[str] = []
    for part in [field, *field.get("anyOf", ()), *field.get("prefixItems", ())]:
        for bound, sign in _BOUNDS.items():
            if bound in part:
                values.append(f"{sign} {part[bound]:g}")
        values += part.get("enum", [part["const"]] if "const" in part else [])
    return ", ".join(dict.fromkeys(values))
