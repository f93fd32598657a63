"""Variants side by side: OP with its interval, and the score on the tasks learned so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from forever.report.bootstrap import Estimate
from forever.report.figures.style import (
    BANDS,
    SMALL,
    Drawing,
    Look,
    draw_line,
    label,
    legend,
    looks_of,
    new_figure,
    tidy,
)
from forever.report.format import estimated
from forever.report.study import Part

Results = Sequence[Mapping[str, Any]]  # contents of result.json


def intervals(part: Part) -> Iterator[Drawing]:
    if len(part.measured) > 1:
        estimates = {row.variant: row.compared("op") for row in part.measured}
        figure = interval_figure(estimates, looks_of(part), part.reference)
        yield Drawing("op", "Overall performance (OP) of each variant.", figure)


def interval_figure(
    estimates: Mapping[str, Estimate], look_of: Mapping[str, Look], reference: str | None = None
) -> Figure:
    """OP and its interval a variant, as dots and whiskers; a line marks the reference's OP."""
    figure, (axis,) = new_figure(7.5, [1.0 + 0.3 * max(len(estimates), 1)])
    axis.grid(visible=False)
    tidy(axis, "x")
    for y, (name, estimate) in enumerate(estimates.items()):
        look = look_of[name]
        ends = [estimate.low, estimate.high]
        axis.plot(ends, [y, y], color=look.colour, linewidth=2.2, alpha=0.35)
        axis.plot([estimate.value], [y], marker=look.marker, markersize=6, color=look.colour)
        axis.annotate(
            estimated(estimate, "{:.1f}"),
            (1.02, y),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=SMALL + 0.5,
            fontweight="bold" if name == reference else "normal",
        )
    if reference is not None and reference in estimates:
        value, colour = estimates[reference].value, look_of[reference].colour
        axis.axvline(value, color=colour, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    axis.set_yticks(range(len(estimates)), list(estimates))
    axis.set_ylim(len(estimates) - 0.4, -0.6)
    label(axis, x="OP (%) with 95 % interval")
    return figure


def accuracy(part: Part) -> Iterator[Drawing]:
    results = {row.variant: row.results for row in part.measured}
    if not any(seen(result) for found in results.values() for result in found):
        return
    caption = "Mean score on the tasks learned so far, after each task; mean over runs."
    if len(results) <= BANDS and any(len(found) > 1 for found in results.values()):
        caption += " Bands: lowest to highest run."
    yield Drawing("accuracy", caption, accuracy_figure(results, looks_of(part)))


def accuracy_figure(results: Mapping[str, Results], look_of: Mapping[str, Look]) -> Figure:
    """Mean score on the tasks seen so far, over stages; a line a variant.

    Up to BANDS variants have a band from their lowest to their highest run. Joint training is a
    point at the end.
    """
    figure, (axis,) = new_figure(9, [4])
    shown = {variant: found for variant, found in results.items() if found}
    orders = {tuple(r["stages"]) for found in shown.values() for r in found if seen(r)}
    last = max(map(len, orders), default=1)
    lines: list[tuple[float, Line2D]] = []
    for variant, found in shown.items():
        look = look_of[variant]
        curves = np.array([seen(result) or [result["op"]] for result in found])
        mean = curves.mean(axis=0)
        x = np.arange(last - len(mean), last) + 1
        line = draw_line(axis, x, mean, look, variant, joined=len(x) > 1)
        line.set_clip_on(False)
        if len(found) > 1 and len(shown) <= BANDS:
            low, high = curves.min(axis=0), curves.max(axis=0)
            axis.fill_between(x, low, high, color=look.colour, alpha=0.12, linewidth=0)
        lines.append((float(mean[-1]), line))
    label(axis, "tasks learned", "mean score on tasks seen so far (%)")
    _stage_ticks(axis, orders, last)
    # In the order in which the lines end, from top to bottom.
    lines.sort(key=lambda end: -end[0])
    legend(figure, [line for _, line in lines])
    return figure


def _stage_ticks(axis: Axes, orders: set[tuple[str, ...]], last: int) -> None:
    """Task names if all runs share an order, else numbers."""
    axis.set_xlim(0.8, last + 0.2)
    if len(orders) != 1:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    names = [f"{number} {name}" for number, name in enumerate(next(iter(orders)), 1)]
    axis.set_xticks(range(1, last + 1), names)
    if last > 7:
        axis.tick_params(axis="x", rotation=40)
        for tick in axis.get_xticklabels():
            tick.set(ha="right", rotation_mode="anchor")


def seen(result: Mapping[str, Any]) -> list[float]:
    """After each stage, the mean score in percent on the tasks learned by then; empty for joint
    training."""
    matrix = result["matrix"]
    if len(result["stages"]) != len(result["tasks"]):
        return []
    return [fmean(row[stage] for row in matrix[: stage + 1]) for stage in range(len(matrix))]
