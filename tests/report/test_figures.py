"""Figures show every number at its place, and nothing where nothing was measured."""

import math
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from forever.report.bootstrap import Estimate
from forever.report.figures import analyses, runs, scores, variants
from forever.report.figures.scores import Point
from forever.report.figures.style import looks, png

METHODS = [f"a method with number {n}" for n in range(14)]
TASKS = [f"task{1500 + n}" for n in range(15)]
LOOKS = looks(METHODS, METHODS[0])


def around(value: float) -> Estimate:
    return Estimate(value, value - 2.0, value + 2.0, 3)


def lines_of(axis: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The named lines: their x and y."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for line in axis.lines:
        if not str(line.get_label()).startswith("_"):
            x, y = np.asarray(line.get_data()).tolist()
            lines[str(line.get_label())] = x, y
    return lines


def whiskers_of(axis: Axes) -> list[tuple[float, float]]:
    """The lower and upper ends of upright lines that have no name."""
    paths = [path for collection in axis.collections for path in collection.get_paths()]
    return [tuple(np.asarray(path.vertices)[:, 1]) for path in paths]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def assert_inside(axis: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    for values, (low, high) in ((x, axis.get_xlim()), (y, axis.get_ylim())):
        assert low <= min(values)
        assert max(values) <= high


def overlaps(figure: Figure, texts: list[Any]) -> int:
    """Pairs of names that share more than a sliver."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    shared = [Bbox.intersection(box, other) for box, other in combinations(boxes, 2)]
    return sum(box is not None and min(box.width, box.height) > 1 for box in shared)


def result(tasks: int, method: str = "forever") -> dict[str, Any]:
    names = [f"task{i}" for i in range(tasks)]
    matrix = [[None if j < i else 50.0 + i - j for j in range(tasks)] for i in range(tasks)]
    scores = {"tasks": names, "stages": names, "matrix": matrix, "op": 48.0, "bwt": -3.21}
    return {"method": method, "seed": 0, **scores}


JOINT = {**result(3, "mtl"), "stages": ["joint"], "matrix": [[60.0], [0.0], [100.0]], "bwt": None}


@pytest.mark.parametrize("content", [result(1), result(15), JOINT])
def test_matrix_shows_every_measured_cell_and_no_other(content: dict) -> None:
    figure = runs.matrix_figure(content)
    assert png(figure).startswith(b"\x89PNG")
    numbers = [text.get_text() for text in figure.axes[0].texts]
    measured = [value for row in content["matrix"] for value in row if value is not None]
    assert numbers == [f"{value:.1f}" for value in measured]
    bwt = "–" if content is JOINT else "−3.2"
    assert figure.get_suptitle() == f"{content['method']}, seed 0\nOP 48.0 · BWT {bwt}"


def run_of(tasks: int, updates: int, penalty: float | None) -> tuple[list[dict], list[dict]]:
    """In all tasks but the first a replay at update 10 and a consolidation; a day is 5 updates."""
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for k in range(tasks):
        for t in range(1, updates + 1):
            place = {"task": f"task{k}", "step": t, "days": t / 5 if t >= 5 else 0.0}
            moved = {"update_norm": 0.1, "mu": 0.1, "next_day": 2.0}
            steps.append({**place, **moved, "kind": "task", "loss": 99.0, "penalty": 0.0})
            kind = {10: "replay", updates: "consolidation"}.get(t)
            if k and kind:
                losses = {"loss_before": 2.0 + k, "loss_after": 0.1 * k}
                events.append({**place, "kind": kind, **losses})
                for n in range(3):
                    steps.append({**place, "kind": kind, "loss": 1.0 + n, "penalty": penalty})
    return steps, events


@pytest.mark.parametrize(("tasks", "updates"), [(3, 20), (15, 300)])
def test_events_stand_at_their_updates(tasks: int, updates: int) -> None:
    steps, events = run_of(tasks, updates, penalty=0.01)
    events.append({"kind": "look", "task": "task0", "step": 1})  # which is no replay
    loss = runs.replay_loss_figure(steps, events, "a")
    timeline = runs.timeline_figure(steps, events, "a")
    assert png(loss, dpi=50) != png(timeline, dpi=50)
    above, below = (lines_of(axis) for axis in loss.axes)
    marks = {points.get_label(): points.get_offsets() for points in timeline.axes[1].collections}
    for kind in ("replay", "consolidation"):
        chosen = [event for event in events if event["kind"] == kind]
        x = [place for place, line in enumerate(steps, 1) if line["kind"] == kind]  # three an event
        assert above[f"before a {kind}"] == (x[::3], [event["loss_before"] for event in chosen])
        assert above[f"after a {kind}"] == (x[2::3], [event["loss_after"] for event in chosen])
        assert above[f"{kind} update"] == (x, [1.0, 2.0, 3.0] * len(chosen))
        assert below[f"{kind} update"] == (x, [0.01] * len(x))
        # On the timeline at the task's update that called it.
        days = [[first - 1, event["days"]] for first, event in zip(x[::3], chosen, strict=True)]
        assert np.asarray(marks[f"{kind}, at its day"]).tolist() == days
    assert all(99.0 not in y for _, y in above.values())  # the task's own updates
    _, y = lines_of(timeline.axes[0])["Δ"]
    assert np.isfinite(y).sum() == tasks * updates  # the clock does not count replays


@pytest.mark.parametrize("penalty", [0.0, None])
def test_journals_that_lack_something(penalty: float | None) -> None:
    assert len(runs.replay_loss_figure(*run_of(2, 20, penalty)).axes) == 1
    steps, events = run_of(1, 4, penalty)
    assert legend_of(runs.replay_loss_figure(steps, events)) == []
    assert len(runs.timeline_figure(steps, events).axes) == 1  # no day has passed
    assert png(runs.timeline_figure([], [])) != png(runs.replay_loss_figure([], []))


def test_variants_have_intervals_and_accuracies() -> None:
    results = {"a": [result(3), result(3)], "mtl": [JOINT]}
    figure = variants.accuracy_figure(results, looks(results, "a"))
    drawn = lines_of(figure.axes[0])
    assert np.allclose(drawn["a"][1], [50.0, 49.5, 49.0])
    assert drawn["mtl"] == ([3], [48.0])
    assert legend_of(figure) == ["a", "mtl"]
    # Intervals are written beside their dots.
    estimates = {"a": Estimate(50.0, 45.0, 56.0, 3), "b": Estimate(-1.0, -2.0, 0.5, 3)}
    (axis,) = variants.interval_figure(estimates, looks(estimates, "a"), "a").axes
    assert [text.get_text() for text in axis.texts] == ["50.0 [45.0, 56.0]", "−1.0 [−2.0, 0.5]"]


@pytest.mark.parametrize("count", [1, 14])
def test_variants_share_a_radar(count: int) -> None:
    shares = np.full((15, 1), 0.5) + 0.05 * np.arange(count)  # which may exceed 1
    table = pd.DataFrame(shares, TASKS, METHODS[:count])
    table.loc[TASKS[3], METHODS[0]] = math.nan  # which leaves a gap
    table["not run"] = math.nan
    figure = variants.radar_figure(table, LOOKS)
    drawn = lines_of(figure.axes[0])
    for name in METHODS[:count]:
        np.testing.assert_array_equal(drawn[name][1][:-1], table[name])
    assert figure.axes[0].get_ylim()[1] > shares.max()
    assert legend_of(figure) == METHODS[:count]
    assert overlaps(figure, list(figure.axes[0].texts)) == 0


def test_pareto_shows_every_point_and_what_nothing_beats() -> None:
    """Of a search the many trials have no legend."""
    assert variants.front([(2, 50), (1, 40), (1, 30), (3, 50)]) == [(1, 40), (2, 50)]
    points = {f"t{n}": (10.0 * (n + 1), around(40.0 + n)) for n in range(30)}
    figure = variants.pareto_figure(points, looks(points))
    (axis,) = figure.axes
    drawn = lines_of(axis)
    assert max(drawn.pop("front")[1]) == 69.0
    assert drawn == {name: ([seconds], [op.value]) for name, (seconds, op) in points.items()}
    assert_inside(axis, [10.0, 300.0], [38.0, 71.0])
    assert (axis.get_xscale(), legend_of(figure)) == ("log", [])
    few = variants.pareto_figure({name: points[name] for name in ("t0", "t1")}, looks(points))
    assert (few.axes[0].get_xscale(), legend_of(few)) == ("linear", ["t0", "t1", "front"])


def test_bars_stand_by_group_and_missing_ones_do_not() -> None:
    small = {m: around(50.0 - n) for n, m in enumerate(METHODS)}
    op = {"small": small, "large": {METHODS[0]: around(70.0)}}
    lower = {m: -3.0 - n for n, m in enumerate(METHODS[:-1])}
    bwt = {"small": lower, "large": {METHODS[0]: None}}
    figure = scores.bars_figure({"OP (%)": op, "BWT (points)": bwt}, METHODS[0])
    above, below = figure.axes
    assert [tick.get_text() for tick in below.get_xticklabels()] == [*METHODS, METHODS[0]]
    heights = [[patch.get_height() for patch in axis.patches] for axis in figure.axes]  # pyright: ignore
    assert heights == [[50.0 - n for n in range(14)] + [70.0], [-3.0 - n for n in range(13)]]
    assert whiskers_of(above)[-1] == (68.0, 72.0)
    assert [text.get_text() for text in below.texts] == ["–", "–"]
    assert overlaps(figure, [*below.get_xticklabels(), *above.texts]) == 0


def test_model_days_and_their_correlations() -> None:
    """One number a panel: what report.json and the ledger have."""
    days = {t: (1.0 + n, 2.0 * (1 + n)) for n, t in enumerate(TASKS)}
    bwt = {t: (1.5 * (1 + n), -float(n)) for n, t in enumerate(TASKS[:-1])}
    joint = {t: (1.5 * (1 + n), 50.0) for n, t in enumerate(TASKS)}
    pairs = {"other order": days, "BWT": bwt, "joint training": joint}
    figure = analyses.model_day_figure(pairs, ["7", "8"])
    assert [axis.get_title() for axis in figure.axes] == [
        "r = 1.00, p < 0.001, n = 15", "r = −1.00, p < 0.001, n = 14", "r not defined (n = 15)",
    ]  # fmt: skip
    for axis, points in zip(figure.axes, (days, bwt, joint), strict=True):
        assert np.array_equal(axis.lines[0].get_xydata(), list(points.values()))
    assert figure.axes[0].get_xlabel().endswith("order 7")
    assert len(analyses.model_day_figure({"BWT": bwt}, ["1"]).axes) == 1
    # Anscombe's first set: r = 0.816, p = 0.002.
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    assert analyses.correlation(list(zip(x, y, strict=True))) == "r = 0.82, p = 0.002, n = 11"
    assert analyses.correlation([(1, 1), (2, 2)]) == "r not defined (n = 2)"


def test_rates_are_means_over_the_curves_that_last_so_long() -> None:
    rates = {"a": [[4.0, 2.0, 1.0], [2.0, 1.0], [3.0, math.nan]], "b": [[1.0]], "none": [[]]}
    figure = analyses.forgetting_rate_figure(rates, 60, looks(rates, "a"), [2.0, 1.0])
    (axis,) = figure.axes
    drawn = {"a": ([1, 2, 3], [3.0, 1.5, 1.0]), "b": ([1], [1.0])}
    assert lines_of(axis) == {**drawn, "published": ([1, 2], [2.0, 1.0])}
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0–60", "60–120", "120–180"]
    band = np.concatenate([path.vertices for path in axis.collections[0].get_paths()])
    assert {3.0 - 1.0, 3.0 + 1.0} <= set(band[band[:, 0] == 1, 1])  # of 4, 2 and 3
    assert analyses.comparable(rates, [2.0, 1.0]) == [2.0, 1.0]
    assert analyses.comparable(rates, [0.01]) == analyses.comparable(rates, [500.0]) == ()
    many = {name: [[3.0, 2.0], [2.0, 1.0]] for name in METHODS}
    assert len(analyses.forgetting_rate_figure(many, 60, LOOKS).axes[0].collections) == 0


@pytest.mark.parametrize("count", [1, 14])
@pytest.mark.parametrize(
    ("settings", "scale"), [([1, 2, 5, 10, 50], "log"), ([1, 2, 3, 4], "linear"), ([24], "linear")]
)
def test_scores_stand_at_their_setting(count: int, settings: list[int], scale: str) -> None:
    points: list[Point] = []
    for n, method in enumerate(METHODS[:count]):
        points += [Point(method, x, around(50.0 + x - n), around(-x)) for x in settings]
    op, bwt = scores.sensitivity_figure(points[::-1], "S", METHODS[0], settings[-1]).axes
    assert (op.get_xscale(), bwt.get_xscale()) == (scale, scale)
    for n, method in enumerate(METHODS[:count]):
        assert lines_of(op)[method] == (settings, [50.0 + x - n for x in settings])
        assert lines_of(bwt)[method] == (settings, [-x for x in settings])
    intervals = {(48.0 + x - n, 52.0 + x - n) for x in settings for n in range(count)}
    assert set(whiskers_of(op)) == intervals
    assert_inside(op, settings, [end for interval in intervals for end in interval])
    ticks = {tick.get_text(): tick.get_fontweight() for tick in bwt.get_xticklabels()}
    assert ticks == {str(x): "bold" if x == settings[-1] else "normal" for x in settings}


def test_scores_that_are_missing_or_published() -> None:
    points = [Point("a", 2, around(50)), Point("a", 4, None), Point("a", 16, around(60))]
    points += [Point("b", 2, None), Point("a", 4, 55.0, published=True)]
    figure = scores.sensitivity_figure(points, "memory")
    (axis,) = figure.axes  # nobody has a BWT
    assert lines_of(axis) == {"a": ([2, 16], [50, 60]), "a, published": ([4], [55.0])}
    assert legend_of(figure) == ["a", "a, published"]
    assert [line.get_markerfacecolor() == "white" for line in axis.lines] == [False, True]
    # Names are not joined.
    points = [Point("a", name, around(50.0)) for name in ("uniform", "standard", "reverse")]
    (axis,) = scores.sensitivity_figure(points, "spacing").axes
    assert lines_of(axis) == {"a": ([0, 1, 2], [50] * 3)}
    assert axis.lines[0].get_linestyle() == "None"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == [name for _, name, *_ in points]


def test_no_pyplot() -> None:
    """Its global state would leak between the runs of a sweep in one process."""
    code = "import sys, forever.report.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_looks_depend_on_the_place_and_tell_variants_apart() -> None:
    by_name = looks(METHODS, METHODS[3])
    assert max(by_name, key=lambda name: by_name[name].width) == METHODS[3]
    assert by_name[METHODS[5]] == looks(METHODS[:6])[METHODS[5]]
    many = looks(map(str, range(100))).values()
    assert len({(look.colour, look.marker) for look in many}) == 100
