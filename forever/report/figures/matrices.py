"""The performance matrix of a run as a heat map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from forever.report.figures import style
from forever.report.format import number
from forever.report.study import Part
from forever.sweeps.sweep import slug

# Light enough for dark numbers everywhere.
_BLUES = ListedColormap(colormaps["Blues"](np.linspace(0, 0.65, 256)))


def matrices(part: Part) -> Iterator[style.Picture]:
    """The first run of each variant."""
    for row in part.measured:
        title = row.runs[0].title
        figure = matrix_figure(row.results[0], title)
        yield style.Picture(f"matrix-{slug(row.variant)}", title, figure, "matrix")


def matrix_figure(result: Mapping[str, Any], title: str | None = None) -> Figure:
    """The performance matrix as a heat map: a row a task, a column a stage, scores in percent, the
    diagonal framed, hatched where nothing was measured.

    Args:
        result: the content of result.json. Colours always span 0 to 100, so that two figures can be
            compared.
        title: what stands before OP and BWT; the method and the seed if None.
    """
    scores = np.array(result["matrix"], dtype=float)  # None becomes NaN
    tasks, stages = scores.shape
    figure, (axis,) = style.new_figure(2.3 + 0.52 * stages, [0.3 + 0.36 * tasks])
    axis.grid(visible=False)
    cells: dict[str, Any] = {"vmin": 0, "vmax": 100, "edgecolors": "white", "linewidth": 1}
    image = axis.pcolormesh(np.ma.masked_invalid(scores), cmap=_BLUES, **cells)
    hatched: dict[str, Any] = {"hatch": "////", "edgecolor": "#E2E2E2", "linewidth": 0}
    framed: dict[str, Any] = {"edgecolor": style.INK, "linewidth": 0.9}
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.SMALL}
    for (i, j), score in np.ndenumerate(scores):
        if np.isnan(score):
            axis.add_patch(Rectangle((j, i), 1, 1, fill=False, **hatched))
            continue
        axis.text(j + 0.5, i + 0.5, f"{score:.1f}", **middle)
        if i == j and stages == tasks:
            axis.add_patch(Rectangle((j + 0.04, i + 0.04), 0.92, 0.92, fill=False, **framed))
    axis.set(xlim=(0, stages), ylim=(tasks, 0), xlabel="after training on", ylabel="score on")
    axis.set_yticks(np.arange(tasks) + 0.5, result["tasks"])
    axis.set_xticks(np.arange(stages) + 0.5, result["stages"], ha="right", **style.SLANTED)
    axis.tick_params(length=0, labelsize=style.SMALL)
    axis.spines[:].set_visible(False)
    bar: Any = figure.colorbar(image, shrink=0.8, aspect=18, pad=0.03, ticks=range(0, 101, 25))
    bar.set_label("score (%)", fontsize=style.SMALL)
    bar.ax.tick_params(labelsize=style.SMALL, length=2)
    bar.outline.set_visible(False)
    name = title or f"{result['method']}, seed {result['seed']}"
    op, bwt = number(result["op"], "{:.1f}"), number(result["bwt"], "{:+.1f}")
    figure.suptitle(f"{name}\nOP {op} · BWT {bwt}", fontsize=style.LARGE, color=style.INK)
    return figure
