"""How numbers, settings and lists are written, the same in tables, captions and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from forever.stats.bootstrap import Estimate

NOTHING = "–"


def minus(text: str) -> str:
    """A written number with true minus signs instead of hyphens."""
    return text.replace("-", "−")


def number(value: float | None, form: str) -> str:
    """A number with a true minus and no sign before zero; a dash where there is none."""
    if value is None:
        return NOTHING
    text = form.format(value)
    is_zero = float(text.replace(",", "")) == 0
    return text.lstrip("+-") if is_zero else minus(text)


def estimated(estimate: Estimate | None, form: str) -> str:
    """A number and its interval."""
    if estimate is None:
        return NOTHING
    low, high = number(estimate.low, form), number(estimate.high, form)
    return f"{number(estimate.value, form)} [{low}, {high}]"


def listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values)) or NOTHING


def setting(value: Any) -> str:
    """A setting as a person would write it."""
    if isinstance(value, list):
        return ", ".join(map(setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of its first place, without None."""
    return [value for value in dict.fromkeys(values) if value is not None]


def markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], align: Sequence[str] = ()
) -> list[str]:
    """The lines of a Markdown table. `align`: "---" (the default), ":---" or "---:" a column."""
    lines: list[str] = []
    for row in (head, *rows):
        cells = [cell.replace("|", "\\|") or NOTHING for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    rules = "|".join(align or ["---"] * len(head))
    return [lines[0], f"|{rules}|", *lines[1:]]
