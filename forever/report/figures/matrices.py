"""The performance matrix of a run as a heat map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from forever.report.figures.style import INK, LARGE, SMALL, Drawing, label
from forever.report.format import number
from forever.report.study import Part
from forever.sweeps.sweep import slug

# Light enough for dark numbers everywhere.
_BLUES = ListedColormap(colormaps["Blues"](np.linspace(0, 0.65, 256)))


def matrices(part: Part) -> Iterator[Drawing]:
    """The first run of each variant."""
    for row in part.measured:
        title = row.runs[0].title
        figure = matrix_figure(row.results[0], title)
        yield Drawing(f"matrix-{slug(row.variant)}", title, figure, "matrix")


def matrix_figure(result: Mapping[str, Any], title: str | None = None) -> Figure:
    """The performance matrix as a heat map: a row a task, a column a stage, scores in percent, the
    diagonal framed.

    Args:
        result: the content of result.json. Colours always span 0 to 100, so that two figures can be
            compared.
        title: what stands before OP and BWT; the method and the seed if None.
    """
    scores = np.array(result["matrix"], dtype=float)  # None becomes NaN
    tasks, stages = scores.shape
    figure = Figure(figsize=(2.3 + 0.52 * stages, 1.6 + 0.36 * tasks), layout="constrained")
    axis = figure.subplots()
    measured = np.ma.masked_invalid(scores)
    image = axis.pcolormesh(
        measured, cmap=_BLUES, vmin=0, vmax=100, edgecolors="white", linewidth=1
    )
    for (i, j), score in np.ndenumerate(scores):
        _draw_cell(axis, i, j, score, framed=i == j and stages == tasks)
    axis.set(xlim=(0, stages), ylim=(tasks, 0))
    axis.set_yticks(np.arange(tasks) + 0.5, result["tasks"], fontsize=SMALL)
    axis.set_xticks(
        np.arange(stages) + 0.5,
        result["stages"],
        fontsize=SMALL,
        rotation=40,
        ha="right",
        rotation_mode="anchor",
    )
    label(axis, "after training on", "score on")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    _draw_scale(figure, axis, image)
    name = title or f"{result['method']}, seed {result['seed']}"
    op, bwt = number(result["op"], "{:.1f}"), number(result["bwt"], "{:+.1f}")
    figure.suptitle(f"{name}\nOP {op} · BWT {bwt}", fontsize=LARGE, color=INK)
    return figure


def _draw_scale(figure: Figure, axis: Axes, image: Any) -> None:
    bar: Any = figure.colorbar(
        image, ax=axis, shrink=0.8, aspect=18, pad=0.03, ticks=[0, 25, 50, 75, 100]
    )
    bar.set_label("score (%)", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, length=2)
    bar.outline.set_visible(False)


def _draw_cell(axis: Axes, row: int, column: int, score: float, framed: bool) -> None:
    """The number of one cell; hatching where nothing was measured."""
    if np.isnan(score):
        hatched: dict[str, Any] = {"hatch": "////", "edgecolor": "#E2E2E2", "linewidth": 0}
        axis.add_patch(Rectangle((column, row), 1, 1, fill=False, **hatched))
        return
    place: dict[str, Any] = {"ha": "center", "va": "center"}
    axis.text(column + 0.5, row + 0.5, f"{score:.1f}", fontsize=SMALL, color=INK, **place)
    if framed:
        corner = column + 0.04, row + 0.04
        axis.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=INK, linewidth=0.9))
