"""OP against time, and what nothing beats in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from forever.report.bootstrap import Estimate
from forever.report.figures.style import (
    ACCENT,
    Drawing,
    Look,
    draw_line,
    draw_whisker,
    known,
    label,
    legend,
    log_scale,
    looks_of,
    name_points,
    new_figure,
    plain,
    tidy,
)
from forever.report.study import Part

NAMED = 16  # points; more names beside points, as of a search, cannot be read
WIDE = 5  # largest over smallest number, from where an axis is logarithmic

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
    shown: dict[str, tuple[float, Estimate]] = {}
    for name, (time, estimate) in points.items():
        if known(time) and time > 0 and known(estimate.value):
            shown[name] = time, estimate
    figure, (axis,) = new_figure(6.6, [4.2])
    tidy(axis, "both")
    for name, (time, estimate) in shown.items():
        draw_whisker(axis, time, estimate, look_of[name])
        draw_line(axis, [time], [estimate.value], look_of[name], name, joined=False)
    label(axis, "seconds a run, training and evaluation", "OP (%)")
    axis.margins(0.1, 0.1)
    times = [time for time, _ in shown.values()]
    if times and max(times) / min(times) >= WIDE:
        log_scale(axis, "x")
    else:
        axis.xaxis.set_major_formatter(FuncFormatter(plain))
    scores = {name: (time, estimate.value) for name, (time, estimate) in shown.items()}
    _draw_front(axis, front(scores))
    legend(figure, [line for line in axis.lines if line.get_label() == "front"], "lower center")
    if len(shown) <= NAMED:
        name_points(axis, scores, reference)
    return figure


def front(points: Mapping[str, tuple[float, float]]) -> list[tuple[float, float]]:
    """The (seconds, score) that no other point beats in one without losing in the other, by rising
    time.

    >>> front({"a": (1.0, 50.0), "b": (2.0, 40.0), "c": (3.0, 60.0)})
    [(1.0, 50.0), (3.0, 60.0)]
    """
    best: list[tuple[float, float]] = []
    for time, score in sorted(points.values(), key=lambda point: (point[0], -point[1])):
        if not best or score > best[-1][1]:
            best.append((time, score))
    return best


def _draw_front(axis: Axes, best: Sequence[tuple[float, float]]) -> None:
    """Steps from point to point; what lies below and right of them is beaten."""
    if not best:
        return
    limits = axis.get_xlim(), axis.get_ylim()
    x, y = zip(*best, strict=True)
    axis.step(
        [*x, limits[0][1]],
        [*y, y[-1]],
        where="post",
        color=ACCENT,
        linewidth=1.0,
        alpha=0.7,
        zorder=1,
        label="front",
    )
    axis.set(xlim=limits[0], ylim=limits[1])
