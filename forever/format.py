"""Durations, counts and tables as people read them, spelled in one place."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def duration(seconds: float | None) -> str:
    """A time in two or three digits: "-" (unknown), "45 s", "12 min", "3.5 h"."""
    if seconds is None:
        return "-"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 5970:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def plural(count: int, noun: str) -> str:
    """A count with its noun: "1 GPU", "2 workers"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
