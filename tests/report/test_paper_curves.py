"""Curves of the paper's figures go through the numbers that they are given, and stop where there
are none."""

import math
from typing import Any

import numpy as np
import pytest
from test_paper_figures import METHODS, around, assert_inside, data_of, legend_of, lines_of

from forever.report.bootstrap import Estimate
from forever.report.curves import forgetting_rate_figure, replay_loss_figure
from forever.report.sensitivity import Point, sensitivity_figure
from forever.report.style import png

# ---- replay events


def run_with_events(
    tasks: int, updates: int, penalty: float | None
) -> tuple[list[dict], list[dict]]:
    """A made-up run: in each task but the first a replay at update 10, and a consolidation at the
    end."""
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for k in range(tasks):
        for t in range(1, updates + 1):
            here = {"task": f"task{k}", "step": t}
            steps.append({**here, "kind": "task", "loss": 99.0, "penalty": 0.0})
            kind = {10: "replay", updates: "consolidation"}.get(t)
            if k and kind:
                events.append({**here, "kind": kind, "loss_before": 2.0 + k, "loss_after": 0.1 * k})
                steps += [
                    {**here, "kind": kind, "loss": 1.0 + n, "penalty": penalty} for n in range(3)
                ]
    return steps, events


@pytest.mark.parametrize(("tasks", "updates"), [(3, 20), (15, 300)])
def test_events_stand_at_their_updates(tasks: int, updates: int) -> None:
    steps, events = run_with_events(tasks, updates, penalty=0.01)
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
                first = steps.index({**steps[int(place) - 1], "loss": 1.0}) + 1
                assert place == first + offset
                assert (steps[first - 1]["task"], steps[first - 1]["kind"]) == (event["task"], kind)
        x, y = drawn[f"{kind} update"]
        assert y == [line["loss"] for line in steps if line["kind"] == kind]
        assert [steps[int(place) - 1]["kind"] for place in x] == [kind] * len(x)
        assert lines_of(below)[f"{kind} update"] == (x, [0.01] * len(x))
        assert_inside(above, x, y)
    assert all(99.0 not in y for _, y in drawn.values())  # the task's own updates are not on memory


@pytest.mark.parametrize("penalty", [0.0, None])
def test_no_panel_for_no_penalty(penalty: float | None) -> None:
    assert len(replay_loss_figure(*run_with_events(2, 20, penalty)).axes) == 1


def test_replay_loss_without_events_or_steps() -> None:
    steps, _ = run_with_events(1, 20, 0.0)
    assert legend_of(replay_loss_figure(steps, [])) == []
    assert png(replay_loss_figure([], []), dpi=50)


# ---- rate of forgetting


def test_rates_are_means_over_the_curves_that_last_so_long() -> None:
    rates = {
        "a": [[4.0, 2.0, 1.0], [2.0, 1.0], [3.0, math.nan]],
        "none": [],
        "empty": [[]],
        "b": [[1.0]],
    }
    figure = forgetting_rate_figure(rates, 60, reference="a")
    drawn = lines_of(figure.axes[0])
    assert {name: drawn[name] for name in drawn} == {
        "a": ([1, 2, 3], [3.0, 1.5, 1.0]),
        "b": ([1], [1.0]),
    }
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == [
        "0–60",
        "60–120",
        "120–180",
    ]
    assert legend_of(figure) == ["a", "b", "± 1 s.d. over tasks and runs"]
    band = np.concatenate([path.vertices for path in figure.axes[0].collections[0].get_paths()])
    assert {3.0 - 1.0, 3.0 + 1.0} <= set(band[band[:, 0] == 1, 1])  # of 4, 2 and 3


def test_only_the_reference_has_a_band_among_many() -> None:
    rates = {name: [[3.0 + n, 2.0], [2.0, 1.0]] for n, name in enumerate(METHODS)}
    figure = forgetting_rate_figure(rates, 60, reference=METHODS[4])
    assert len(figure.axes[0].collections) == 1
    assert set(legend_of(figure)) == {*METHODS, "± 1 s.d. over tasks and runs"}


@pytest.mark.parametrize(
    ("published", "axes"), [([2.0, 1.0], 1), ([500.0, -100.0], 2), ([0.01, 0.02, 0.005], 2)]
)
def test_published_rates_have_an_axis_with_the_same_zero(published: list[float], axes: int) -> None:
    figure = forgetting_rate_figure({"a": [[4.0, 2.0]]}, 60, published)
    assert len(figure.axes) == axes
    label = "published" if axes == 1 else "published (right axis)"
    x, y = lines_of(figure.axes[-1])[label]
    assert (x, y) == (list(range(1, len(published) + 1)), published)
    assert label in legend_of(figure)
    assert_inside(figure.axes[-1], x, y)
    assert_inside(figure.axes[0], [1, 2], [4.0, 2.0])
    zeros = [axis.transData.transform((1, 0))[1] for axis in figure.axes]
    assert zeros == pytest.approx([zeros[0]] * axes)


def test_nothing_to_draw() -> None:
    assert png(forgetting_rate_figure({}, 60, [math.nan]), dpi=50)
    assert lines_of(forgetting_rate_figure({}, 60, [1.0]).axes[0])["published"] == ([1], [1.0])


# ---- scores over a setting


@pytest.mark.parametrize("count", [1, 14])
@pytest.mark.parametrize(
    ("settings", "scale"), [([1, 2, 5, 10, 50], "log"), ([1, 2, 3, 4], "linear"), ([24], "linear")]
)
def test_scores_stand_at_their_setting(count: int, settings: list[int], scale: str) -> None:
    points = [
        Point(m, x, around(50.0 + x - n), around(-x))
        for n, m in enumerate(METHODS[:count])
        for x in settings
    ]
    figure = sensitivity_figure(
        list(reversed(points)), "S", reference=METHODS[0], default=settings[-1]
    )
    op, bwt = figure.axes
    assert (op.get_xscale(), bwt.get_xscale()) == (scale, scale)
    for n, method in enumerate(METHODS[:count]):
        assert lines_of(op)[method] == (settings, [50.0 + x - n for x in settings])
        assert lines_of(bwt)[method] == (settings, [-x for x in settings])
    ends = [end for point in points if point.op for end in (point.op.low, point.op.high)]
    assert_inside(op, settings, ends)
    drawn = {tuple(data_of(line)[1]) for line in op.lines}
    assert {(point.op.low, point.op.high) for point in points if point.op} <= drawn
    ticks = {tick.get_text(): tick.get_fontweight() for tick in bwt.get_xticklabels()}
    assert ticks == {str(x): "bold" if x == settings[-1] else "normal" for x in settings}
    assert png(figure, dpi=50)


def test_scores_that_are_missing_or_published() -> None:
    points = [
        Point("a", 2, around(50)),
        Point("a", 4, None),
        Point("a", 8, Estimate(math.nan, 0, 0, 1)),
    ]
    points += [Point("a", 16, around(60)), Point("b", 2, None)]
    published = [
        Point.published("a", 4, 55.0),
        Point.published("c", 4, None),
        Point.published("c", 8, math.nan),
    ]
    figure = sensitivity_figure(points, "memory", published=published)
    (axis,) = figure.axes  # nobody has a BWT
    assert lines_of(axis) == {"a": ([2, 16], [50, 60]), "a, published": ([4], [55.0])}
    assert legend_of(figure) == ["a", "a, published"]
    hollow = {str(line.get_label()): line.get_markerfacecolor() == "white" for line in axis.lines}
    assert (hollow["a"], hollow["a, published"]) == (False, True)


def test_names_of_a_setting_are_not_joined() -> None:
    points = [
        Point("a", name, around(50.0 + n))
        for n, name in enumerate(("uniform", "standard", "reverse"))
    ]
    figure = sensitivity_figure(points, "spacing", default="standard")
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == "a"]
    assert (data_of(line)[1], line.get_linestyle()) == ([50.0, 51.0, 52.0], "None")
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == [
        "uniform",
        "standard",
        "reverse",
    ]


def test_no_points() -> None:
    assert png(sensitivity_figure([], "S"), dpi=50)
