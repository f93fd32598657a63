"""Variants side by side: how much of each task they keep, and bars by backbone.

Colours do not name variants here, titles and labels do: the reference is in the accent colour, all
others in grey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from forever.report.bootstrap import Estimate
from forever.report.style import (
    ACCENT,
    GREY,
    GRID,
    INK,
    LARGE,
    NORMAL,
    SMALL,
    Look,
    known,
    looks,
    tidy,
)

Retention = Mapping[str, float | None]  # by task: final score as a share of the upper bound's
# By group, such as a backbone, and method.
Bars = Mapping[str, Mapping[str, Estimate | float | None]]

TOGETHER = 4  # variants in one radar; more hide each other
BAR = "#B4B4B4"

# ---- radar


def radar_figure(retention: Mapping[str, Retention], reference: str | None = None) -> Figure:
    """What each variant keeps of each task, as a share of the upper bound, on an axis a task.

    Up to TOGETHER variants are lines in one radar. More get a small radar each, drawn over the
    reference's outline; the large radar of the reference then names the axes for all.

    Args:
        retention: by variant and task, a[i, K] / joint training's score on task i. May exceed 1. A
        task without a
            number, or one that the variant lacks, leaves a gap. Tasks go clockwise from the top, as
            they first come.
        reference: the variant that leads; the first one if None or absent.
    """
    shown = {
        name: scores for name, scores in retention.items() if any(known(v) for v in scores.values())
    }
    tasks = list(dict.fromkeys(task for scores in shown.values() for task in scores))
    values = {
        name: np.array([_number(scores.get(task)) for task in tasks])
        for name, scores in shown.items()
    }
    lead = reference if reference in shown else next(iter(shown), None)
    top = max([1.0, *(float(np.nanmax(each)) for each in values.values())]) * 1.05
    if len(shown) > TOGETHER and lead is not None:
        return _small_radars(values, lead, tasks, top)
    figure = Figure(figsize=(6.2, 4.6), layout="constrained")
    axis = _radar(figure, 111, len(tasks), top, scale=True)
    _name_spokes(axis, tasks, top)
    for name, look in looks(retention, reference).items():
        if name in shown:
            _polygon(axis, values[name], look, name)
    if shown:
        figure.legend(loc="outside right upper", frameon=False, fontsize=SMALL + 0.5)
    _explain_radar(figure, "")
    return figure


def _small_radars(
    values: Mapping[str, np.ndarray], lead: str, tasks: Sequence[str], top: float
) -> Figure:
    """The lead on the left, with names; the others in a grid of three rows at most."""
    others = [name for name in values if name != lead]
    rows = 2 if len(others) <= 8 else 3
    columns = math.ceil(len(others) / rows)
    figure = Figure(figsize=(4.4 + 1.5 * columns, 1.7 * rows + 0.4), layout="constrained")
    grid = figure.add_gridspec(rows, columns + 1, width_ratios=[4.2, *[1.5] * columns])
    bold, plain = Look(ACCENT, "o", "-", 2.0, 3), Look(INK, "", "-", 1.0, 4)
    axis = _radar(figure, grid[:, 0], len(tasks), top, scale=True)
    _name_spokes(axis, tasks, top)
    _polygon(axis, values[lead], bold, lead, fill=0.12)
    _head(
        axis,
        lead,
        values[lead],
        {"color": ACCENT, "fontweight": "bold", "fontsize": NORMAL, "pad": 24},
    )
    for place, name in enumerate(others):
        axis = _radar(
            figure, grid[place // columns, 1 + place % columns], len(tasks), top, scale=False
        )
        _polygon(axis, values[lead], bold._replace(width=0.9, marker=""), lead)
        _polygon(axis, values[name], plain, name, fill=0.28)
        _head(axis, name, values[name], {"color": INK, "fontsize": SMALL, "pad": 3})
    _explain_radar(
        figure,
        f"Right: the other variants in grey over the outline of {lead}, axes as on the left. ",
    )
    return figure


def _head(axis: PolarAxes, name: str, values: np.ndarray, style: dict[str, Any]) -> None:
    axis.set_title(f"{name}  {np.nanmean(values):.2f}", **style)


def _explain_radar(figure: Figure, more: str) -> None:
    mean = "; beside a name: its mean." if more else "."
    text = f"{more}Final score as a share of joint training's (dashed: 1){mean}"
    figure.supxlabel(text, fontsize=SMALL, color=INK)


def _number(value: float | None) -> float:
    return value if known(value) else math.nan


def _angles(count: int) -> np.ndarray:
    return np.linspace(0, 2 * np.pi, count, endpoint=False)


def _radar(figure: Figure, place: Any, spokes: int, top: float, scale: bool) -> PolarAxes:
    """Empty axes, clockwise from the top, with the upper bound as a dashed circle. `scale`: with
    numbers on rings."""
    axis: Any = figure.add_subplot(place, projection="polar")
    axis.set_theta_offset(np.pi / 2)
    axis.set_theta_direction(-1)
    axis.set_ylim(0, top)
    rings = [0.25, 0.5, 0.75, 1.0] if scale else [0.5, 1.0]
    axis.set_yticks(rings, [f"{ring:g}" if scale and ring in (0.5, 1.0) else "" for ring in rings])
    axis.set_rlabel_position(180 / max(spokes, 1))  # between the first two spokes
    axis.tick_params(axis="y", labelsize=SMALL - 1, labelcolor=GREY)
    axis.set_xticks(_angles(spokes), [""] * spokes)
    axis.grid(color=GRID, linewidth=0.6)
    axis.spines["polar"].set_visible(False)
    circle = np.linspace(0, 2 * np.pi, 181)
    axis.plot(
        circle, np.ones_like(circle), color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1
    )
    return axis


def _name_spokes(axis: PolarAxes, tasks: Sequence[str], top: float) -> None:
    """Names outside the rings, aligned away from them, so that long ones do not run into the
    drawing."""
    for angle, name in zip(_angles(len(tasks)), tasks, strict=True):
        right, up = math.sin(angle), math.cos(angle)
        ha = "center" if abs(right) < 0.15 else "left" if right > 0 else "right"
        va = "center" if abs(up) < 0.9 else "bottom" if up > 0 else "top"
        axis.text(float(angle), 1.04 * top, name, ha=ha, va=va, fontsize=SMALL, color=INK)


def _polygon(axis: PolarAxes, values: np.ndarray, look: Look, name: str, fill: float = 0.0) -> None:
    """A closed line; open at a gap, and filled only if there is none, as a filled gap would look
    like a loss."""
    closed = np.append(values, values[:1])
    angles = np.append(_angles(len(values)), 2 * np.pi)
    marker = look.marker or ("." if np.isnan(values).any() else "")
    style: dict[str, Any] = {
        "color": look.colour,
        "linewidth": look.width,
        "linestyle": look.dashes,
        "marker": marker,
    }
    axis.plot(angles, closed, label=name, markersize=3.5, zorder=look.zorder, **style)
    if fill and not np.isnan(values).any():
        axis.fill(angles, closed, color=look.colour, alpha=fill, linewidth=0, zorder=look.zorder)


# ---- bars


def bars_figure(panels: Mapping[str, Bars], reference: str | None = None) -> Figure:
    """Bars with intervals, grouped by backbone, a panel a quantity below each other.

    A method that a group lacks in all panels has no place there. One that it lacks in some panel,
    such as joint training's BWT, has a dash there.

    Args:
        panels: by the label of the y axis, such as "OP (%)" and "BWT (points)": a number by group
        and method, with its
            interval or without.
        reference: the method in the accent colour.
    """
    slots = _slots(panels)
    width = max((x for places in slots.values() for x in places.values()), default=0.0) + 1
    width = max(width, 5.0)  # a single bar is not a wall
    size = (max(4.0, 1.2 + 0.21 * width), 1.3 + 1.9 * len(panels))
    figure = Figure(figsize=size, layout="constrained")
    axes: list[Axes] = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
    for axis, (label, groups) in zip(axes, panels.items(), strict=True):
        tidy(axis)
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(axis="x", length=0)
        axis.set_ylabel(label, fontsize=NORMAL)
        axis.grid(axis="y", color=GRID, linewidth=0.6)
        for group, places in slots.items():
            for method, x in places.items():
                _bar(
                    axis,
                    x,
                    groups.get(group, {}).get(method),
                    ACCENT if method == reference else BAR,
                )
        axis.axhline(0, color=GREY, linewidth=0.8)
        axis.set_xlim(-0.8, width - 0.2)
    _name_bars(axes, slots, reference)
    return figure


def training_time_figure(
    minutes: Mapping[str, Mapping[str, float | None]], reference: str | None = None
) -> Figure:
    """Minutes that training on one epoch takes, as bars by backbone and method."""
    return bars_figure({"minutes an epoch": minutes}, reference)


def _slots(panels: Mapping[str, Bars]) -> dict[str, dict[str, float]]:
    """Where each bar stands: by group, methods in one order, a free place between groups."""
    order = list(
        dict.fromkeys(
            name for groups in panels.values() for methods in groups.values() for name in methods
        )
    )
    slots: dict[str, dict[str, float]] = {}
    x = 0.0
    for group in dict.fromkeys(group for groups in panels.values() for group in groups):
        measured = [groups.get(group, {}) for groups in panels.values()]
        present = [
            name for name in order if any(known(_value(methods.get(name))) for methods in measured)
        ]
        if present:
            slots[group] = {name: x + place for place, name in enumerate(present)}
            x += len(present) + 1
    return slots


def _value(number: Estimate | float | None) -> float | None:
    return number.value if isinstance(number, Estimate) else number


def _bar(axis: Axes, x: float, number: Estimate | float | None, colour: str) -> None:
    value = _value(number)
    if not known(value):
        place: dict[str, Any] = {
            "textcoords": "offset points",
            "xytext": (0, 5),
            "ha": "center",
            "va": "center",
        }
        axis.annotate("–", (x, 0), fontsize=LARGE, color=INK, **place)
        return
    axis.bar(x, value, width=0.82, color=colour, linewidth=0)
    if isinstance(number, Estimate) and number.high > number.low:
        axis.plot(
            [x, x], [number.low, number.high], color=INK, linewidth=1.0, solid_capstyle="butt"
        )


def _name_bars(
    axes: Sequence[Axes], slots: Mapping[str, Mapping[str, float]], reference: str | None
) -> None:
    """Methods below the last panel, groups above the first."""
    names = {x: method for places in slots.values() for method, x in places.items()}
    axes[-1].set_xticks(list(names), list(names.values()), rotation=90, fontsize=SMALL)
    for tick in axes[-1].get_xticklabels():
        if tick.get_text() == reference:
            tick.set(color=ACCENT, fontweight="bold")
    for group, places in slots.items():
        middle = (min(places.values()) + max(places.values())) / 2
        place: dict[str, Any] = {
            "xycoords": ("data", "axes fraction"),
            "textcoords": "offset points",
            "xytext": (0, 5),
        }
        axes[0].annotate(
            group, (middle, 1), ha="center", va="bottom", fontsize=LARGE - 1, color=INK, **place
        )
