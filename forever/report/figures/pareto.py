"""OP against time, and what nothing beats in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from forever.report.bootstrap import Estimate
from forever.report.figures.style import (
    ACCENT,
    Drawing,
    Look,
    draw_numbers,
    freeze,
    known,
    legend,
    looks_of,
    name_points,
    new_figure,
    plain,
    scale,
    tidy,
)
from forever.report.study import Part

NAMED = 16  # points; more names beside points, as of a search, cannot be read

Points = Mapping[str, tuple[float, Estimate]]  # by variant, seconds and score


def pareto(part: Part) -> Iterator[Drawing]:
    points: dict[str, tuple[float, Estimate]] = {}
    for row in part.frame.to_dict("records"):
        if row["op"] is not None and not row["bound"]:
            points[row["variant"]] = row["seconds"], row["op"]
    if len(points) > 2:
        figure = pareto_figure(points, looks_of(part), part.reference)
        caption = "OP against time. The line joins what nothing beats in both."
        yield Drawing("pareto", caption, figure)


def pareto_figure(
    points: Points, look_of: Mapping[str, Look], reference: str | None = None
) -> Figure:
    """OP against time, with the front: the points that none beats in both.

    What lacks one of the two is not drawn. More than NAMED points have no names.
    """
    figure, (axis,) = new_figure(6.6, [2.9])
    tidy(axis, "both")
    axis.margins(0.1, 0.1)
    axis.set(xlabel="seconds a run, training and evaluation", ylabel="OP (%)")
    axis.xaxis.set_major_formatter(FuncFormatter(plain))
    scores: dict[str, tuple[float, float]] = {}
    for name, (seconds, estimate) in points.items():
        if known(seconds) and known(estimate.value):
            scores[name] = seconds, estimate.value
            draw_numbers(axis, {seconds: estimate}, look_of[name], name)
    scale(axis, "x", [seconds for seconds, _ in scores.values()])
    best = front(scores)
    if best:
        # To the right edge: what lies below and right of the steps is beaten.
        freeze(axis)
        x, y = zip(*[*best, (axis.get_xlim()[1], best[-1][1])], strict=True)
        style = {"color": ACCENT, "linewidth": 1.0, "alpha": 0.7, "zorder": 1, "label": "front"}
        legend(figure, axis.step(x, y, where="post", **style), "lower center")
    if len(scores) <= NAMED:
        name_points(axis, scores, reference)
    return figure


def front(points: Mapping[str, tuple[float, float]]) -> list[tuple[float, float]]:
    """The (seconds, score) that no other point beats in one without losing in the other, by rising
    time.

    >>> front({"a": (1.0, 50.0), "b": (2.0, 40.0), "c": (3.0, 60.0)})
    [(1.0, 50.0), (3.0, 60.0)]
    """
    best: list[tuple[float, float]] = []
    for seconds, score in sorted(points.values(), key=lambda point: (point[0], -point[1])):
        if not best or score > best[-1][1]:
            best.append((seconds, score))
    return best
