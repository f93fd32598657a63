"""Figures of the paper show every number at its place, and nothing where nothing was measured."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from forever.report.bootstrap import Estimate
from forever.report.comparisons import TOGETHER, bars_figure, radar_figure, training_time_figure
from forever.report.scatters import correlation, front, model_day_figure, pareto_figure
from forever.report.style import looks, png

METHODS = [f"a method with number {n}" for n in range(14)]
TASKS = [f"task{1500 + n}" for n in range(15)]


def around(value: float, half: float = 2.0) -> Estimate:
    return Estimate(value, value - half, value + half, 3)


def lines_of(axis: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The named lines: their x and y."""
    named = [line for line in axis.lines if not str(line.get_label()).startswith("_")]
    return {str(line.get_label()): data_of(line) for line in named}


def data_of(line: Line2D) -> tuple[list[float], list[float]]:
    """x and y."""
    return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def assert_inside(axis: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    for values, (low, high) in ((x, axis.get_xlim()), (y, axis.get_ylim())):
        assert low <= np.nanmin(values)
        assert np.nanmax(values) <= high


def overlaps(boxes: Sequence[Bbox]) -> int:
    """Pairs of boxes that share more than a sliver."""
    pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]]
    shared = [common for a, b in pairs if (common := Bbox.intersection(a, b)) is not None]
    return sum(common.width > 1 and common.height > 1 for common in shared)


def text_boxes(figure: Figure, texts: Sequence[Any]) -> list[Bbox]:
    """Of the words alone: an annotation's own box includes its line."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer: Any = canvas.get_renderer()
    return [type(text).__mro__[1].get_window_extent(text, renderer) for text in texts]


# ---- radar


@pytest.mark.parametrize("count", [1, 3, TOGETHER])
def test_few_variants_share_a_radar(count: int) -> None:
    retention = {
        name: dict.fromkeys(TASKS, 0.5 + 0.05 * n) for n, name in enumerate(METHODS[:count])
    }
    figure = radar_figure(retention, METHODS[0])
    assert len(figure.axes) == 1
    drawn = lines_of(figure.axes[0])
    assert {name: y[:-1] for name, (_, y) in drawn.items()} == {
        name: list(scores.values()) for name, scores in retention.items()
    }
    assert legend_of(figure) == METHODS[:count]
    assert overlaps(text_boxes(figure, figure.axes[0].texts)) == 0


@pytest.mark.parametrize(
    ("count", "tasks"), [(TOGETHER + 1, TASKS[:5]), (8, TASKS[:5]), (14, TASKS)]
)
def test_many_variants_have_a_radar_each(count: int, tasks: list[str]) -> None:
    retention = {
        name: dict.fromkeys(tasks, 0.05 * (n + 1) + 0.5) for n, name in enumerate(METHODS[:count])
    }
    figure = radar_figure(retention, METHODS[2])
    assert len(figure.axes) == count
    heads = {axis.get_title().split("  ")[0]: axis for axis in figure.axes}
    assert list(heads) == [METHODS[2], *(name for name in METHODS[:count] if name != METHODS[2])]
    for name, axis in heads.items():
        _, y = lines_of(axis)[name]
        assert y == pytest.approx([*retention[name].values(), retention[name][tasks[0]]])
        assert axis.get_ylim()[1] > max(y)  # a share above 1 is not cut off
    assert png(figure, dpi=50)
    assert overlaps(text_boxes(figure, [*figure.axes[0].texts, figure.axes[0].title])) == 0


def test_a_missing_task_is_a_gap_in_the_radar() -> None:
    scores: dict[str, float | None] = dict.fromkeys(TASKS, 0.5)
    retention = {
        "whole": scores,
        "less": {**scores, TASKS[3]: None},
        "lacks": dict(list(scores.items())[:-1]),
    }
    drawn = lines_of(
        radar_figure({**retention, "not run": {}, "unknown": {TASKS[0]: math.nan}}).axes[0]
    )
    assert set(drawn) == {"whole", "less", "lacks"}
    assert [np.flatnonzero(np.isnan(y)).tolist() for _, y in drawn.values()] == [[], [3], [14]]


def test_a_small_radar_with_a_gap_is_not_filled() -> None:
    retention: dict[str, dict[str, float | None]] = {
        m: dict.fromkeys(TASKS, 0.5) for m in METHODS[: TOGETHER + 2]
    }
    retention[METHODS[1]][TASKS[0]] = None
    figure = radar_figure(retention)
    assert [axis.get_title().split("  ")[0] for axis in figure.axes if not axis.patches] == [
        METHODS[1]
    ]


# ---- bars


def bars_at(axis: Axes) -> dict[float, float]:
    return {patch.get_x() + patch.get_width() / 2: patch.get_height() for patch in axis.patches}  # pyright: ignore


def test_bars_stand_by_group_and_missing_ones_do_not() -> None:
    op = {
        "small": {m: around(50.0 - n) for n, m in enumerate(METHODS)},
        "large": {METHODS[0]: around(70.0)},
    }
    op["large"][METHODS[1]] = around(math.nan)
    bwt: dict[str, dict[str, Any]] = {
        "small": {m: around(-3.0 - n) for n, m in enumerate(METHODS[:-1])},
        "none": {},
    }
    bwt["small"][METHODS[-1]] = around(math.nan)
    bwt["large"] = {METHODS[0]: around(-1.0), METHODS[2]: None}
    figure = bars_figure({"OP (%)": op, "BWT (points)": bwt}, METHODS[0])
    names = [tick.get_text() for tick in figure.axes[1].get_xticklabels()]
    assert names == [*METHODS, METHODS[0]]
    assert list(bars_at(figure.axes[0]).values()) == [50.0 - n for n in range(14)] + [70.0]
    assert list(bars_at(figure.axes[1]).values()) == [-3.0 - n for n in range(13)] + [-1.0]
    whiskers = [y for x, y in map(data_of, figure.axes[1].lines) if len(set(x)) == 1]
    assert whiskers == [[-5.0 - n, -1.0 - n] for n in range(13)] + [[-3.0, 1.0]]
    # The last method's BWT does not exist.
    assert [text.get_text() for text in figure.axes[1].texts] == ["–"]
    assert_inside(
        figure.axes[1], list(bars_at(figure.axes[1])), [y for pair in whiskers for y in pair]
    )
    assert (
        overlaps(text_boxes(figure, [*figure.axes[1].get_xticklabels(), *figure.axes[0].texts]))
        == 0
    )


def test_training_times_have_no_intervals() -> None:
    figure = training_time_figure(
        {"one": {"a": 2.5, "b": None}, "other": {"a": 5.0, "b": 0.5}}, "a"
    )
    assert bars_at(figure.axes[0]) == {0.0: 2.5, 2.0: 5.0, 3.0: 0.5}
    assert len(figure.axes[0].lines) == 1  # the zero


# ---- score against time


def test_front_is_what_nothing_beats() -> None:
    points = {
        "a": (2.0, 50.0),
        "b": (1.0, 40.0),
        "tie": (1.0, 30.0),
        "beaten": (3.0, 50.0),
        "c": (4.0, 60.0),
    }
    assert front(points) == [(1.0, 40.0), (2.0, 50.0), (4.0, 60.0)]
    assert front({}) == []


@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_pareto_names_do_not_overlap(spread: float) -> None:
    random = np.random.default_rng(0)
    points = {
        m: (100 + 40 * spread * random.random(), around(50 + 30 * spread * random.random()))
        for m in METHODS
    }
    points["far"] = (150.0, around(70.0))  # so that the others crowd if their spread is small
    figure = pareto_figure(points, METHODS[0])
    axis = figure.axes[0]
    drawn = lines_of(axis)
    assert {name: (x, y) for name, (x, y) in drawn.items() if name != "front"} == {
        name: ([seconds], [estimate.value]) for name, (seconds, estimate) in points.items()
    }
    assert {text.get_text() for text in axis.texts} == set(points)
    boxes = text_boxes(figure, axis.texts)
    assert overlaps(boxes) == 0
    assert all(axis.bbox.x0 - 1 <= box.x0 and box.x1 <= axis.bbox.x1 + 1 for box in boxes)
    assert_inside(
        axis,
        [s for s, _ in points.values()],
        [end for _, e in points.values() for end in (e.low, e.high)],
    )


def test_the_many_trials_of_a_search_have_no_names() -> None:
    points = {f"t{n}": (10.0 * (n + 1), around(40.0 + n, 0.0)) for n in range(30)}
    points["missing"] = (math.nan, around(99.0))
    points["unknown"] = (5.0, around(math.nan))
    figure = pareto_figure(points, named=False)
    axis = figure.axes[0]
    assert (len(axis.texts), axis.get_xscale()) == (0, "log")
    assert legend_of(figure) == ["front"]
    assert {"missing", "unknown"}.isdisjoint(lines_of(axis))
    assert max(lines_of(axis)["front"][1]) == 69.0


@pytest.mark.parametrize("count", [0, 1])
def test_pareto_of_next_to_nothing(count: int) -> None:
    assert png(pareto_figure({"a": (5.0, around(50.0))} if count else {}, "a"), dpi=50)


# ---- model days


def test_model_days_and_their_correlations() -> None:
    """One number a panel: what report.json and the ledger have."""
    days = {t: (1.0 + n, 2.0 * (1 + n)) for n, t in enumerate(TASKS)}
    bwt = {t: (1.5 * (1 + n), -float(n)) for n, t in enumerate(TASKS[:-1])}
    joint = {t: (1.5 * (1 + n), 50.0) for n, t in enumerate(TASKS)}
    figure = model_day_figure(
        {"other order": days, "BWT": bwt, "joint training": joint}, ["7", "8"]
    )
    assert [axis.get_title() for axis in figure.axes] == [
        "r = 1.00, p < 0.001, n = 15", "r = −1.00, p < 0.001, n = 14", "r not defined (n = 15)",
    ]  # fmt: skip
    for axis, points in zip(figure.axes, (days, bwt, joint), strict=True):
        assert data_of(axis.get_lines()[0]) == tuple(map(list, zip(*points.values(), strict=True)))
    assert [axis.get_xlabel().partition(", ")[2] for axis in figure.axes] == [
        "order 7",
        *["mean over orders"] * 2,
    ]
    assert overlaps(text_boxes(figure, figure.axes[0].texts)) == 0


def test_pearson_against_numbers_known_from_elsewhere() -> None:
    """Anscombe's first set: r = 0.816, p = 0.002."""
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    assert correlation(x, y) == "r = 0.82, p = 0.002, n = 11"
    assert correlation([1, 2], [1, 2]) == "r not defined (n = 2)"


def test_model_days_of_one_order() -> None:
    figure = model_day_figure({"other order": {}, "BWT": {}, "joint training": {}}, ["1"])
    assert [text.get_text() for axis in figure.axes for text in axis.texts] == [
        "no task has both"
    ] * 3


# ---- lines


def test_looks_depend_on_the_place_and_tell_variants_apart() -> None:
    found = looks(METHODS, METHODS[3])
    assert len({(look.colour, look.marker, look.dashes) for look in found.values()}) == 14
    assert max(found, key=lambda name: found[name].width) == METHODS[3]
    assert found[METHODS[5]] == looks(METHODS[:6])[METHODS[5]]
