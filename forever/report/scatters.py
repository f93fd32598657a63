"""Two numbers against each other: score against time, and what the length of a model day goes
with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from forever.report.analyses import pearson
from forever.report.bootstrap import Estimate
from forever.report.labels import place_labels
from forever.report.style import (
    ACCENT,
    GREY,
    GRID,
    INK,
    NORMAL,
    SMALL,
    known,
    log_scale,
    minus,
    plain,
    tidy,
)

WIDE = 5  # largest over smallest number, from where an axis is logarithmic

# ---- score against time


def pareto_figure(
    points: Mapping[str, tuple[float, Estimate]],
    reference: str | None = None,
    *,
    named: bool = True,
    labels: tuple[str, str] = ("training time (s)", "OP (%)"),
) -> Figure:
    """Score against training time, with the front: the points that none beats in both.

    Args:
        points: by variant or trial, seconds and score. What lacks one of the two is not drawn.
        reference: the point in the accent colour.
        named: False for the many trials of a search: no names beside the points.
        labels: of the two axes.
    """
    shown = {
        name: (s, e) for name, (s, e) in points.items() if known(s) and s > 0 and known(e.value)
    }
    scores = {name: (seconds, e.value) for name, (seconds, e) in shown.items()}
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axis = figure.subplots()
    tidy(axis)
    for name, (seconds, estimate) in shown.items():
        colour = ACCENT if name == reference else INK
        if estimate.high > estimate.low:
            axis.plot(
                [seconds] * 2,
                [estimate.low, estimate.high],
                color=colour,
                linewidth=1.8,
                alpha=0.25,
                zorder=2,
            )
        style: dict[str, Any] = {
            "marker": "D" if name == reference else "o",
            "markersize": 6.5 if named else 5,
        }
        axis.plot(
            [seconds],
            [estimate.value],
            label=name,
            zorder=3,
            color=colour,
            linestyle="none",
            **style,
        )
    axis.set_xlabel(labels[0], fontsize=NORMAL)
    axis.set_ylabel(labels[1], fontsize=NORMAL)
    axis.grid(color=GRID, linewidth=0.6)
    axis.margins(0.1, 0.1)
    _scale_time(axis, [seconds for seconds, _ in shown.values()])
    _draw_front(axis, front(scores))
    _name_front(figure, axis)
    if named:
        place_labels(axis, scores, reference)
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


def _scale_time(axis: Axes, seconds: Sequence[float]) -> None:
    if seconds and max(seconds) / min(seconds) >= WIDE:
        log_scale(axis, "x")
    else:
        axis.xaxis.set_major_formatter(FuncFormatter(plain))


def _draw_front(axis: Axes, best: Sequence[tuple[float, float]]) -> None:
    """Steps from point to point; what lies below and right of them is beaten."""
    if not best:
        return
    limits = axis.get_xlim(), axis.get_ylim()
    x, y = zip(*best, strict=True)
    corners = np.repeat([*x, limits[0][1]], 2)[1:], np.repeat([*y, y[-1]], 2)[:-1]
    axis.plot(*corners, color=ACCENT, linewidth=1.0, alpha=0.7, zorder=1, label="front")
    axis.set(xlim=limits[0], ylim=limits[1])


def _name_front(figure: Figure, axis: Axes) -> None:
    for line in axis.lines:
        if line.get_label() == "front":
            figure.legend(
                [line], ["front"], loc="outside lower center", frameon=False, fontsize=SMALL + 0.5
            )


# ---- model days


def model_day_figure(
    pairs: Mapping[str, Mapping[str, tuple[float, float]]], orders: Sequence[str]
) -> Figure:
    """What the length of a task's model day goes with: the other order's, the task's BWT, joint
    training's score.

    A point a task, and in the title Pearson's r of these points with its two-sided p.

    Args:
        pairs: tau_day (L2 distance) and the other number by task, for "other order", "BWT" (points;
        both means over
            orders) and "joint training" (%).
        orders: the names of the two orders.
    """
    figure = Figure(figsize=(10.5, 3.7), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, 3))
    tau = r"$\tau_\mathrm{day}$"
    over = ", mean over orders" if len(orders) > 1 else ""
    labels = {
        "other order": tuple(f"{tau}, order {order}" for order in orders[:2])
        if len(orders) > 1
        else (tau, tau),
        "BWT": (tau + over, "BWT of the task (points)"),
        "joint training": (tau + over, "joint training's score (%)"),
    }
    for axis, (name, (x_label, y_label)) in zip(axes, labels.items(), strict=True):
        tidy(axis)
        axis.grid(color=GRID, linewidth=0.6)
        axis.margins(0.1, 0.1)
        _scatter(axis, pairs.get(name, {}))
        axis.set_xlabel(x_label, fontsize=NORMAL)
        axis.set_ylabel(y_label, fontsize=NORMAL)
    if pairs.get("other order"):
        _draw_diagonal(axes[0])
    place_labels(axes[0], pairs.get("other order", {}))
    return figure


def _draw_diagonal(axis: Axes) -> None:
    """Where both numbers are equal, as far as that is inside."""
    x, y = axis.get_xlim(), axis.get_ylim()
    ends = max(x[0], y[0]), min(x[1], y[1])
    if ends[0] < ends[1]:
        axis.plot(ends, ends, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    axis.set(xlim=x, ylim=y)


def _scatter(axis: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """A point a task, and their correlation in the title."""
    x, y = [point[0] for point in points.values()], [point[1] for point in points.values()]
    axis.plot(x, y, marker="o", markersize=5.5, linestyle="none", color=ACCENT)
    if not points:
        axis.set(xticks=[], yticks=[])
        axis.text(
            0.5,
            0.5,
            "no task has both",
            transform=axis.transAxes,
            ha="center",
            color=GREY,
            fontsize=SMALL,
        )
    axis.set_title(correlation(x, y), fontsize=SMALL + 0.5, color=INK)


def correlation(x: Sequence[float], y: Sequence[float]) -> str:
    """Pearson's r with its p and the number of pairs; it is not defined for fewer than three or for
    constants."""
    found = pearson(x, y)
    if found is None:
        return f"r not defined (n = {len(x)})"
    p = "p < 0.001" if found[1] < 0.001 else f"p = {found[1]:.3f}"
    return minus(f"r = {found[0]:.2f}, {p}, n = {len(x)}")
