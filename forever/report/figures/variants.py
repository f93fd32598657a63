"""Variants side by side: OP with its interval and against time, the score on the tasks learned so
far, and how much of each task they keep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forever.report.bootstrap import Estimate
from forever.report.figures import style
from forever.report.format import estimated
from forever.report.row import Row
from forever.report.study import Part

NAMED = 16  # points of OP against time; of more, as of a search, the legend is too long
TOGETHER = 8  # variants in one radar; more hide each other


def intervals(part: Part) -> Iterator[style.Picture]:
    if len(part.measured) > 1:
        estimates = {row.variant: row.compared("op") for row in part.measured}
        figure = interval_figure(estimates, style.looks_of(part), part.reference)
        yield style.Picture("op", "Overall performance (OP) of each variant.", figure)


def interval_figure(
    estimates: Mapping[str, Estimate], look_of: style.Looks, reference: str | None = None
) -> Figure:
    """OP and its interval a variant, as dots and whiskers; a line marks the reference's OP."""
    figure, (axis,) = style.new_figure(7.5, [0.3 * len(estimates)])
    style.tidy(axis, "x")
    right: dict[str, Any] = {"va": "center", "transform": axis.get_yaxis_transform()}
    for y, (name, estimate) in enumerate(estimates.items()):
        look = look_of[name]
        axis.hlines(y, estimate.low, estimate.high, color=look.colour, linewidth=2.2, alpha=0.35)
        axis.plot([estimate.value], [y], marker=look.marker, markersize=6, color=look.colour)
        text = axis.text(1.02, y, estimated(estimate, "{:.1f}"), fontsize=style.SMALL, **right)
        if name == reference:
            text.set_fontweight("bold")
            axis.axvline(estimate.value, **style.MARK)
    axis.set_yticks(range(len(estimates)), list(estimates))
    axis.set(xlabel="OP (%) with 95 % interval", ylim=(len(estimates) - 0.4, -0.6))
    return figure


def accuracy(part: Part) -> Iterator[style.Picture]:
    results = {row.variant: row.results for row in part.measured}
    if all(result["method"] == "mtl" for row in part.measured for result in row.results):
        return
    caption = "Mean score on the tasks learned so far, after each task; mean over runs."
    if len(results) <= style.BANDS and part.most_runs > 1:
        caption += " Bands: lowest to highest run."
    yield style.Picture("accuracy", caption, accuracy_figure(results, style.looks_of(part)))


def accuracy_figure(
    results: Mapping[str, Sequence[Mapping[str, Any]]], look_of: style.Looks
) -> Figure:
    """Mean score on the tasks seen so far, over stages; a line a variant, for up to BANDS with a
    band from the lowest to the highest run. Joint training is a point at the end.

    Args:
        results: by variant, the content of result.json of each run.
    """
    figure, (axis,) = style.new_figure(9, [2.7])
    curves: dict[str, np.ndarray] = {}  # [runs, stages]
    orders: set[tuple[str, ...]] = set()
    for variant, runs in results.items():
        curves[variant] = np.array([seen(result) for result in runs])
        orders |= {tuple(result["tasks"]) for result in runs}
    last = max(map(len, orders))
    # In the order in which the lines end, from top to bottom.
    for variant in sorted(curves, key=lambda name: -curves[name][:, -1].mean()):
        runs, colour = curves[variant], look_of[variant].colour
        mean = runs.mean(axis=0)
        x = np.arange(last - len(mean), last) + 1
        style.draw_line(axis, x, mean, look_of[variant], variant, clip_on=False)
        if len(curves) <= style.BANDS:
            axis.fill_between(x, runs.min(axis=0), runs.max(axis=0), color=colour, **style.BAND)
    axis.set(xlabel="tasks learned", ylabel="mean score on tasks seen so far (%)")
    axis.set_xlim(0.8, last + 0.2)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(orders) == 1:
        names = [f"{number} {name}" for number, name in enumerate(orders.pop(), 1)]
        turned = {"ha": "right", **style.SLANTED} if last > style.MANY_STAGES else {}
        axis.set_xticks(range(1, last + 1), names, **turned)
    style.legend(figure)
    return figure


def seen(result: Mapping[str, Any]) -> list[float]:
    """After each stage, the mean score in percent on the tasks learned by then."""
    matrix = result["matrix"]
    if len(result["stages"]) != len(result["tasks"]):  # joint training
        return [result["op"]]
    return [fmean(row[stage] for row in matrix[: stage + 1]) for stage in range(len(matrix))]


def pareto(part: Part) -> Iterator[style.Picture]:
    points: dict[str, tuple[float, Estimate]] = {}
    for row in part.measured:
        if not row.bound:
            points[row.variant] = fmean(run.seconds for run in row.runs), row.compared("op")
    if len(points) > 2:
        figure = pareto_figure(points, style.looks_of(part))
        caption = "OP against time. The line joins what nothing beats in both."
        yield style.Picture("pareto", caption, figure)


def pareto_figure(points: Mapping[str, tuple[float, Estimate]], look_of: style.Looks) -> Figure:
    """OP against seconds, with the front: the points that none beats in both."""
    figure, (axis,) = style.new_figure(6.6, [2.9])
    style.tidy(axis, "both")
    axis.margins(0.1, 0.1)
    axis.set(xlabel="seconds a run, training and evaluation", ylabel="OP (%)")
    for name, (seconds, estimate) in points.items():
        style.draw_numbers(axis, {seconds: estimate}, look_of[name], name)
    style.scale(axis, "x")
    axis.set(xlim=axis.get_xlim(), ylim=axis.get_ylim())
    # To the right edge: what lies below and right of the steps is beaten.
    best = front((seconds, estimate.value) for seconds, estimate in points.values())
    x, y = zip(*best, (axis.get_xlim()[1], best[-1][1]), strict=True)
    axis.step(x, y, where="post", color=style.ACCENT, linewidth=1.0, zorder=1, label="front")
    if len(points) <= NAMED:
        style.legend(figure)
    return figure


def front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (seconds, score) that no other point beats in one without losing in the other, by rising
    time."""
    best: list[tuple[float, float]] = []
    for seconds, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or score > best[-1][1]:
            best.append((seconds, score))
    return best


def radar(part: Part) -> Iterator[style.Picture]:
    joint = [row for row in part.measured if row.bound and row.results[0]["method"] == "mtl"]
    if not joint:
        return
    best = final_scores(joint[0])
    others = [row for row in part.measured if row is not joint[0]]
    kept = pd.DataFrame({row.variant: final_scores(row) / best[best > 0] for row in others})
    kept = kept.reindex(best.index)
    if not kept.notna().to_numpy().any():
        return
    caption = "Final score on each task as a share of joint training's (dashed: 1); mean over runs."
    if len(others) > TOGETHER:
        rank = list(kept.mean().sort_values(ascending=False).index)
        kept = kept.drop(columns=[name for name in rank[TOGETHER - 1 :] if name != part.reference])
        caption += f" The {kept.shape[1]} that keep most, with the reference."
    yield style.Picture("retention", caption, radar_figure(kept, style.looks_of(part)))


def final_scores(row: Row) -> pd.Series:
    """The score on each task at the end, the mean over runs."""
    scores: list[pd.Series] = []
    for result in row.results:
        matrix = np.array(result["matrix"], dtype=float)
        scores.append(pd.Series(matrix[:, -1], result["tasks"]))
    return pd.concat(scores, axis=1).mean(axis=1)


def radar_figure(retention: pd.DataFrame, look_of: style.Looks) -> Figure:
    """What each variant keeps of each task, on an axis a task, clockwise from the top.

    Args:
        retention: a row a task, a column a variant; it may exceed 1. NaN leaves a gap.
    """
    angles = np.linspace(0, 2 * np.pi, len(retention) + 1)
    figure = Figure(figsize=(6.6, 4.8), layout="constrained")
    axis: Any = figure.add_subplot(projection="polar")
    for name, kept in retention.items():
        if kept.notna().any():
            heights = np.append(kept, kept.iloc[0])
            style.draw_line(axis, angles, heights, look_of[str(name)], str(name))
    top = max(1.0, retention.max().max())
    _draw_rings(axis, angles[:-1], list(retention.index), 1.05 * top)
    style.legend(figure)
    return figure


def _draw_rings(axis: Any, angles: np.ndarray, tasks: Sequence[str], top: float) -> None:
    """Rings with joint training as a dashed circle, and names outside, aligned away from them."""
    axis.set(theta_offset=np.pi / 2, theta_direction=-1, ylim=(0, top))
    axis.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"])
    axis.set_rlabel_position(180 / len(tasks))  # between the first two spokes
    axis.tick_params(axis="y", labelsize=style.SMALL - 1, labelcolor=style.GREY)
    axis.set_xticks(angles, [""] * len(tasks))
    axis.grid(color=style.GRID, linewidth=0.6)
    axis.spines["polar"].set_visible(False)
    circle = np.linspace(0, 2 * np.pi, 181)
    axis.plot(circle, np.ones(181), **style.MARK)
    for angle, name in zip(angles, tasks, strict=True):
        side = np.sign(round(3 * math.sin(angle)))  # 0 near the top and the bottom
        ha = {-1: "right", 0: "center", 1: "left"}[side]
        axis.text(angle, 1.07 * top, name, fontsize=style.SMALL, ha=ha, va="center")
