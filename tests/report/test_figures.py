"""Figures show every number at its place, and nothing where nothing was measured, without a warning
(warnings are errors here)."""

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from forever.report.bootstrap import Estimate
from forever.report.figures import matrix_figure, timeline_figure
from forever.report.figures.bars import bars_figure
from forever.report.figures.forgetting_rate import forgetting_rate_figure
from forever.report.figures.intervals import accuracy_figure, interval_figure
from forever.report.figures.model_day import correlation, model_day_figure
from forever.report.figures.pareto import front, pareto_figure
from forever.report.figures.radar import radar_figure
from forever.report.figures.replay_loss import replay_loss_figure
from forever.report.figures.sensitivity import Point, sensitivity_figure
from forever.report.figures.style import looks, png

METHODS = [f"a method with number {n}" for n in range(14)]
TASKS = [f"task{1500 + n}" for n in range(15)]
LOOKS = looks(METHODS, METHODS[0])


def around(value: float, half: float = 2.0) -> Estimate:
    return Estimate(value, value - half, value + half, 3)


def data_of(line: Line2D) -> tuple[list[float], list[float]]:
    """x and y."""
    return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()


def lines_of(axis: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The named lines: their x and y."""
    named = [line for line in axis.lines if not str(line.get_label()).startswith("_")]
    return {str(line.get_label()): data_of(line) for line in named}


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def assert_inside(axis: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    for values, (low, high) in ((x, axis.get_xlim()), (y, axis.get_ylim())):
        assert low <= np.nanmin(values)
        assert np.nanmax(values) <= high


def overlaps(figure: Figure, texts: Sequence[Any]) -> int:
    """Pairs of names that share more than a sliver."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    count = 0
    for i, box in enumerate(boxes):
        for other in boxes[:i]:
            shared = Bbox.intersection(box, other)
            count += shared is not None and shared.width > 1 and shared.height > 1
    return count


# ---- the performance matrix


def result(tasks: int, method: str = "forever") -> dict[str, Any]:
    names = [f"task{i}" for i in range(tasks)]
    matrix = [[None if j < i else 50.0 + i - j for j in range(tasks)] for i in range(tasks)]
    scores = {"tasks": names, "stages": names, "matrix": matrix, "op": 48.0, "bwt": -3.21}
    return {"method": method, "seed": 0, **scores}


JOINT = {**result(3, "mtl"), "stages": ["joint"], "matrix": [[60.0], [0.0], [100.0]], "bwt": None}


@pytest.mark.parametrize("content", [result(1), result(3), result(15), JOINT])
def test_matrix_shows_every_measured_cell_and_no_other(content: dict) -> None:
    figure = matrix_figure(content)
    assert png(figure).startswith(b"\x89PNG")
    numbers = [text.get_text() for text in figure.axes[0].texts]
    measured = [value for row in content["matrix"] for value in row if value is not None]
    assert numbers == [f"{value:.1f}" for value in measured]


def test_matrix_title() -> None:
    assert matrix_figure(result(3)).get_suptitle() == "forever, seed 0\nOP 48.0 · BWT −3.2"
    assert matrix_figure(JOINT, "joint").get_suptitle() == "joint\nOP 48.0 · BWT –"


# ---- journals of made-up runs


def run_of(tasks: int, updates: int, warmup: int, days: list[float]) -> tuple[list, list]:
    """The journal of a run whose updates all move by the same distance."""
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for k in range(tasks):
        ahead = list(days)
        for t in range(1, updates + 1):
            warm = t >= warmup
            clock = {"days": t / warmup if warm else 0.0, "mu": 0.1 if warm else None}
            clock["next_day"] = ahead[0] if k and ahead else None
            line = {"task": f"task{k}", "step": t, "kind": "task", "update_norm": 0.1, **clock}
            steps.append(line)
            if k and warm and ahead and t >= ahead[0] * warmup:
                day = ahead.pop(0)
                events.append(
                    {"kind": "replay", "task": f"task{k}", "step": t, "day": day, **clock}
                )
                steps += [{**line, "kind": "replay"}] * k
        if k:
            events.append({**events[-1], "kind": "consolidation", "step": updates, "day": None})
            steps += [{**steps[-1], "kind": "consolidation"}] * k
    return steps, events


def run_with_losses(tasks: int, updates: int, penalty: float | None) -> tuple[list, list]:
    """In each task but the first a replay at update 10, and a consolidation at the end."""
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for k in range(tasks):
        for t in range(1, updates + 1):
            place = {"task": f"task{k}", "step": t}
            steps.append({**place, "kind": "task", "loss": 99.0, "penalty": 0.0})
            kind = {10: "replay", updates: "consolidation"}.get(t)
            if k and kind:
                losses = {"loss_before": 2.0 + k, "loss_after": 0.1 * k}
                events.append({**place, "kind": kind, **losses})
                for n in range(3):
                    steps.append({**place, "kind": kind, "loss": 1.0 + n, "penalty": penalty})
    return steps, events


@pytest.mark.parametrize(("tasks", "updates"), [(1, 5), (3, 60), (15, 1250)])
def test_timeline_marks_each_event_where_it_happened(tasks: int, updates: int) -> None:
    steps, events = run_of(tasks, updates, warmup=24, days=[1, 2, 4, 7, 15, 30])
    figure = timeline_figure(steps, events, "title")
    assert png(figure, dpi=50).startswith(b"\x89PNG")
    if updates < 24:
        assert len(figure.axes) == 1
        return
    marks: dict[str, np.ndarray] = {}
    for points in figure.axes[1].collections:
        marks[str(points.get_label())] = np.asarray(points.get_offsets())
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


@pytest.mark.parametrize(("tasks", "updates"), [(3, 20), (15, 300)])
def test_replays_stand_at_their_updates(tasks: int, updates: int) -> None:
    steps, events = run_with_losses(tasks, updates, penalty=0.01)
    events.append({"kind": "look", "task": "task0", "step": 1})  # which is no replay
    figure = replay_loss_figure(steps, events, "title")
    assert png(figure, dpi=50)
    above, below = figure.axes
    drawn = lines_of(above)
    for kind in ("replay", "consolidation"):
        chosen = [event for event in events if event["kind"] == kind]
        for part, offset in (("before", 0), ("after", 2)):
            x, y = drawn[f"{part} a {kind}"]
            assert y == [event[f"loss_{part}"] for event in chosen]
            for place, event in zip(x, chosen, strict=True):
                first = steps[int(place) - 1 - offset]
                assert (first["loss"], first["kind"], first["task"]) == (1.0, kind, event["task"])
        x, y = drawn[f"{kind} update"]
        assert y == [line["loss"] for line in steps if line["kind"] == kind]
        assert {steps[int(place) - 1]["kind"] for place in x} == {kind}
        assert lines_of(below)[f"{kind} update"] == (x, [0.01] * len(x))
        assert_inside(above, x, y)
    assert all(99.0 not in y for _, y in drawn.values())  # the task's own updates


@pytest.mark.parametrize("penalty", [0.0, None])
def test_no_panel_for_no_penalty(penalty: float | None) -> None:
    assert len(replay_loss_figure(*run_with_losses(2, 20, penalty)).axes) == 1


def test_replay_loss_without_events_or_steps() -> None:
    steps, _ = run_with_losses(1, 20, 0.0)
    assert legend_of(replay_loss_figure(steps, [])) == []
    assert png(replay_loss_figure([], []), dpi=50)


# ---- variants side by side


def test_accuracy_is_the_mean_over_tasks_seen() -> None:
    results = {"a": [result(3), result(3)], "mtl": [JOINT], "none": []}
    figure = accuracy_figure(results, looks(results, "a"))
    drawn = lines_of(figure.axes[0])
    assert np.allclose(drawn["a"][1], [50.0, 49.5, 49.0])
    assert drawn["mtl"] == ([3], [48.0])
    assert set(drawn) == {"a", "mtl"}


def test_intervals_are_written_beside_their_dots() -> None:
    estimates = {"a": Estimate(50.0, 45.0, 56.0, 3), "b": Estimate(-1.0, -2.0, 0.5, 3)}
    figure = interval_figure(estimates, looks(estimates, "a"), "a")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["50.0 [45.0, 56.0]", "−1.0 [−2.0, 0.5]"]
    assert png(figure)


@pytest.mark.parametrize("count", [1, 4, 14])
def test_variants_share_a_radar(count: int) -> None:
    retention = {m: dict.fromkeys(TASKS, 0.5 + 0.05 * n) for n, m in enumerate(METHODS[:count])}
    figure = radar_figure(retention, LOOKS)
    drawn = lines_of(figure.axes[0])
    assert {name: y[:-1] for name, (_, y) in drawn.items()} == {
        name: list(scores.values()) for name, scores in retention.items()
    }
    # A share above 1 is not cut off.
    assert figure.axes[0].get_ylim()[1] > max(y[0] for _, y in drawn.values())
    assert legend_of(figure) == METHODS[:count]
    assert overlaps(figure, figure.axes[0].texts) == 0


def test_a_missing_task_is_a_gap_in_the_radar() -> None:
    scores: dict[str, float | None] = dict.fromkeys(TASKS, 0.5)
    retention: dict[str, Mapping[str, float | None]] = {
        "whole": scores,
        "less": {**scores, TASKS[3]: None},
        "lacks": dict(list(scores.items())[:-1]),
        "not run": {},
        "unknown": {TASKS[0]: math.nan},
    }
    drawn = lines_of(radar_figure(retention, looks(retention)).axes[0])
    assert set(drawn) == {"whole", "less", "lacks"}
    assert [np.flatnonzero(np.isnan(y)).tolist() for _, y in drawn.values()] == [[], [3], [14]]


def bars_at(axis: Axes) -> dict[float, float]:
    return {patch.get_x() + patch.get_width() / 2: patch.get_height() for patch in axis.patches}  # pyright: ignore


def test_bars_stand_by_group_and_missing_ones_do_not() -> None:
    op: dict[str, dict[str, Any]] = {
        "small": {m: around(50.0 - n) for n, m in enumerate(METHODS)},
        "large": {METHODS[0]: around(70.0), METHODS[1]: around(math.nan)},
    }
    bwt: dict[str, dict[str, Any]] = {
        "small": {m: around(-3.0 - n) for n, m in enumerate(METHODS[:-1])},
        "none": {},
        "large": {METHODS[0]: around(-1.0), METHODS[2]: None},
    }
    bwt["small"][METHODS[-1]] = around(math.nan)
    figure = bars_figure({"OP (%)": op, "BWT (points)": bwt}, METHODS[0])
    above, below = figure.axes
    names = [tick.get_text() for tick in below.get_xticklabels()]
    assert names == [*METHODS, METHODS[0]]
    assert list(bars_at(above).values()) == [50.0 - n for n in range(14)] + [70.0]
    assert list(bars_at(below).values()) == [-3.0 - n for n in range(13)] + [-1.0]
    whiskers = [y for x, y in map(data_of, below.lines) if len(set(x)) == 1]
    assert whiskers == [[-5.0 - n, -1.0 - n] for n in range(13)] + [[-3.0, 1.0]]
    # The last method's BWT does not exist.
    assert [text.get_text() for text in below.texts] == ["–"]
    assert_inside(below, list(bars_at(below)), [y for pair in whiskers for y in pair])
    assert overlaps(figure, [*below.get_xticklabels(), *above.texts]) == 0


def test_bars_without_intervals() -> None:
    figure = bars_figure({"minutes": {"one": {"a": 2.5, "b": None}, "other": {"a": 5.0, "b": 0.5}}})
    assert bars_at(figure.axes[0]) == {0.0: 2.5, 2.0: 5.0, 3.0: 0.5}
    assert len(figure.axes[0].lines) == 1  # the zero


# ---- score against time


def test_front_is_what_nothing_beats() -> None:
    points = {"a": (2.0, 50.0), "b": (1.0, 40.0), "tie": (1.0, 30.0), "c": (4.0, 60.0)}
    points["beaten"] = (3.0, 50.0)
    assert front(points) == [(1.0, 40.0), (2.0, 50.0), (4.0, 60.0)]
    assert front({}) == []


def test_pareto_names_every_point() -> None:
    random = np.random.default_rng(0)
    points: dict[str, tuple[float, Estimate]] = {}
    for method in METHODS:
        points[method] = 100 + 40 * random.random(), around(50 + 30 * random.random())
    figure = pareto_figure(points, LOOKS, METHODS[0])
    (axis,) = figure.axes
    drawn = {name: xy for name, xy in lines_of(axis).items() if name != "front"}
    assert drawn == {name: ([time], [e.value]) for name, (time, e) in points.items()}
    names = [text for text in axis.texts if text.get_text()]
    assert {text.get_text() for text in names} == set(points)
    assert overlaps(figure, names) <= 1
    ends = [end for _, e in points.values() for end in (e.low, e.high)]
    assert_inside(axis, [time for time, _ in points.values()], ends)


def test_the_many_trials_of_a_search_have_no_names() -> None:
    points = {f"t{n}": (10.0 * (n + 1), around(40.0 + n, 0.0)) for n in range(30)}
    points["missing"] = (math.nan, around(99.0))
    points["unknown"] = (5.0, around(math.nan))
    figure = pareto_figure(points, looks(points))
    (axis,) = figure.axes
    assert (len(axis.texts), axis.get_xscale()) == (0, "log")
    assert legend_of(figure) == ["front"]
    assert {"missing", "unknown"}.isdisjoint(lines_of(axis))
    assert max(lines_of(axis)["front"][1]) == 69.0


# ---- model days


def test_model_days_and_their_correlations() -> None:
    """One number a panel: what report.json and the ledger have."""
    days = {t: (1.0 + n, 2.0 * (1 + n)) for n, t in enumerate(TASKS)}
    bwt = {t: (1.5 * (1 + n), -float(n)) for n, t in enumerate(TASKS[:-1])}
    joint = {t: (1.5 * (1 + n), 50.0) for n, t in enumerate(TASKS)}
    pairs = {"other order": days, "BWT": bwt, "joint training": joint}
    figure = model_day_figure(pairs, ["7", "8"])
    assert [axis.get_title() for axis in figure.axes] == [
        "r = 1.00, p < 0.001, n = 15", "r = −1.00, p < 0.001, n = 14", "r not defined (n = 15)",
    ]  # fmt: skip
    for axis, points in zip(figure.axes, (days, bwt, joint), strict=True):
        assert data_of(axis.get_lines()[0]) == tuple(map(list, zip(*points.values(), strict=True)))
    labels = [axis.get_xlabel().partition(", ")[2] for axis in figure.axes]
    assert labels == ["order 7", "mean over orders", "mean over orders"]


def test_pearson_against_numbers_known_from_elsewhere() -> None:
    """Anscombe's first set: r = 0.816, p = 0.002."""
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    assert correlation(list(zip(x, y, strict=True))) == "r = 0.82, p = 0.002, n = 11"
    assert correlation([(1, 1), (2, 2)]) == "r not defined (n = 2)"


def test_model_days_of_one_order() -> None:
    figure = model_day_figure({"other order": {}, "BWT": {}, "joint training": {}}, ["1"])
    texts = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert texts == ["no task has both"] * 3


# ---- the rate of forgetting


def test_rates_are_means_over_the_curves_that_last_so_long() -> None:
    rates = {"a": [[4.0, 2.0, 1.0], [2.0, 1.0], [3.0, math.nan]], "b": [[1.0]]}
    rates |= {"none": [], "empty": [[]]}
    figure = forgetting_rate_figure(rates, 60, looks(rates, "a"), reference="a")
    (axis,) = figure.axes
    assert lines_of(axis) == {"a": ([1, 2, 3], [3.0, 1.5, 1.0]), "b": ([1], [1.0])}
    ticks = [tick.get_text() for tick in axis.get_xticklabels()]
    assert ticks == ["0–60", "60–120", "120–180"]
    assert legend_of(figure) == ["a", "b", "± 1 s.d. over tasks and runs"]
    band = np.concatenate([path.vertices for path in axis.collections[0].get_paths()])
    assert {3.0 - 1.0, 3.0 + 1.0} <= set(band[band[:, 0] == 1, 1])  # of 4, 2 and 3


def test_only_the_reference_has_a_band_among_many() -> None:
    rates = {name: [[3.0 + n, 2.0], [2.0, 1.0]] for n, name in enumerate(METHODS)}
    figure = forgetting_rate_figure(rates, 60, LOOKS, reference=METHODS[4])
    assert len(figure.axes[0].collections) == 1
    assert set(legend_of(figure)) == {*METHODS, "± 1 s.d. over tasks and runs"}


@pytest.mark.parametrize(
    ("published", "axes"), [([2.0, 1.0], 1), ([500.0, -100.0], 2), ([0.01, 0.02, 0.005], 2)]
)
def test_published_rates_have_an_axis_with_the_same_zero(published: list[float], axes: int) -> None:
    figure = forgetting_rate_figure({"a": [[4.0, 2.0]]}, 60, looks("a"), published)
    assert len(figure.axes) == axes
    name = "published" if axes == 1 else "published (right axis)"
    x, y = lines_of(figure.axes[-1])[name]
    assert (x, y) == (list(range(1, len(published) + 1)), published)
    assert name in legend_of(figure)
    assert_inside(figure.axes[-1], x, y)
    assert_inside(figure.axes[0], [1, 2], [4.0, 2.0])
    zeros = [axis.transData.transform((1, 0))[1] for axis in figure.axes]
    assert zeros == pytest.approx([zeros[0]] * axes)


# ---- scores over a setting


@pytest.mark.parametrize("count", [1, 14])
@pytest.mark.parametrize(
    ("settings", "scale"), [([1, 2, 5, 10, 50], "log"), ([1, 2, 3, 4], "linear"), ([24], "linear")]
)
def test_scores_stand_at_their_setting(count: int, settings: list[int], scale: str) -> None:
    points: list[Point] = []
    for n, method in enumerate(METHODS[:count]):
        points += [Point(method, x, around(50.0 + x - n), around(-x)) for x in settings]
    figure = sensitivity_figure(points[::-1], "S", METHODS[0], settings[-1])
    op, bwt = figure.axes
    assert (op.get_xscale(), bwt.get_xscale()) == (scale, scale)
    for n, method in enumerate(METHODS[:count]):
        assert lines_of(op)[method] == (settings, [50.0 + x - n for x in settings])
        assert lines_of(bwt)[method] == (settings, [-x for x in settings])
    intervals = {(point.op.low, point.op.high) for point in points if point.op}
    assert_inside(op, settings, [end for interval in intervals for end in interval])
    assert intervals <= {tuple(data_of(line)[1]) for line in op.lines}
    ticks = {tick.get_text(): tick.get_fontweight() for tick in bwt.get_xticklabels()}
    assert ticks == {str(x): "bold" if x == settings[-1] else "normal" for x in settings}


def test_scores_that_are_missing_or_published() -> None:
    unknown = Point("a", 8, Estimate(math.nan, 0, 0, 1))
    points = [Point("a", 2, around(50)), Point("a", 4, None), unknown]
    points += [Point("a", 16, around(60)), Point("b", 2, None)]
    published = [Point.published("a", 4, 55.0), Point.published("c", 4, None)]
    published.append(Point.published("c", 8, math.nan))
    figure = sensitivity_figure(points, "memory", published=published)
    (axis,) = figure.axes  # nobody has a BWT
    assert lines_of(axis) == {"a": ([2, 16], [50, 60]), "a, published": ([4], [55.0])}
    assert legend_of(figure) == ["a", "a, published"]
    hollow = {str(line.get_label()): line.get_markerfacecolor() == "white" for line in axis.lines}
    assert (hollow["a"], hollow["a, published"]) == (False, True)


def test_names_of_a_setting_are_not_joined() -> None:
    names = ["uniform", "standard", "reverse"]
    points = [Point("a", name, around(50.0 + n)) for n, name in enumerate(names)]
    (axis,) = sensitivity_figure(points, "spacing", default="standard").axes
    (line,) = [line for line in axis.lines if line.get_label() == "a"]
    assert (data_of(line)[1], line.get_linestyle()) == ([50.0, 51.0, 52.0], "None")
    assert [tick.get_text() for tick in axis.get_xticklabels()] == names


# ---- all figures


def test_next_to_nothing_can_be_drawn() -> None:
    figures = [
        forgetting_rate_figure({}, 60, {}, [math.nan]),
        forgetting_rate_figure({}, 60, {}, [1.0]),
        sensitivity_figure([], "S"),
        pareto_figure({}, {}),
        pareto_figure({"a": (5.0, around(50.0))}, looks("a"), "a"),
        radar_figure({}, {}),
    ]
    assert all(png(figure, dpi=50) for figure in figures)
    assert lines_of(figures[1].axes[0])["published"] == ([1], [1.0])


def test_no_pyplot() -> None:
    """Its global state would leak between the runs of a sweep in one process."""
    code = "import sys, forever.report.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_looks_depend_on_the_place_and_tell_variants_apart() -> None:
    found = looks(METHODS, METHODS[3])
    assert max(found, key=lambda name: found[name].width) == METHODS[3]
    assert found[METHODS[5]] == looks(METHODS[:6])[METHODS[5]]
    many = looks(map(str, range(100))).values()
    assert len({(look.colour, look.marker) for look in many}) == 100
