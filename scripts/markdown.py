"""Tables of Markdown for pages that are written from data."""

from collections.abc import Iterable, Sequence
from typing import Any


def table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Format a table, whose cells have no line break of their own."""
    text = "| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|\n"
    for row in rows:
        text += "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |\n"
    return text
