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
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from forever.report.bootstrap import Estimate
from forever.report.format import minus
from forever.report.study import Part

INK, GREY, ACCENT, GRID = "#222222", "#777777", "#004488", "#E4E4E4"
PALETTE = ("#332288", "#CC6677", "#117733", "#88CCEE", "#AA4499",
           "#999933", "#882255", "#44AA99", "#DDAA33", "#777777")  # fmt: skip
# One more than colours: a pair of the two comes again after 110 variants only.
MARKERS = "osD^vPX<>ph"
DASHED, DOTTED = (0, (5, 1.5)), (0, (1.5, 1.2))
SMALL, NORMAL, LARGE = 7.5, 9.0, 10.5  # points
BANDS = 4  # variants; more bands hide each other
MANY_STAGES = 7  # more names beside each other must be slanted
WIDE = 8  # largest over smallest number from where an axis is logarithmic
SLANTED: dict[str, Any] = {"rotation": 40, "rotation_mode": "anchor"}

Number = Estimate | float | None  # with an interval, without one, or not measured


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
    """Whether there is a number: what was not measured must not be drawn as zero."""
    return value is not None and math.isfinite(value)


def ends_of(number: Number) -> tuple[float, float, float]:
    """The value and its interval from low to high; NaN where nothing was measured."""
    if isinstance(number, Estimate):
        return number.value, number.low, number.high
    value = math.nan if number is None else float(number)
    return value, value, value


class Look(NamedTuple):
    """How a variant is drawn: told apart without colour, too."""

    colour: str
    marker: str
    dashes: Any = "-"
    width: float = 1.4  # points
    zorder: int = 2
    hollow: bool = False  # as numbers that are not ours


def looks(variants: Iterable[str], reference: str | None = None) -> dict[str, Look]:
    """A look for each variant, by its place; the reference is bold, in a colour of its own."""
    by_name: dict[str, Look] = {}
    for number, name in enumerate(variants):
        marker = MARKERS[number % len(MARKERS)]
        if name == reference:
            by_name[name] = Look(ACCENT, marker, width=2.4, zorder=3)
        else:
            dashes = ("-", DASHED, DOTTED)[number // 4 % 3]
            by_name[name] = Look(PALETTE[number % len(PALETTE)], marker, dashes)
    return by_name


def looks_of(part: Part) -> dict[str, Look]:
    """The looks of all variants of a part, the same in every figure."""
    return looks([row.variant for row in part.rows], part.reference)


def new_figure(width: float, heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A figure with panels of these heights below each other, in inches, and room for names."""
    figure = Figure(figsize=(width, 1.3 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)
    axes: list[Axes] = list(panels[:, 0])
    for axis in axes:
        tidy(axis)
    return figure, axes


def tidy(axis: Axes, grid: Literal["x", "y", "both"] = "y") -> None:
    """Two spines instead of four, small labels, a pale grid behind the data."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(labelsize=SMALL + 0.5, color=GREY, labelcolor=INK, length=3)
    axis.xaxis.label.set_size(NORMAL)
    axis.yaxis.label.set_size(NORMAL)
    axis.set_axisbelow(True)
    axis.grid(visible=False)
    axis.grid(axis=grid, color=GRID, linewidth=0.6)


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


def draw_line(axis: Axes, x: Any, y: Any, look: Look, name: str, **style: Any) -> Line2D:
    """A line with markers; a gap where y is NaN."""
    (line,) = axis.plot(
        x, y, label=name, color=look.colour, linewidth=look.width, linestyle=look.dashes,
        marker=look.marker, markersize=5, markerfacecolor="white" if look.hollow else look.colour,
        zorder=look.zorder, **style,
    )  # fmt: skip
    return line


def draw_numbers(
    axis: Axes, numbers: Mapping[float, Number], look: Look, name: str, shift: float = 0.0
) -> None:
    """A line from number to number with upright intervals; nothing if nothing was measured.

    Args:
        numbers: the numbers by their x.
        shift: printer's points to the right, so that what has the same x stands side by side.
    """
    measured = [(x, *ends_of(numbers[x])) for x in sorted(numbers) if known(ends_of(numbers[x])[0])]
    if not measured:
        return
    x, values, lows, highs = zip(*measured, strict=True)
    figure: Any = axis.get_figure(root=True)
    moved = axis.transData + ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans)
    style: dict[str, Any] = {"zorder": look.zorder, "transform": moved}
    axis.vlines(x, lows, highs, color=look.colour, linewidth=1.2, alpha=0.5, **style)
    draw_line(axis, x, values, look, name, transform=moved)


def draw_band(axis: Axes, x: Any, low: Any, high: Any, look: Look) -> None:
    """The ground between two lines, in the colour of the line that it belongs to."""
    axis.fill_between(x, low, high, color=look.colour, alpha=0.12, linewidth=0)


def mark(draw: Any, value: float, colour: str = GREY) -> None:
    """A thin dashed line, by an axis's `axvline` or `axhline`, for what others are compared with."""
    draw(value, color=colour, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)


def freeze(axis: Axes) -> None:
    """Keep the limits that the axes have for what is drawn by now."""
    axis.set(xlim=axis.get_xlim(), ylim=axis.get_ylim())


def place_name(axis: Axes, x: float, name: str, **style: Any) -> None:
    """A name above the axes, at x."""
    axis.annotate(
        name, (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 5),
        textcoords="offset points", va="bottom", color=INK, **style,
    )  # fmt: skip


def scale(axis: Axes, which: Literal["x", "y"], values: Any) -> bool:
    """Make an axis logarithmic if its numbers are positive and span a factor of WIDE.

    It says so, with plain numbers at 1, 2, 5, 10, 20, ...; and at 3 and 30 if there is room.

    Returns:
        Whether it is logarithmic.
    """
    finite = [value for value in values if known(value)]
    if not finite or min(finite) <= 0 or max(finite) / min(finite) < WIDE:
        return False
    axis.set(**{f"{which}scale": "log"})
    ticks = {"x": axis.xaxis, "y": axis.yaxis}[which]
    ticks.set_label_text(f"{ticks.get_label_text()}, log scale")
    subs = (1.0, 2.0, 5.0) if max(finite) / min(finite) > 30 else (1.0, 2.0, 3.0, 5.0)
    ticks.set_major_locator(LogLocator(subs=subs))
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FuncFormatter(plain))
    return True


def plain(value: float, _: object = None) -> str:
    """A number without exponent, thousands set off by commas."""
    return minus(f"{value:,.12g}")


def name_points(
    axis: Axes, points: Mapping[str, tuple[float, float]], bold: str | None = None
) -> None:
    """A name beside each point, with a thin line to it where it had to move away.

    The layout is frozen for that: call it last.
    """
    from adjustText import adjust_text  # imports pyplot, which keeps state

    if not points:
        return
    figure: Any = axis.get_figure(root=True)
    FigureCanvasAgg(figure).draw()
    figure.set_layout_engine("none")
    texts = [axis.text(x, y, name, fontsize=SMALL) for name, (x, y) in points.items()]
    for text in texts:
        if text.get_text() == bold:
            text.set(fontweight="bold", color=ACCENT)
    x, y = np.array(list(points.values())).T
    line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.5}
    adjust_text(texts, x, y, ax=axis, arrowprops=line, expand=(1.25, 2.2))
