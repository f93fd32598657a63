"""The findings of a report that are no score of a variant as text: what, ours, published, and from
how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from forever.report.analyses import analyses, backbone_of
from forever.report.study import Study
from forever.report.tables import NOTHING, number
from forever.sweeps.published import FORGETTING_RATE, MODEL_DAY, TRAINING_TIME

_WITH = {
    "other order": "its length in the other order",
    "BWT": "the task's BWT",
    "joint training": "joint training's score",
}


def findings(part: Study) -> list[dict[str, str]]:
    """Rows of a table; none for most studies."""
    tell = {
        "forgetting_rate": _forgetting,
        "model_day": _model_day,
        "training_time": _training_time,
    }
    rows = [row for name, found in analyses(part).items() for row in tell[name](part, found)]
    return [dict(zip(("what", "ours", "published", "basis"), row, strict=True)) for row in rows]


Rows = Iterator[tuple[str, str, str, str]]


def _forgetting(_: Study, found: Mapping[str, Mapping[str, Any]]) -> Rows:
    for variant, one in found.items():
        last = len(one["rates"])
        for phase, rate in enumerate(one["rates"]):
            paper = number(
                FORGETTING_RATE[phase] if phase < len(FORGETTING_RATE) else None, "{:.4f}"
            )
            yield (
                f"{variant}: forgetting per update, phase {phase + 1}",
                number(rate, "{:.4f}"),
                paper,
                NOTHING,
            )
        if fall := one["fall"]:
            value, low, high = (number(fall[key], "{:+.4f}") for key in ("value", "low", "high"))
            compared = (
                FORGETTING_RATE[0] - FORGETTING_RATE[last - 1]
                if last <= len(FORGETTING_RATE)
                else None
            )
            what = f"{variant}: phase 1 less phase {last}"
            yield (
                what,
                f"{value} [{low}, {high}]",
                number(compared, "{:+.4f}"),
                f"{fall['runs']} tasks",
            )


def _model_day(_: Study, found: Mapping[str, Mapping[str, float]]) -> Rows:
    for name, one in found.items():
        r, p = MODEL_DAY[name]
        ours, paper = (_correlation(*pair) for pair in ((one["r"], one["p"]), (r, p)))
        yield f"a task's model day with {_WITH[name]}", ours, paper, f"{one['pairs']} tasks"


def _correlation(r: float, p: float | None) -> str:
    return f"r = {number(r, '{:+.2f}')}" + (f", p = {p:.2g}" if p is not None else "")


def _training_time(part: Study, found: Mapping[str, Mapping[str, float]]) -> Rows:
    runs = Counter(
        (backbone_of(run), run.result["method"]) for run in part.runs if run.result is not None
    )
    for backbone, minutes in found.items():
        for method, value in minutes.items():
            paper = number(TRAINING_TIME.get(backbone, {}).get(method), "{:.1f}")
            count = runs[backbone, method]
            what = f"{method}, {backbone}: minutes an epoch"
            yield (
                what,
                number(value, "{:.2g}" if value < 1 else "{:.1f}"),
                paper,
                f"{count} run{'s' * (count > 1)}",
            )
