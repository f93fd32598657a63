"""Variants side by side: OP with its interval and against time, the score on the tasks learned so
far, and how much of each task they keep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from forever.report.bootstrap import Estimate
from forever.report.figures import style
from forever.report.format import estimated
from forever.report.row import Row
from forever.report.study import Part

Results = Sequence[Mapping[str, Any]]  # contents of result.json


def intervals(part: Part) -> Iterator[style.Picture]:
    if len(part.measured) > 1:
        estimates = {row.variant: row.compared("op") for row in part.measured}
        figure = interval_figure(estimates, style.looks_of(part), part.reference)
        yield style.Picture("op", "Overall performance (OP) of each variant.", figure)


def interval_figure(
    estimates: Mapping[str, Estimate],
    look_of: Mapping[str, style.Look],
    reference: str | None = None,
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
    if len(results) <= style.BANDS:
        caption += " Bands: lowest to highest run."
    yield style.Picture("accuracy", caption, accuracy_figure(results, style.looks_of(part)))


def accuracy_figure(results: Mapping[str, Results], look_of: Mapping[str, style.Look]) -> Figure:
    """Mean score on the tasks seen so far, over stages; a line a variant.

    Up to BANDS variants have a band from their lowest to their highest run. Joint training is a
    point at the end.
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
        low, mean, high = (along(curves[variant], axis=0) for along in (np.min, np.mean, np.max))
        x = np.arange(last - len(mean), last) + 1
        style.draw_line(axis, x, mean, look_of[variant], variant, clip_on=False)
        if len(curves) <= style.BANDS:
            style.draw_band(axis, x, low, high, look_of[variant])
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
    """After each stage, the mean score in percent on the tasks learned by then; OP alone for joint
    training."""
    matrix = result["matrix"]
    if len(result["stages"]) != len(result["tasks"]):
        return [result["op"]]
    return [fmean(row[stage] for row in matrix[: stage + 1]) for stage in range(len(matrix))]


NAMED = 16  # points; more names beside points, as of a search, cannot be read

Points = Mapping[str, tuple[float, Estimate]]  # by variant, seconds and score


def pareto(part: Part) -> Iterator[style.Picture]:
    points: dict[str, tuple[float, Estimate]] = {}
    for row in part.frame.to_dict("records"):
        if row["op"] is not None and not row["bound"]:
            points[row["variant"]] = row["seconds"], row["op"]
    if len(points) > 2:
        figure = pareto_figure(points, style.looks_of(part), part.reference)
        caption = "OP against time. The line joins what nothing beats in both."
        yield style.Picture("pareto", caption, figure)


def pareto_figure(
    points: Points, look_of: Mapping[str, style.Look], reference: str | None = None
) -> Figure:
    """OP against time, with the front: the points that none beats in both. More than NAMED points
    have no names."""
    figure, (axis,) = style.new_figure(6.6, [2.9])
    style.tidy(axis, "both")
    axis.margins(0.1, 0.1)
    axis.set(xlabel="seconds a run, training and evaluation", ylabel="OP (%)")
    axis.xaxis.set_major_formatter(FuncFormatter(style.plain))
    scores: dict[str, tuple[float, float]] = {}
    for name, (seconds, estimate) in points.items():
        scores[name] = seconds, estimate.value
        style.draw_numbers(axis, {seconds: estimate}, look_of[name], name)
    style.scale(axis, "x")
    style.freeze(axis)
    # To the right edge: what lies below and right of the steps is beaten.
    best = front(scores)
    x, y = zip(*best, (axis.get_xlim()[1], best[-1][1]), strict=True)
    axis.step(x, y, where="post", color=style.ACCENT, linewidth=1.0, zorder=1, label="front")
    if len(scores) <= NAMED:
        style.name_points(axis, scores, reference)
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


TOGETHER = 8  # variants in one radar; more hide each other

Retention = Mapping[str, float | None]  # by task: final score as a share of joint training's


def radar(part: Part) -> Iterator[style.Picture]:
    joint = [row for row in part.measured if row.bound and row.results[0]["method"] == "mtl"]
    if not joint:
        return
    best = final_scores(joint[0])
    kept: dict[str, Retention] = {}
    for row in part.measured:
        if row is not joint[0]:
            scores = final_scores(row).items()
            kept[row.variant] = {task: score / best[task] for task, score in scores if best[task]}
    if not any(kept.values()):
        return
    caption = "Final score on each task as a share of joint training's (dashed: 1); mean over runs."
    if len(kept) > TOGETHER:
        rank = sorted(kept, key=lambda name: -fmean(v or 0.0 for v in kept[name].values()))
        for name in set(rank[TOGETHER - 1 :]) - {part.reference}:
            del kept[name]
        caption += f" The {len(kept)} that keep most, with the reference."
    yield style.Picture("retention", caption, radar_figure(kept, style.looks_of(part)))


def final_scores(row: Row) -> dict[str, float]:
    """The score on each task at the end, the mean over runs."""
    scores: dict[str, list[float]] = {}
    for result in row.results:
        for task, line in zip(result["tasks"], result["matrix"], strict=True):
            scores.setdefault(task, []).append(line[-1])
    return {task: fmean(values) for task, values in scores.items()}


def radar_figure(retention: Mapping[str, Retention], look_of: Mapping[str, style.Look]) -> Figure:
    """What each variant keeps of each task, on an axis a task, clockwise from the top.

    Args:
        retention: by variant and task; it may exceed 1. A task without a number, or one that the
            variant lacks, leaves a gap.
    """
    tasks = list(dict.fromkeys(task for kept in retention.values() for task in kept))
    angles = np.linspace(0, 2 * np.pi, len(tasks) + 1)
    figure = Figure(figsize=(6.6, 4.8), layout="constrained")
    axis: Any = figure.add_subplot(projection="polar")
    top = 1.0
    for name, kept in retention.items():
        heights = np.array([kept.get(task) for task in [*tasks, tasks[0]]], dtype=float)
        if np.isfinite(heights).any():
            style.draw_line(axis, angles, heights, look_of[name], name).set_markersize(3.5)
            top = max(top, float(np.nanmax(heights)))
    _draw_rings(axis, angles[:-1], tasks, 1.05 * top)
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
