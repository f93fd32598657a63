"""Figures draw what they are given, for every shape of run, without a warning (warnings are errors
here)."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from forever.report.bootstrap import Estimate
from forever.report.figures import (
    accuracy_figure,
    interval_figure,
    matrix_figure,
    png,
    timeline_figure,
)
from forever.report.style import MARKERS, PALETTE


def run_of(
    tasks: int, updates: int, warmup: int, days: list[float]
) -> tuple[list[dict], list[dict]]:
    """The journal of a made-up run whose updates all move by the same distance."""
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for k in range(tasks):
        ahead = list(days)
        for t in range(1, updates + 1):
            clock: dict[str, Any] = {
                "days": t / warmup if t >= warmup else 0.0,
                "mu": 0.1 if t >= warmup else None,
            }
            clock["next_day"] = ahead[0] if k and ahead else None
            line = {"task": f"task{k}", "step": t, "kind": "task", "update_norm": 0.1, **clock}
            steps.append(line)
            if k and t >= warmup and ahead and t >= ahead[0] * warmup:
                events.append(
                    {
                        "kind": "replay",
                        "task": line["task"],
                        "step": t,
                        "day": ahead.pop(0),
                        **clock,
                    }
                )
                steps += [{**line, "kind": "replay"}] * k
        if k:
            events.append({**events[-1], "kind": "consolidation", "step": updates, "day": None})
            steps += [{**steps[-1], "kind": "consolidation"}] * k
    return steps, events


def result(tasks: int, method: str = "forever") -> dict[str, Any]:
    names = [f"task{i}" for i in range(tasks)]
    matrix = [[None if j < i else 50.0 + i - j for j in range(tasks)] for i in range(tasks)]
    return {
        "method": method,
        "seed": 0,
        "tasks": names,
        "stages": names,
        "matrix": matrix,
        "op": 48.0,
        "bwt": -3.21,
    }


JOINT = {**result(3, "mtl"), "stages": ["joint"], "matrix": [[60.0], [0.0], [100.0]], "bwt": None}


@pytest.mark.parametrize(
    "one", [result(1), result(3), result(15), JOINT], ids=["1", "3", "15", "joint"]
)
def test_matrix_shows_every_measured_cell_and_no_other(one: dict) -> None:
    figure = matrix_figure(one)
    assert png(figure).startswith(b"\x89PNG")
    numbers = [text.get_text() for text in figure.axes[0].texts]
    assert numbers == [
        f"{value:.1f}" for row in one["matrix"] for value in row if value is not None
    ]


def test_matrix_title() -> None:
    assert matrix_figure(result(3)).get_suptitle() == "forever, seed 0\nOP 48.0 · BWT −3.2"
    assert matrix_figure(JOINT, "joint").get_suptitle() == "joint\nOP 48.0 · BWT –"


@pytest.mark.parametrize(("tasks", "updates"), [(1, 5), (3, 60), (15, 1250)])
def test_timeline_marks_each_event_where_it_happened(tasks: int, updates: int) -> None:
    steps, events = run_of(tasks, updates, warmup=24, days=[1, 2, 4, 7, 15, 30])
    figure = timeline_figure(steps, events, "title")
    assert png(figure, dpi=50).startswith(b"\x89PNG")
    if updates < 24:
        assert len(figure.axes) == 1
        return
    marks = {
        str(points.get_label()): np.asarray(points.get_offsets())
        for points in figure.axes[1].collections
    }
    replays = [event for event in events if event["kind"] == "replay"]
    assert marks["replay, at its day"][:, 1].tolist() == [event["days"] for event in replays]
    for x, event in zip(marks["replay, at its day"][:, 0], replays, strict=True):
        line = steps[int(x) - 1]
        assert (line["task"], line["step"], line["kind"]) == (event["task"], event["step"], "task")


def test_timeline_without_clock_events_or_steps() -> None:
    steps = [{"task": "a", "step": t, "kind": "task", "update_norm": 0.1} for t in range(1, 9)]
    assert len(timeline_figure(steps, []).axes) == 1
    assert png(timeline_figure([], []), dpi=50)


def test_clock_is_named_after_what_a_day_is() -> None:
    steps, events = run_of(2, 60, warmup=24, days=[1, 2])
    assert timeline_figure(steps, events).axes[1].get_ylabel() == "clock: days of 24 updates"
    bent = [{**line, "days": line["days"] ** 0.9} for line in steps]
    assert timeline_figure(bent, events).axes[1].get_ylabel() == "clock: τ in model days"


def test_accuracy_is_the_mean_over_tasks_seen() -> None:
    figure = accuracy_figure({"a": [result(3), result(3)], "mtl": [JOINT], "none": []}, "a")
    lines = {str(line.get_label()): line for line in figure.axes[0].lines}
    assert np.allclose(np.asarray(lines["a"].get_ydata()), [50.0, 49.5, 49.0])
    assert (list(lines["mtl"].get_xdata()), list(lines["mtl"].get_ydata())) == ([3], [48.0])
    assert set(lines) == {"a", "mtl"}


def test_intervals_are_written_beside_their_dots() -> None:
    figure = interval_figure(
        {"a": Estimate(50.0, 45.0, 56.0, 3), "b": Estimate(-1.0, -2.0, 0.5, 3)}, "OP", "a"
    )
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "50.0  [45.0, 56.0]",
        "−1.0  [−2.0, 0.5]",
    ]
    assert png(figure)


def test_no_pyplot() -> None:
    """Its global state would leak between the runs of a sweep in one process."""
    code = "import sys, forever.report.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_hundred_variants_look_different() -> None:
    looks = {(PALETTE[n % len(PALETTE)], MARKERS[n % len(MARKERS)]) for n in range(100)}
    assert len(looks) == 100
