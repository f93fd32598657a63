"""What the length of a task's model day goes with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forever.report.analyses import Pairs, day_orders, day_pairs, pearson
from forever.report.figures.style import ACCENT, GREY, INK, SMALL, Drawing, label, name_points, tidy
from forever.report.format import minus
from forever.report.study import Part

_TAU = r"$\tau_\mathrm{day}$"


def model_day(part: Part) -> Iterator[Drawing]:
    figure = model_day_figure(day_pairs(part), day_orders(part))
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
    both = [f"{_TAU}, order {order}" for order in orders[:2]] if len(orders) > 1 else [_TAU] * 2
    tau = f"{_TAU}, mean over orders" if len(orders) > 1 else _TAU
    _draw_points(axes[0], pairs.get("other order", {}), both[0], both[1])
    _draw_points(axes[1], pairs.get("BWT", {}), tau, "BWT of the task (points)")
    score = "joint training's score (%)"
    _draw_points(axes[2], pairs.get("joint training", {}), tau, score)
    if pairs.get("other order"):
        _draw_diagonal(axes[0])
        name_points(axes[0], pairs["other order"])
    return figure


def _draw_diagonal(axis: Axes) -> None:
    """Where both numbers are equal."""
    limits = axis.get_xlim(), axis.get_ylim()
    middle = sum(limits[0]) / 2
    axis.axline((middle, middle), slope=1, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    axis.set(xlim=limits[0], ylim=limits[1])


def _draw_points(axis: Axes, points: Pairs, x: str, y: str) -> None:
    """A point a task, and their correlation in the title."""
    tidy(axis, "both")
    axis.margins(0.1, 0.1)
    xs, ys = [point[0] for point in points.values()], [point[1] for point in points.values()]
    axis.plot(xs, ys, marker="o", markersize=5.5, linestyle="none", color=ACCENT)
    if not points:
        axis.set(xticks=[], yticks=[])
        place: dict[str, Any] = {"transform": axis.transAxes, "ha": "center"}
        axis.text(0.5, 0.5, "no task has both", color=GREY, fontsize=SMALL, **place)
    axis.set_title(correlation(list(points.values())), fontsize=SMALL + 0.5, color=INK)
    label(axis, x, y)


def correlation(points: Sequence[tuple[float, float]]) -> str:
    """Pearson's r with its p and the number of pairs; it is not defined for fewer than three or for
    constants."""
    found = pearson(points)
    if found is None:
        return f"r not defined (n = {len(points)})"
    r, p = found
    probability = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return minus(f"r = {r:.2f}, {probability}, n = {len(points)}")
