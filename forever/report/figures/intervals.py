"""Variants side by side: OP with its interval, and the score on the tasks learned so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forever.report.bootstrap import Estimate
from forever.report.figures.style import (
    BANDS,
    MANY_STAGES,
    SLANTED,
    SMALL,
    Drawing,
    Look,
    draw_band,
    draw_line,
    legend,
    looks_of,
    mark,
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
    figure, (axis,) = new_figure(7.5, [0.3 * max(len(estimates), 1)])
    tidy(axis, "x")
    for y, (name, estimate) in enumerate(estimates.items()):
        look = look_of[name]
        axis.hlines(y, estimate.low, estimate.high, color=look.colour, linewidth=2.2, alpha=0.35)
        axis.plot([estimate.value], [y], marker=look.marker, markersize=6, color=look.colour)
        text = axis.text(
            1.02, y, estimated(estimate, "{:.1f}"), va="center", fontsize=SMALL + 0.5,
            transform=axis.get_yaxis_transform(),
        )  # fmt: skip
        if name == reference:
            text.set_fontweight("bold")
            mark(axis.axvline, estimate.value, look.colour)
    axis.set_yticks(range(len(estimates)), list(estimates))
    axis.set(xlabel="OP (%) with 95 % interval", ylim=(len(estimates) - 0.4, -0.6))
    return figure


def accuracy(part: Part) -> Iterator[Drawing]:
    results = {row.variant: row.results for row in part.measured}
    if all(result["method"] == "mtl" for row in part.measured for result in row.results):
        return
    caption = "Mean score on the tasks learned so far, after each task; mean over runs."
    if len(results) <= BANDS and any(len(runs) > 1 for runs in results.values()):
        caption += " Bands: lowest to highest run."
    yield Drawing("accuracy", caption, accuracy_figure(results, looks_of(part)))


def accuracy_figure(results: Mapping[str, Results], look_of: Mapping[str, Look]) -> Figure:
    """Mean score on the tasks seen so far, over stages; a line a variant.

    Up to BANDS variants have a band from their lowest to their highest run. Joint training is a
    point at the end.
    """
    figure, (axis,) = new_figure(9, [2.7])
    shown = {variant: runs for variant, runs in results.items() if runs}
    orders: set[tuple[str, ...]] = set()
    for runs in shown.values():
        orders |= {tuple(result["tasks"]) for result in runs}
    last = max(map(len, orders), default=1)
    for variant, runs in shown.items():
        curves = np.array([seen(result) for result in runs])
        mean = curves.mean(axis=0)
        x = np.arange(last - len(mean), last) + 1
        draw_line(axis, x, mean, look_of[variant], variant, clip_on=False)
        if len(shown) <= BANDS:
            draw_band(axis, x, curves.min(axis=0), curves.max(axis=0), look_of[variant])
    axis.set(xlabel="tasks learned", ylabel="mean score on tasks seen so far (%)")
    axis.set_xlim(0.8, last + 0.2)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(orders) == 1:
        names = [f"{number} {name}" for number, name in enumerate(orders.pop(), 1)]
        style = {"ha": "right", **SLANTED} if last > MANY_STAGES else {}
        axis.set_xticks(range(1, last + 1), names, **style)
    # In the order in which the lines end, from top to bottom.
    legend(figure, sorted(axis.lines, key=lambda line: -np.asarray(line.get_ydata())[-1]))
    return figure


def seen(result: Mapping[str, Any]) -> list[float]:
    """After each stage, the mean score in percent on the tasks learned by then; OP alone for joint
    training."""
    matrix = result["matrix"]
    if len(result["stages"]) != len(result["tasks"]):
        return [result["op"]]
    return [fmean(row[stage] for row in matrix[: stage + 1]) for stage in range(len(matrix))]
