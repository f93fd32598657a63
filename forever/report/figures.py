"""The figures of a run and of a comparison: matplotlib without pyplot, so no window and no state
shared by threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from forever.report.bootstrap import Estimate
from forever.report.style import (
    ACCENT,
    DASHES,
    INK,
    LARGE,
    MARKERS,
    NORMAL,
    PALETTE,
    SMALL,
    png,
    signed,
    tidy,
)
from forever.report.timeline import timeline_figure

__all__ = ["accuracy_figure", "interval_figure", "matrix_figure", "png", "seen", "timeline_figure"]

BANDS = 4  # variants; more bands hide each other


# ---- the performance matrix

# Light enough for dark numbers everywhere.
_BLUES = ListedColormap(colormaps["Blues"](np.linspace(0, 0.65, 256)))


def matrix_figure(result: Mapping[str, Any], title: str | None = None) -> Figure:
    """The performance matrix as a heat map: a row a task, a column a stage, scores in percent, the
    diagonal framed.

    Args:
        result: the content of result.json. Colours always span 0 to 100, so that two figures can be
        compared.
        title: what stands before OP and BWT; the method and the seed if None.
    """
    cells = np.array(
        [[np.nan if v is None else v for v in row] for row in result["matrix"]], dtype=float
    )
    tasks, stages = cells.shape
    figure = Figure(figsize=(2.3 + 0.52 * stages, 1.6 + 0.36 * tasks), layout="constrained")
    axis = figure.subplots()
    known = np.ma.masked_invalid(cells)
    image = axis.pcolormesh(known, cmap=_BLUES, vmin=0, vmax=100, edgecolors="white", linewidth=1)
    joint = stages != tasks
    for (i, j), value in np.ndenumerate(cells):
        _cell(axis, i, j, value, framed=not joint and i == j)
    axis.set(
        xlim=(0, stages),
        ylim=(tasks, 0),
        xticks=np.arange(stages) + 0.5,
        yticks=np.arange(tasks) + 0.5,
    )
    axis.set_yticklabels(result["tasks"], fontsize=SMALL)
    axis.set_xticklabels(
        result["stages"], fontsize=SMALL, rotation=40, ha="right", rotation_mode="anchor"
    )
    axis.set_xlabel("after training on", fontsize=NORMAL)
    axis.set_ylabel("score on", fontsize=NORMAL)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    bar = figure.colorbar(
        image, ax=axis, shrink=0.8, aspect=18, pad=0.03, ticks=[0, 25, 50, 75, 100]
    )
    bar.set_label("score (%)", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, length=2)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    name = title or f"{result['method']}, seed {result['seed']}"
    figure.suptitle(
        f"{name}\nOP {result['op']:.1f} · BWT {signed(result['bwt'])}", fontsize=LARGE, color=INK
    )
    return figure


def _cell(axis: Axes, row: int, column: int, value: float, framed: bool) -> None:
    """The number of one cell; hatching where nothing was measured."""
    if np.isnan(value):
        axis.add_patch(
            Rectangle(
                (column, row), 1, 1, fill=False, hatch="////", edgecolor="#E2E2E2", linewidth=0
            )
        )
        return
    axis.text(
        column + 0.5, row + 0.5, f"{value:.1f}", ha="center", va="center", fontsize=SMALL, color=INK
    )
    if framed:
        axis.add_patch(
            Rectangle(
                (column + 0.04, row + 0.04), 0.92, 0.92, fill=False, edgecolor=INK, linewidth=0.9
            )
        )


# ---- several variants


def accuracy_figure(
    results_by_variant: Mapping[str, Sequence[Mapping[str, Any]]], reference: str | None = None
) -> Figure:
    """Mean score on the tasks seen so far, over stages; a line a variant, the reference in bold.

    Up to BANDS variants have a band from their lowest to their highest run. Joint training is a
    point at the end.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    axis = figure.subplots()
    tidy(axis)
    shown = {variant: results for variant, results in results_by_variant.items() if results}
    names = {
        tuple(result["stages"]) for results in shown.values() for result in results if seen(result)
    }
    last = max((len(stages) for stages in names), default=1)
    ends: list[tuple[float, Any]] = []
    for number, (variant, results) in enumerate(shown.items()):
        colour = INK if variant == reference else PALETTE[number % len(PALETTE)]
        style: dict[str, Any] = {
            "color": colour,
            "marker": MARKERS[number % len(MARKERS)],
            "label": variant,
        }
        curves = np.array([seen(result) or [result["op"]] for result in results])
        mean, x = curves.mean(axis=0), np.arange(last - curves.shape[1], last) + 1
        dashes, width = DASHES[number // 4 % len(DASHES)], 2.4 if variant == reference else 1.4
        style |= {
            "linestyle": dashes,
            "linewidth": width,
            "zorder": 3 if variant == reference else 2,
        }
        style |= {"markersize": 5} if len(x) > 1 else {"markersize": 8, "linestyle": "none"}
        (line,) = axis.plot(x, mean, clip_on=False, **style)
        if len(results) > 1 and len(shown) <= BANDS:
            axis.fill_between(
                x, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.12, linewidth=0
            )
        ends.append((float(mean[-1]), line))
    axis.set_ylabel("mean score on tasks seen so far (%)", fontsize=NORMAL)
    axis.set_xlabel("tasks learned", fontsize=NORMAL)
    _stage_ticks(axis, names, last)
    axis.grid(axis="y", color="#E4E4E4", linewidth=0.6)
    # As the lines end, from top to bottom.
    lines = [line for _, line in sorted(ends, key=lambda end: -end[0])]
    figure.legend(handles=lines, loc="outside right upper", frameon=False, fontsize=SMALL + 0.5)
    return figure


def _stage_ticks(axis: Axes, names: set[tuple[str, ...]], last: int) -> None:
    """Task names if all runs share an order, else numbers."""
    axis.set_xlim(0.8, last + 0.2)
    slant: dict[str, Any] = (
        {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if last > 7 else {}
    )
    if len(names) == 1:
        axis.set_xticks(
            range(1, last + 1),
            [f"{i} {name}" for i, name in enumerate(next(iter(names)), 1)],
            **slant,
        )
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def seen(result: Mapping[str, Any]) -> list[float]:
    """After each stage, the mean score in percent on the tasks learned by then; empty for joint
    training."""
    matrix = result["matrix"]
    if len(result["stages"]) != len(result["tasks"]):
        return []
    return [fmean(matrix[i][j] for i in range(j + 1)) for j in range(len(matrix))]


def interval_figure(
    rows: Mapping[str, Estimate], label: str, reference: str | None = None
) -> Figure:
    """A number and its interval a variant, as dots and whiskers; a line marks the reference's
    number."""
    figure = Figure(figsize=(7.5, 1.0 + 0.3 * max(len(rows), 1)), layout="constrained")
    axis = figure.subplots()
    tidy(axis)
    for y, (name, estimate) in enumerate(rows.items()):
        value, low, high = estimate.value, estimate.low, estimate.high
        colour = ACCENT if name == reference else INK
        axis.plot(
            [low, high], [y, y], color=colour, linewidth=2.2, alpha=0.35, solid_capstyle="round"
        )
        axis.plot(
            [value], [y], marker="D" if name == reference else "o", markersize=6, color=colour
        )
        text = f"{value:.1f}  [{low:.1f}, {high:.1f}]"
        place: dict[str, Any] = {
            "xycoords": ("axes fraction", "data"),
            "va": "center",
            "fontsize": SMALL + 0.5,
        }
        axis.annotate(text.replace("-", "−"), (1.02, y), color=colour, **place)
    if reference is not None and reference in rows:
        axis.axvline(
            rows[reference].value, color=ACCENT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0
        )
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlabel(label, fontsize=NORMAL)
    axis.grid(axis="x", color="#E4E4E4", linewidth=0.6)
    return figure
