"""What the length of a task's model day goes with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forever.report.analyses import Pairs, day_pairs, model_days, pearson
from forever.report.figures.style import (
    ACCENT,
    GREY,
    INK,
    SMALL,
    Drawing,
    freeze,
    name_points,
    tidy,
)
from forever.report.format import minus
from forever.report.study import Part

_TAU = r"$\tau_\mathrm{day}$"


def model_day(part: Part) -> Iterator[Drawing]:
    figure = model_day_figure(day_pairs(part), model_days(part).orders)
    caption = "The length of a task's model day beside what it could go with."
    yield Drawing("model-day", caption, figure)


def model_day_figure(pairs: Mapping[str, Pairs], orders: Sequence[str]) -> Figure:
    """What the length of a task's model day goes with: the other order's, the task's BWT, joint
    training's score.

    A point a task, and in the title Pearson's r of these points with its two-sided p.

    Args:
        pairs: tau_day (L2 distance) and the other number by task, for "other order", "BWT" (points;
            both means over orders) and "joint training" (%).
        orders: the names of the two orders.
    """
    figure = Figure(figsize=(10.5, 3.7), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, 3))
    tau, first, second = _TAU, _TAU, _TAU
    if len(orders) > 1:
        tau = f"{_TAU}, mean over orders"
        first, second = (f"{_TAU}, order {order}" for order in orders[:2])
    _draw_points(axes[0], pairs["other order"], first, second)
    _draw_points(axes[1], pairs["BWT"], tau, "BWT of the task (points)")
    _draw_points(axes[2], pairs["joint training"], tau, "joint training's score (%)")
    if pairs["other order"]:
        low, high = axes[0].get_xlim()
        middle = (low + high) / 2
        # Where both days are equally long.
        axes[0].axline((middle, middle), slope=1, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
        name_points(axes[0], pairs["other order"])
    return figure


def _draw_points(axis: Axes, points: Pairs, x: str, y: str) -> None:
    """A point a task, and their correlation in the title."""
    tidy(axis, "both")
    axis.margins(0.1, 0.1)
    axis.set(xlabel=x, ylabel=y)
    axis.set_title(correlation(list(points.values())), fontsize=SMALL + 0.5, color=INK)
    if points:
        xs, ys = zip(*points.values(), strict=True)
        axis.plot(xs, ys, marker="o", markersize=5.5, linestyle="none", color=ACCENT)
        freeze(axis)
    else:
        axis.set(xticks=[], yticks=[])
        axis.text(0.5, 0.5, "no task has both", color=GREY, ha="center", transform=axis.transAxes)


def correlation(points: Sequence[tuple[float, float]]) -> str:
    """Pearson's r with its p and the number of pairs; it is not defined for fewer than three or for
    constants."""
    test = pearson(points)
    if test is None:
        return f"r not defined (n = {len(points)})"
    r, p = test
    probability = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return minus(f"r = {r:.2f}, {probability}, n = {len(points)}")
