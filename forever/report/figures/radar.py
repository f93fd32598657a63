"""How much of each task variants keep, as a share of joint training's score: the paper's radar."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from forever.report.figures.style import (
    GREY,
    GRID,
    INK,
    SMALL,
    Drawing,
    Look,
    known,
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
        rank = sorted(kept, key=lambda name: -fmean(v or 0.0 for v in kept[name].values()))
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
    shown = {name: kept for name, kept in retention.items() if any(map(known, kept.values()))}
    tasks = list(dict.fromkeys(task for kept in shown.values() for task in kept))
    values: dict[str, np.ndarray] = {}
    for name, kept in shown.items():
        values[name] = np.array([kept.get(task) for task in tasks], dtype=float)
    top = max([1.0, *(float(np.nanmax(each)) for each in values.values())]) * 1.05
    figure = Figure(figsize=(6.6, 4.8), layout="constrained")
    axis: Any = figure.add_subplot(projection="polar")
    _draw_rings(axis, tasks, top)
    angles = _angles(len(tasks))
    for name, heights in values.items():
        look = look_of[name]
        axis.plot(
            np.append(angles, 2 * np.pi),
            np.append(heights, heights[:1]),
            label=name,
            color=look.colour,
            linewidth=look.width,
            linestyle=look.dashes,
            marker=look.marker,
            markersize=3.5,
            zorder=look.zorder,
        )
    legend(figure)
    return figure


def _angles(count: int) -> np.ndarray:
    return np.linspace(0, 2 * np.pi, count, endpoint=False)


def _draw_rings(axis: PolarAxes, tasks: Sequence[str], top: float) -> None:
    """Empty axes with joint training as a dashed circle, and names outside the rings, aligned away
    from them."""
    axis.set_theta_offset(np.pi / 2)
    axis.set_theta_direction(-1)
    axis.set_ylim(0, top)
    axis.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"])
    axis.set_rlabel_position(180 / max(len(tasks), 1))  # between the first two spokes
    axis.tick_params(axis="y", labelsize=SMALL - 1, labelcolor=GREY)
    axis.set_xticks(_angles(len(tasks)), [""] * len(tasks))
    axis.grid(color=GRID, linewidth=0.6)
    axis.spines["polar"].set_visible(False)
    circle = np.linspace(0, 2 * np.pi, 181)
    axis.plot(circle, np.ones(181), color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    for angle, name in zip(_angles(len(tasks)), tasks, strict=True):
        ha = _aligned(math.sin(angle), 0.15, ("right", "center", "left"))
        va = _aligned(math.cos(angle), 0.9, ("top", "center", "bottom"))
        place: dict[str, Any] = {"ha": ha, "va": va}
        axis.text(float(angle), 1.04 * top, name, fontsize=SMALL, color=INK, **place)


def _aligned(side: float, near: float, names: tuple[str, str, str]) -> str:
    if abs(side) < near:
        return names[1]
    return names[2] if side > 0 else names[0]
