"""How much of each task variants keep, as a share of joint training's score: the paper's radar."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from forever.report.figures.style import (
    GREY,
    GRID,
    INK,
    SMALL,
    Drawing,
    Look,
    draw_line,
    legend,
    looks_of,
)
from forever.report.row import Row
from forever.report.study import Part

TOGETHER = 8  # variants in one radar; more hide each other

Retention = Mapping[str, float | None]  # by task: final score as a share of joint training's


def radar(part: Part) -> Iterator[Drawing]:
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
        rank = sorted(kept, key=lambda name: -sum(v or 0.0 for v in kept[name].values()))
        chosen = {*rank[: TOGETHER - 1], part.reference}
        kept = {name: scores for name, scores in kept.items() if name in chosen}
        caption += f" The {len(kept)} that keep most, with the reference."
    yield Drawing("retention", caption, radar_figure(kept, looks_of(part)))


def final_scores(row: Row) -> dict[str, float]:
    """The score on each task at the end, the mean over runs."""
    scores: dict[str, list[float]] = {}
    for result in row.results:
        for task, line in zip(result["tasks"], result["matrix"], strict=True):
            scores.setdefault(task, []).append(line[-1])
    return {task: fmean(values) for task, values in scores.items()}


def radar_figure(retention: Mapping[str, Retention], look_of: Mapping[str, Look]) -> Figure:
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
        heights = np.array([kept.get(task) for task in [*tasks, *tasks[:1]]], dtype=float)
        if np.isfinite(heights).any():
            draw_line(axis, angles, heights, look_of[name], name).set_markersize(3.5)
            top = max(top, float(np.nanmax(heights)))
    _draw_rings(axis, angles[:-1], tasks, 1.05 * top)
    legend(figure)
    return figure


def _draw_rings(axis: Any, angles: np.ndarray, tasks: Sequence[str], top: float) -> None:
    """Rings with joint training as a dashed circle, and names outside, aligned away from them."""
    axis.set(theta_offset=np.pi / 2, theta_direction=-1, ylim=(0, top))
    axis.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"])
    axis.set_rlabel_position(180 / max(len(tasks), 1))  # between the first two spokes
    axis.tick_params(axis="y", labelsize=SMALL - 1, labelcolor=GREY)
    axis.set_xticks(angles, [""] * len(tasks))
    axis.grid(color=GRID, linewidth=0.6)
    axis.spines["polar"].set_visible(False)
    circle = np.linspace(0, 2 * np.pi, 181)
    axis.plot(circle, np.ones(181), color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    for angle, name in zip(angles, tasks, strict=True):
        side = np.sign(round(3 * math.sin(angle)))  # 0 near the top and the bottom
        ha = {-1: "right", 0: "center", 1: "left"}[side]
        axis.text(angle, 1.07 * top, name, fontsize=SMALL, color=INK, ha=ha, va="center")
