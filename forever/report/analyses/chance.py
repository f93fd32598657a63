"""Whether a schedule is worth more than chance: one that does not beat replays at random times is
no schedule."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from forever.report.row import Row, decided_difference
from forever.report.study import Part
from forever.stats.compare import compare
from forever.stats.sequential import decide

_WHEN = ("method.days", "method.clock")
_NO_DAYS = ("random", "end_only", None)  # of `method.days`


def controls(part: Part) -> list[Row]:
    """The variants that replay at random times (`method.days: random`)."""
    return [row for row in part.measured if row.runs[0].settings.get("method.days") == "random"]


def beyond_chance(part: Part) -> dict[str, dict[str, Any]]:
    """OP of each schedule less that of as much replay at random times, by the names of both.

    A schedule differs from that control in nothing but its days and its clock, and replays as much.
    Verdicts hold for `together` comparisons: the schedules that have the same control, or,
    in a sweep in rounds, as many as its own (`rounds.json`), whose rule and level are used. There
    is none from a single run.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for control in controls(part):
        schedules = [row for row in part.measured if _is_schedule_beside(row, control)]
        runs = {row.variant: row.matrices() for row in (control, *schedules)}
        compared = compare(runs, control.variant)
        for row in schedules:
            difference, judged = compared[row.variant].difference, compared[row.variant].verdict
            if difference is None:
                continue
            together = len(schedules)
            if part.stopping is not None and judged is not None:
                together = part.stopping["comparisons"]
                values, step = row.differences(control)
                alpha = part.stopping["alpha"] / together
                decision = decide(values, alpha, part.stopping["points"], step)
                difference, judged = decided_difference(decision, difference)
            ours = {"difference": asdict(difference), "verdict": judged, "together": together}
            by_name[f"{row.variant} less {control.variant}"] = ours
    return by_name


def _is_schedule_beside(row: Row, control: Row) -> bool:
    """Whether a variant is a schedule that differs from the control in its times only."""
    if row.runs[0].settings.get("method.days") in _NO_DAYS:
        return False
    return _beside_times(row) == _beside_times(control) and row.footing_beside(control).comparable


def _beside_times(row: Row) -> dict[str, Any]:
    """The settings of a variant but for those of its times."""
    return {key: value for key, value in row.runs[0].settings.items() if key not in _WHEN}
