"""Whether a schedule is worth more than chance: one that does not beat replays at random times is
no schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from forever.planning.sequential import half_width
from forever.planning.verdicts import Verdict, verdict
from forever.report.bootstrap import Estimate
from forever.report.row import Row
from forever.report.statistics import compare
from forever.report.study import Part

_WHEN = ("method.days", "method.clock")
_NO_DAYS = ("random", "end_only", None)  # of `method.days`


def beyond_chance(part: Part) -> dict[str, dict[str, Any]]:
    """OP of each schedule less that of as much replay at random times (`method.days: random`), by
    the names of both.

    A schedule differs from that control in nothing but its days and its clock, and replays as much.
    Verdicts are corrected for all `schedules` that have the same control, and there is none from a
    single run; of a sweep in rounds they hold however often one looks
    (forever/planning/sequential.py).
    """
    told: dict[str, dict[str, Any]] = {}
    for control in part.measured:
        if control.runs[0].settings.get("method.days") != "random":
            continue
        schedules = [row for row in part.measured if _is_schedule_beside(row, control)]
        runs = {row.variant: row.matrices() for row in (control, *schedules)}
        compared = compare(runs, control.variant)
        for row in schedules:
            difference, judged = compared[row.variant].difference, compared[row.variant].verdict
            if difference is None:
                continue
            # There may be runs that pair and no seed that does so in all orders.
            values, step = row.differences(control)
            if part.stopping is not None and values:
                half = half_width(values, part.stopping["alpha"] / len(schedules), step)
                difference, judged = _however_often(values, half)
            name = f"{row.variant} less {control.variant}"
            ours = {"difference": asdict(difference), "verdict": judged}
            told[name] = {**ours, "schedules": len(schedules)}
    return told


def _however_often(differences: Sequence[float], half_width: float) -> tuple[Estimate, Verdict]:
    """The mean of differences in points with its interval, and what that says."""
    value = fmean(differences)
    low, high = max(value - half_width, -100.0), min(value + half_width, 100.0)
    shown = low > 0 or high < 0
    return Estimate(value, low, high, len(differences)), verdict(value, low, high, shown)


def _is_schedule_beside(row: Row, control: Row) -> bool:
    """Whether a variant is a schedule that differs from the control in its times only."""
    if row.runs[0].settings.get("method.days") in _NO_DAYS:
        return False
    return _beside_times(row) == _beside_times(control) and row.footing_beside(control).comparable


def _beside_times(row: Row) -> dict[str, Any]:
    """The settings of a variant but for those of its times, of its data and of its seed."""
    kept: dict[str, Any] = {}
    for key, value in row.runs[0].settings.items():
        if key not in (*_WHEN, "seed") and not key.startswith("data."):
            kept[key] = value
    return kept
