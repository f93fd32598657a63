"""Two numbers against each other: score against time, and what the length of a model day goes with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from scipy.stats import pearsonr

from experiments.labels import place_labels
from experiments.style import ACCENT, GREY, GRID, INK, MARKERS, NORMAL, SMALL, known, log_scale, minus, plain, tidy
from forever.statistics import Estimate

WIDE = 5  # largest over smallest number, from where an axis is logarithmic
STOPPED = "#B0B0B0"

# ---- score against time


def pareto_figure(
    points: Mapping[str, tuple[float, Estimate]],
    reference: str | None = None,
    *,
    named: bool = True,
    stopped: Collection[str] = (),
    labels: tuple[str, str] = ("training time (s)", "OP (%)"),
) -> Figure:
    """Score against training time, with the front: the points that none beats in both.

    Args:
        points: by variant or trial, seconds and score. What lacks one of the two is not drawn.
        reference: the point in the accent colour.
        named: False for the many trials of a search: no names beside the points.
        stopped: trials that were ended early: hollow, grey and never on the front, as their scores are not final.
        labels: of the two axes.
    """
    shown = {name: (s, e) for name, (s, e) in points.items() if known(s) and s > 0 and known(e.value)}
    finished = {name: (seconds, e.value) for name, (seconds, e) in shown.items() if name not in stopped}
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axis = figure.subplots()
    tidy(axis)
    for name, (seconds, estimate) in shown.items():
        colour = STOPPED if name in stopped else ACCENT if name == reference else INK
        if estimate.high > estimate.low and name not in stopped:
            axis.plot([seconds] * 2, [estimate.low, estimate.high], color=colour, linewidth=1.8, alpha=0.25, zorder=2)
        style: dict[str, Any] = {"marker": "D" if name == reference else "o", "markersize": 6.5 if named else 5}
        style |= {"color": colour, "markerfacecolor": "white" if name in stopped else colour, "linestyle": "none"}
        axis.plot([seconds], [estimate.value], label=name, zorder=2 if name in stopped else 3, **style)
    axis.set_xlabel(labels[0], fontsize=NORMAL)
    axis.set_ylabel(labels[1], fontsize=NORMAL)
    axis.grid(color=GRID, linewidth=0.6)
    axis.margins(0.1, 0.1)
    _scale_time(axis, [seconds for seconds, _ in shown.values()])
    _draw_front(axis, front(finished))
    _explain_points(figure, axis, shown.keys() & set(stopped))
    if named:
        place_labels(axis, {name: (s, e.value) for name, (s, e) in shown.items()}, reference)
    return figure


def front(points: Mapping[str, tuple[float, float]]) -> list[tuple[float, float]]:
    """The (seconds, score) that no other point beats in one without losing in the other, by rising time.

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


def _explain_points(figure: Figure, axis: Axes, stopped: Collection[str]) -> None:
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    shown = {"front": handles["front"]} if "front" in handles else {}
    if stopped:
        finished = [name for name in handles if name not in stopped and name != "front"]
        if finished:
            shown["finished"] = handles[finished[0]]
        shown["stopped early"] = handles[min(stopped)]
    style: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "frameon": False, "fontsize": SMALL + 0.5}
    if shown:
        figure.legend(list(shown.values()), list(shown), **style)


# ---- model days


def model_day_figure(
    days: Mapping[str, Mapping[str, float | None]],
    bwt: Mapping[str, Mapping[str, float | None]],
    joint: Mapping[str, float | None],
) -> Figure:
    """What the length of a task's model day goes with: the other order's, the task's BWT, joint training's score.

    Each panel names Pearson's r and its two-sided p, for each order by itself: the two orders have the same tasks, so
    pooling them would count each task twice.

    Args:
        days: tau_day (L2 distance) by order and task; the first two orders are compared.
        bwt: a[i, K] - a[i, i] in points, by order and task.
        joint: joint training's score (%) by task.
    """
    figure = Figure(figsize=(10.5, 3.7), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, 3))
    for axis in axes:
        tidy(axis)
        axis.grid(color=GRID, linewidth=0.6)
        axis.margins(0.1, 0.1)
    orders = list(days)[:2]
    tau = r"$\tau_\mathrm{day}$"
    pairs = _pairs(days[orders[0]], days[orders[1]]) if len(orders) == 2 else {}
    _scatter(axes[0], {"": pairs})
    if pairs:
        _draw_diagonal(axes[0])
        for set_label, order in zip((axes[0].set_xlabel, axes[0].set_ylabel), orders, strict=True):
            set_label(f"{tau}, order {order}", fontsize=NORMAL)
    for axis, others, label in (
        (axes[1], {order: bwt.get(order, {}) for order in orders}, "BWT of the task (points)"),
        (axes[2], dict.fromkeys(orders, joint), "joint training's score (%)"),
    ):
        _scatter(axis, {f"order {order}": _pairs(days[order], others[order]) for order in orders})
        axis.set_xlabel(tau, fontsize=NORMAL)
        axis.set_ylabel(label, fontsize=NORMAL)
    handles, names = axes[2].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize=SMALL + 0.5)
    place_labels(axes[0], pairs)
    return figure


def _draw_diagonal(axis: Axes) -> None:
    """Where both numbers are equal, as far as that is inside."""
    x, y = axis.get_xlim(), axis.get_ylim()
    ends = max(x[0], y[0]), min(x[1], y[1])
    if ends[0] < ends[1]:
        axis.plot(ends, ends, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    axis.set(xlim=x, ylim=y)


def _pairs(x: Mapping[str, float | None], y: Mapping[str, float | None]) -> dict[str, tuple[float, float]]:
    """Tasks that have both numbers."""
    both = {task: (x[task], y.get(task)) for task in x}
    return {task: (a, b) for task, (a, b) in both.items() if known(a) and known(b)}


def _scatter(axis: Axes, series: Mapping[str, Mapping[str, tuple[float, float]]]) -> None:
    """Points of each series, and its correlation in the title."""
    titles: list[str] = []
    for number, (name, pairs) in enumerate(series.items()):
        colour = (ACCENT, "#CC6677")[number % 2]
        x, y = [pair[0] for pair in pairs.values()], [pair[1] for pair in pairs.values()]
        style: dict[str, Any] = {"marker": MARKERS[number], "markersize": 5.5, "linestyle": "none", "color": colour}
        axis.plot(x, y, label=name, markerfacecolor=colour if number == 0 else "white", **style)
        titles.append(f"{name}: {correlation(x, y)}" if name else correlation(x, y))
    if not any(series.values()):
        axis.set(xticks=[], yticks=[])
        axis.text(0.5, 0.5, "no task has both", transform=axis.transAxes, ha="center", color=GREY, fontsize=SMALL)
    axis.set_title("\n".join(titles), fontsize=SMALL + 0.5, color=INK)


def correlation(x: Sequence[float], y: Sequence[float]) -> str:
    """Pearson's r with its p and the number of pairs; it is not defined for fewer than three or for constants."""
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return f"r not defined (n = {len(x)})"
    found: Any = pearsonr(x, y)
    p = "p < 0.001" if found.pvalue < 0.001 else f"p = {found.pvalue:.3f}"
    return minus(f"r = {found.statistic:.2f}, {p}, n = {len(x)}")
