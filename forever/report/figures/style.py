"""What all figures share: colours, sizes, and how lines, axes and names are drawn.

Matplotlib is used without pyplot, so there is no window and no state shared by threads. Colours are
Paul Tol's schemes for colour-blind readers (https://personal.sron.nl/~pault/), and whatever a
colour says is also said by a marker, a line style or a number.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, Transform

from forever.report.bootstrap import Estimate
from forever.report.format import minus
from forever.report.study import Part

INK, GREY, ACCENT, GRID = "#222222", "#777777", "#004488", "#E4E4E4"
PALETTE = ("#332288", "#CC6677", "#117733", "#88CCEE", "#AA4499",
           "#999933", "#882255", "#44AA99", "#DDAA33", "#777777")  # fmt: skip
# One more than colours: a pair of the two comes again after 110 variants only.
MARKERS = "osD^vPX<>ph"
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
SMALL, NORMAL, LARGE = 7.5, 9.0, 10.5  # points
BANDS = 4  # variants; more bands hide each other


class Drawing(NamedTuple):
    """A figure with the name of its file; `group` says where in the report it stands."""

    name: str
    caption: str
    figure: Figure
    group: str = "overview"


def png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as the content of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()


def known(value: float | None) -> TypeGuard[float]:
    """Whether there is a number: what was not measured is None or NaN, and must not be drawn as
    zero."""
    return value is not None and math.isfinite(value)


class Look(NamedTuple):
    """How a variant is drawn: told apart without colour, too."""

    colour: str
    marker: str
    dashes: str | tuple[float, tuple[float, ...]]
    width: float  # points
    zorder: int


def looks(variants: Iterable[str], reference: str | None = None) -> dict[str, Look]:
    """A look for each variant, by its place; the reference is bold, in a colour of its own."""
    by_name: dict[str, Look] = {}
    for number, name in enumerate(variants):
        marker = MARKERS[number % len(MARKERS)]
        if name == reference:
            by_name[name] = Look(ACCENT, marker, "-", 2.4, 3)
        else:
            colour = PALETTE[number % len(PALETTE)]
            by_name[name] = Look(colour, marker, DASHES[number // 4 % len(DASHES)], 1.4, 2)
    return by_name


def looks_of(part: Part) -> dict[str, Look]:
    """The looks of all variants of a part, the same in every figure."""
    return looks([row.variant for row in part.rows], part.reference)


def new_figure(
    width: float, heights: Sequence[float], total: float | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with panels below each other.

    Args:
        width, total: in inches; `total` is the sum of the heights if it is not given.
        heights: of the panels, in inches or as ratios.
    """
    figure = Figure(figsize=(width, total or sum(heights)), layout="constrained")
    panels = figure.subplots(
        len(heights), 1, sharex=True, height_ratios=list(heights), squeeze=False
    )
    axes: list[Axes] = list(panels[:, 0])
    for axis in axes:
        tidy(axis)
    return figure, axes


def tidy(axis: Axes, grid: Literal["x", "y", "both", ""] = "y") -> None:
    """Two spines instead of four, small labels, a pale grid behind the data."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(labelsize=SMALL + 0.5, color=GREY, labelcolor=INK, length=3)
    axis.set_axisbelow(True)
    if grid:
        axis.grid(axis=grid, color=GRID, linewidth=0.6)


def label(axis: Axes, x: str = "", y: str = "") -> None:
    if x:
        axis.set_xlabel(x, fontsize=NORMAL)
    if y:
        axis.set_ylabel(y, fontsize=NORMAL)


def legend(figure: Figure, handles: Sequence[Any] = (), place: str = "right upper") -> None:
    """The legend outside the axes: of all named artists, each name once, unless some are given."""
    by_name = {str(handle.get_label()): handle for handle in handles}
    if not handles:
        for axis in figure.axes:
            for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
                by_name.setdefault(name, handle)
    if by_name:
        style: dict[str, Any] = {"loc": f"outside {place}", "frameon": False}
        style["ncols"] = 6 if "center" in place else 1
        figure.legend(list(by_name.values()), list(by_name), fontsize=SMALL + 0.5, **style)


def draw_line(
    axis: Axes,
    x: Any,
    y: Any,
    look: Look,
    name: str,
    *,
    hollow: bool = False,
    joined: bool = True,
    shift: float = 0.0,
) -> Line2D:
    """A line with markers; a gap where y is NaN.

    Args:
        hollow: markers of numbers that are not ours.
        joined: False for x that have no order.
        shift: points to the right, so that what has the same x stands side by side.
    """
    (line,) = axis.plot(
        x,
        y,
        label=name,
        color=look.colour,
        linewidth=look.width,
        linestyle=look.dashes if joined else "none",
        marker=look.marker,
        markersize=5,
        markerfacecolor="white" if hollow else look.colour,
        zorder=look.zorder,
        transform=shifted(axis, shift),
    )
    return line


def draw_whisker(axis: Axes, x: float, estimate: Estimate, look: Look, shift: float = 0.0) -> None:
    """The interval of an estimate as an upright line; nothing if it has no width."""
    if estimate.high > estimate.low:
        axis.plot(
            [x, x],
            [estimate.low, estimate.high],
            color=look.colour,
            linewidth=1.2,
            alpha=0.5,
            zorder=look.zorder,
            transform=shifted(axis, shift),
        )


def shifted(axis: Axes, points: float) -> Transform:
    """Data coordinates, moved to the right by printer's points."""
    if not points:
        return axis.transData
    figure: Any = axis.get_figure(root=True)
    return axis.transData + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)


def log_scale(axis: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis that says so, with plain numbers at 1, 2, 5, 10, 20, ...; and at 3 and 30
    if there is room."""
    axis.set(**{f"{which}scale": "log"})
    ticks = axis.xaxis if which == "x" else axis.yaxis
    ticks.set_label_text(f"{ticks.get_label_text()}, log scale")
    low, high = ticks.get_view_interval()
    wide = high / low > 30
    ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if wide else (1.0, 2.0, 3.0, 5.0)))
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FuncFormatter(plain))


def plain(value: float, _: object = None) -> str:
    """A number without exponent, thousands set off by commas."""
    return minus(f"{value:,.12g}")


def name_points(
    axis: Axes, points: Mapping[str, tuple[float, float]], bold: str | None = None
) -> list[Text]:
    """A name beside each point, with a thin line to it where it had to move away.

    The layout is frozen for that: call it last.
    """
    from adjustText import adjust_text  # imports pyplot, which keeps state

    if not points:
        return []
    figure: Any = axis.get_figure(root=True)
    FigureCanvasAgg(figure).draw()
    figure.set_layout_engine("none")
    texts: list[Text] = []
    for name, (x, y) in points.items():
        weight, colour = ("bold", ACCENT) if name == bold else ("normal", INK)
        texts.append(axis.text(x, y, name, fontsize=SMALL, fontweight=weight, color=colour))
    x, y = np.array(list(points.values())).T
    line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.5}
    adjust_text(texts, x, y, ax=axis, arrowprops=line, expand=(1.25, 2.2))
    return texts
