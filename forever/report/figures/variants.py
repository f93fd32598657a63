"""Variants side by side: OP with its interval and against time, the score on the tasks learned so
far, and how much of each task they keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forever.report.figures import style
from forever.report.format import estimated, listed
from forever.report.row import Row
from forever.report.study import Part
from forever.text import label

NAMED = 16  # points of OP against time; of more, as of a search, the legend is too long
BANDS = 4  # variants; more bands hide each other
TOGETHER = 8  # variants in one radar; more hide each other


def intervals(part: Part) -> Iterator[style.Picture]:
    """OP and its interval a variant, as dots and whiskers; a line marks the reference's OP."""
    rows, looks = part.measured, style.looks_of(part)
    if len(rows) == 1:
        return
    figure, (axis,) = style.new_figure(7.5, [0.3 * len(rows)])
    for y, row in enumerate(rows):
        op, look = row.compared("op"), looks[row.variant]
        whisker: Any = {"color": look["color"], "linewidth": 2.2, "alpha": 0.35}
        axis.hlines(y, op.low, op.high, gid=look["gid"], **whisker)
        axis.plot(op.value, y, **look)
        beside: Any = {"transform": axis.get_yaxis_transform(), "va": "center"}
        beside |= {"fontsize": style.SMALL, "gid": look["gid"]}
        axis.text(1.02, y, estimated(op, "{:.1f}"), **beside)
        if row.variant == part.reference:
            axis.axvline(op.value, **style.MARK)
    names = axis.set_yticks(range(len(rows)), [label(row.variant) for row in rows])
    for tick, row in zip(names, rows, strict=True):
        tick.label1.set_gid(looks[row.variant]["gid"])
    axis.set(xlabel="OP (%) with 95 % interval", ylim=(len(rows) - 0.4, -0.6))
    caption = "Overall performance (OP) of each variant."
    yield style.picture("op", caption, figure, scored(rows, "op"))


def scored(rows: Sequence[Row], *fields: str) -> pd.DataFrame:
    """Estimates of variants with their intervals, a row a variant."""
    lines: list[dict[str, Any]] = []
    for row in rows:
        line: dict[str, Any] = {"variant": row.variant}
        for field in fields:
            estimate = row.compared(field)
            if estimate is not None:
                name = field.upper()
                line |= {name: estimate.value, f"{name} low": estimate.low}
                line |= {f"{name} high": estimate.high}
        lines.append(line)
    return pd.DataFrame(lines)


def accuracy(part: Part) -> Iterator[style.Picture]:
    """Mean score on the tasks seen so far, over stages; a line a variant, for up to BANDS with a
    band from the lowest to the highest run. Joint training is a point at the end."""
    if all(row.results[0]["method"] == "mtl" for row in part.measured):
        return
    figure, (axis,) = style.new_figure(9, [2.7])
    looks = style.looks_of(part)
    has_bands = len(part.measured) <= BANDS and part.most_runs > 1
    orders = {tuple(result["tasks"]) for row in part.measured for result in row.results}
    last = max(map(len, orders))
    lines: dict[str, pd.Series] = {}
    for row in part.measured:
        curves, look = np.array(list(map(seen, row.results))), looks[row.variant]
        stages = np.arange(last - curves.shape[1], last) + 1
        axis.plot(stages, curves.mean(axis=0), **look)
        lines[row.variant] = pd.Series(curves.mean(axis=0), stages)
        if has_bands:
            style.draw_band(axis, stages, curves.min(axis=0), curves.max(axis=0), look)
    axis.set(xlabel="tasks learned", ylabel="mean score on tasks seen so far (%)")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(orders) == 1:
        tasks = list(map(label, orders.pop()))
        axis.set_xticks(range(1, last + 1), tasks, ha="right", **style.SLANTED)
    style.legend(figure)
    caption = "Mean score on the tasks learned so far, after each task; mean over runs."
    if has_bands:
        caption += " Bands: lowest to highest run."
    numbers = pd.DataFrame(lines, range(1, last + 1)).rename_axis("tasks learned", axis=1).T
    yield style.picture("accuracy", caption, figure, numbers.rename_axis("variant").reset_index())


def seen(result: Mapping[str, Any]) -> list[float]:
    """After each stage, the mean score in percent on the tasks learned by then."""
    matrix = np.array(result["matrix"], dtype=float)
    tasks, stages = matrix.shape
    if stages != tasks:  # joint training
        return [result["op"]]
    learned = np.triu(np.nan_to_num(matrix))
    return (learned.sum(axis=0) / np.arange(1, tasks + 1)).tolist()


def pareto(part: Part) -> Iterator[style.Picture]:
    """OP against seconds, with the front: the points that none beats in both."""
    rows, looks = [row for row in part.measured if not row.bound], style.looks_of(part)
    if len(rows) < 3:
        return
    figure, (axis,) = style.new_figure(6.6, [2.9])
    axis.set(xlabel="seconds a run, training and evaluation", ylabel="OP (%)")
    points: list[tuple[float, float]] = []
    for row in rows:
        seconds, op = fmean(run.seconds for run in row.runs), row.compared("op")
        style.draw_estimates(axis, [seconds], [op], looks[row.variant])
        points.append((seconds, op.value))
    best = front(points)
    # To the right edge: what lies below and right of the steps is beaten.
    right = axis.get_xlim()[1]
    axis.set_xlim(right=right)
    x, y = zip(*best, (right, best[-1][1]), strict=True)
    axis.step(x, y, where="post", color=style.INK, linewidth=1.0, zorder=1, label="front")
    if len(rows) <= NAMED:
        style.legend(figure)
    caption = "OP against time. The line joins what nothing beats in both."
    numbers = scored(rows, "op")
    numbers.insert(1, "seconds", [seconds for seconds, _ in points])
    yield style.picture("pareto", caption, figure, numbers)


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
    shares: dict[str, pd.Series] = {}
    idle: list[str] = []
    for row in part.measured:
        if row.idle:
            idle.append(row.variant)
        elif row is not joint[0]:
            shares[row.variant] = final_scores(row) / best[best > 0]
    kept = pd.DataFrame(shares, index=best.index)
    caption = "Final score on each task as a share of joint training's (dashed: 1); mean over runs."
    if len(shares) > TOGETHER:
        rank = kept.mean().drop(part.reference, errors="ignore").sort_values(ascending=False)
        kept = kept.drop(columns=rank.index[TOGETHER - 1 :])
        caption += f" The {kept.shape[1]} that keep most, with the reference."
    if idle:
        caption += f" Not drawn, for ending as fine-tuning does: {listed(idle)}."
    figure = radar_figure(kept, style.looks_of(part))
    numbers = kept.T.rename_axis("variant").reset_index()
    yield style.picture("retention", caption, figure, numbers)


def final_scores(row: Row) -> pd.Series:
    """The score on each task at the end, the mean over runs."""
    scores: list[pd.Series] = []
    for result in row.results:
        matrix = np.array(result["matrix"], dtype=float)
        scores.append(pd.Series(matrix[:, -1], result["tasks"]))
    return pd.concat(scores, axis=1).mean(axis=1)


def radar_figure(retention: pd.DataFrame, looks: Mapping[str, style.Look]) -> Figure:
    """What each variant keeps of each task, on an axis a task, clockwise from the top.

    Args:
        retention: a row a task, a column a variant; it may exceed 1. NaN leaves a gap.
    """
    figure = Figure(figsize=(7.8, 4.8), layout="constrained")
    axis: Any = figure.add_subplot(projection="polar", theta_offset=np.pi / 2, theta_direction=-1)
    angles = np.linspace(0, 2 * np.pi, len(retention) + 1)
    for name, kept in retention.items():
        axis.plot(angles, np.append(kept, kept.iloc[0]), **looks[str(name)])
    axis.plot(np.linspace(0, 2 * np.pi, 181), np.ones(181), **style.MARK)
    top = max(1.0, retention.max().max())
    axis.set_ylim(0, 1.05 * top)
    axis.set_yticks([0.5, 1.0], ["0.5", "1"], fontsize=style.SMALL, color=style.GREY)
    axis.set_rlabel_position(180 / len(retention))  # between the first two spokes
    axis.set_xticks(angles[:-1], [""] * len(retention))
    for angle, name in zip(angles[:-1], retention.index, strict=True):
        side = np.sign(round(3 * np.sin(angle)))  # 0 near the top and the bottom
        ha = {-1: "right", 0: "center", 1: "left"}[side]
        axis.text(angle, 1.1 * top, label(name), fontsize=style.SMALL, ha=ha, va="center")
    axis.grid(color=style.GRID)
    axis.spines["polar"].set_visible(False)
    style.legend(figure)
    return figure
