"""What all figures share: colours, sizes, panels, legends, and how a variant is drawn.

Matplotlib is used without pyplot, which keeps state. Colours are Paul Tol's for the colour-blind
(https://personal.sron.nl/~pault/) but for a darker blue, which is readable on a dark page, too. A
marker or a line style says the same.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from forever.report.study import Part
from forever.stats.bootstrap import Estimate
from forever.text import label

INK, GREY, ACCENT, GRID = "#222222", "#777777", "#004488", "#E4E4E4"
PALETTE = ("#332288", "#CC6677", "#117733", "#2E88BB", "#AA4499",
           "#999933", "#882255", "#44AA99", "#DDAA33", "#777777")  # fmt: skip
# One more than colours: a pair of the two comes again after 110 variants only.
MARKERS = "osD^vPX<>ph"
DASHED, DOTTED = (0, (5, 1.5)), (0, (1.5, 1.2))
SMALL, LARGE = 8.0, 10.5  # points
WIDE = 8  # largest over smallest number from where an axis is logarithmic
# The lines and grounds that others are compared with.
MARK: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": DASHED, "zorder": 0}
GROUND: dict[str, Any] = {"color": "#F3F3F1", "linewidth": 0, "zorder": 0}
SLANTED: dict[str, Any] = {"rotation": 40, "rotation_mode": "anchor"}

LineStyle = Mapping[str, Any]  # options of Axes.plot


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, and the numbers that it draws."""

    name: str  # of the file, without suffix
    caption: str
    figure: Figure
    numbers: pd.DataFrame | None = None  # None: the run's own files have them


def svg(figure: Figure) -> str:
    """Draws an SVG file, the same each time, in which text is text."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "forever"}):
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    return buffer.getvalue()


def png(figure: Figure) -> bytes:
    """Draws a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def line_styles(names: Iterable[str], strong: str | None = None) -> dict[str, LineStyle]:
    """Says how each line is drawn; a strong one is bold, in a colour of its own."""
    by_name: dict[str, LineStyle] = {}
    for number, name in enumerate(names):
        style = {"label": label(name), "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
        if name == strong:
            style |= {"color": ACCENT, "linewidth": 2.4, "zorder": 3}
        else:
            dashes = ("-", DASHED, DOTTED)[number // 4 % 3]
            colour = PALETTE[number % len(PALETTE)]
            style |= {"color": colour, "linewidth": 1.4, "linestyle": dashes}
        by_name[name] = style
    return by_name


def variant_styles(part: Part) -> dict[str, LineStyle]:
    """Gives each variant of a part its style, the same in every figure."""
    return line_styles([row.variant for row in part.rows], part.reference)


def new_figure(width: float, heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """Makes a figure with panels of these heights below each other, in inches."""
    figure = Figure(figsize=(width, 1.3 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)
    axes: list[Axes] = list(panels[:, 0])
    for axis in axes:
        tidy(axis)
    return figure, axes


def tidy(axis: Axes) -> None:
    """Leaves two spines of four, small labels, and a pale grid behind the data."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=SMALL)
    axis.set_axisbelow(True)
    axis.grid(axis="y", color=GRID, linewidth=0.6)


def legend(figure: Figure, **place: Any) -> None:
    """Draws one legend of all panels, each name once; by default to the right."""
    by_name: dict[str, Any] = {}
    for axis in figure.axes:
        handles, names = axis.get_legend_handles_labels()
        by_name |= dict(zip(names, handles, strict=True))
    place = place or {"loc": "outside right upper"}
    figure.legend(by_name.values(), by_name.keys(), frameon=False, fontsize=SMALL, **place)


def draw_estimates(
    axis: Axes,
    x: Sequence[float],
    estimates: Sequence[Estimate | None],
    style: LineStyle,
    band: bool = False,
) -> None:
    """Draws a line from estimate to estimate, with upright intervals or a band; it breaks at
    None."""
    missing = Estimate(math.nan, math.nan, math.nan, 0)
    numbers = [estimate or missing for estimate in estimates]
    low, high = [number.low for number in numbers], [number.high for number in numbers]
    if band:
        axis.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)
    else:
        axis.vlines(x, low, high, color=style["color"], linewidth=1.2, alpha=0.5)
    axis.plot(x, [number.value for number in numbers], **style)


def scale(axis: Axes) -> None:
    """Begins the y axis at 0, or makes it logarithmic if numbers are positive and far apart."""
    low, high = axis.yaxis.get_data_interval()
    if not 0 < WIDE * low <= high:
        axis.set_ylim(bottom=0)
        return
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
