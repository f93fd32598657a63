"""Curves over doses: what differs in nothing but how much is replayed, and the area under them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile

from forever.report.row import Row
from forever.report.study import Part
from forever.stats.bootstrap import Estimate, Runs
from forever.stats.compare import over_logarithm

# In what runs of one line of doses differ; the first is the dose.
ALONG_DOSES = ("budget.examples", "memory.fraction")


def dose_lines(part: Part) -> dict[str, list[Row]]:
    """The variants that differ in nothing but the dose, by rising dose, under the words with which
    their names begin; none where all have one dose."""
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in part.measured:
        settings = dict(row.runs[0].settings)
        along = [settings.pop(key, None) for key in ALONG_DOSES]
        if along[0] is not None:
            lines[json.dumps(settings, sort_keys=True)].append(row)
    by_name: dict[str, list[Row]] = {}
    for rows in lines.values():
        rows.sort(key=dose_of)
        columns = zip(*[row.variant.split() for row in rows], strict=False)
        words = [column[0] for column in takewhile(lambda column: len({*column}) == 1, columns)]
        name = " ".join(words)
        if not name or name in by_name:
            name = rows[0].variant
        by_name[name] = rows
    return {name: rows for name, rows in by_name.items() if dose_of(rows[0]) < dose_of(rows[-1])}


def dose_of(row: Row) -> int:
    """The examples that a task replays, as the configuration says."""
    return row.runs[0].settings[ALONG_DOSES[0]]


def line_of(variant: str | None, lines: Mapping[str, Sequence[Row]]) -> str | None:
    """The name of the line that a variant is in."""
    for name, rows in lines.items():
        if any(row.variant == variant for row in rows):
            return name
    return None


def dose_areas(part: Part) -> dict[str, dict[str, Estimate]]:
    """The mean OP and BWT of each line over the logarithm of the dose; see `over_logarithm`.

    Lines that lack one of the doses, over which they would be other means, are left out.
    """
    lines = dose_lines(part)
    doses = {dose_of(row) for rows in lines.values() for row in rows}
    curves: dict[str, dict[float, Runs]] = {}
    for name, rows in lines.items():
        if [dose_of(row) for row in rows] == sorted(doses):
            curves[name] = {dose_of(row): row.matrices() for row in rows}
    return over_logarithm(curves, line_of(part.reference, lines))
