"""What all figures share: colours, sizes, and how lines, axes and names are drawn.

Matplotlib is used without pyplot, which keeps state. Colours are Paul Tol's for the colour-blind
(https://personal.sron.nl/~pault/), and a marker, a line style or a number says the same.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from matplotlib.transforms import ScaledTranslation

from forever.report.bootstrap import Estimate
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
# What others are compared with.
MARK: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": DASHED, "zorder": 0}
BAND: dict[str, Any] = {"alpha": 0.12, "linewidth": 0}
SLANTED: dict[str, Any] = {"rotation": 40, "rotation_mode": "anchor"}

Number = Estimate | float | None  # with an interval, without one, or not measured


@dataclass(frozen=True)
class Picture:
    """A figure as a file."""

    name: str  # of the file, without suffix
    caption: str
    figure: Figure
    group: str = "overview"  # or "matrix", "timeline": where in the report it stands

    @property
    def width(self) -> int:
        """The width in CSS pixels, 96 an inch."""
        return round(96 * self.figure.get_size_inches()[0])

    @cached_property
    def png(self) -> bytes:
        return png(self.figure)

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")


def png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as the content of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()


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


Looks = Mapping[str, Look]  # by variant


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
    axis.xaxis.label.set_fontsize(NORMAL)
    axis.yaxis.label.set_fontsize(NORMAL)
    axis.set_axisbelow(True)
    axis.grid(visible=False)
    axis.grid(axis=grid, color=GRID, linewidth=0.6)


def legend(figure: Figure, below: bool = False) -> None:
    """The legend beside or below the axes: of all named artists, each name once."""
    by_name: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            by_name.setdefault(name, handle)
    if by_name:
        place: dict[str, Any] = {"loc": "outside right upper"}
        if below:
            place = {"loc": "outside lower center", "ncols": 6}
        place |= {"frameon": False, "fontsize": SMALL + 0.5}
        figure.legend(list(by_name.values()), list(by_name), **place)


def draw_line(axis: Axes, x: Any, y: Any, look: Look, name: str, **options: Any) -> None:
    """A line with markers; a gap where y is NaN."""
    axis.plot(
        x, y, label=name, color=look.colour, linewidth=look.width, linestyle=look.dashes,
        marker=look.marker, markersize=5, markerfacecolor="white" if look.hollow else look.colour,
        zorder=look.zorder, **options,
    )  # fmt: skip


def draw_numbers(
    axis: Axes, numbers: Mapping[float, Number], look: Look, name: str, shift: float = 0.0
) -> None:
    """A line from number to number, by their x, with upright intervals; nothing if there is no
    number. `shift`: printer's points to the right, so that lines stand side by side."""
    measured: list[tuple[float, float, float, float]] = []
    for x in sorted(numbers):
        value, low, high = ends_of(numbers[x])
        if math.isfinite(value):
            measured.append((x, value, low, high))
    if measured:
        x, values, lows, highs = zip(*measured, strict=True)
        figure: Any = axis.get_figure(root=True)
        moved = axis.transData + ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans)
        upright: dict[str, Any] = {"zorder": look.zorder, "transform": moved}
        axis.vlines(x, lows, highs, color=look.colour, linewidth=1.2, alpha=0.5, **upright)
        axis.update_datalim(np.column_stack([[*x, *x], [*lows, *highs]]))  # not known if moved
        draw_line(axis, x, values, look, name, transform=moved)


def name_above(axis: Axes, x: float, name: str, **options: Any) -> None:
    """A name above the axes, at x."""
    above: dict[str, Any] = {"xytext": (0, 5), "textcoords": "offset points", "va": "bottom"}
    axis.annotate(name, (x, 1), xycoords=("data", "axes fraction"), **above, **options)


def embolden(texts: Iterable[Text], name: str | None) -> None:
    """Make those that say this name bold."""
    for text in texts:
        if text.get_text() == name:
            text.set(color=ACCENT, fontweight="bold")


def scale(axis: Axes, which: Literal["x", "y"]) -> bool:
    """Make an axis logarithmic if what is drawn is positive and spans a factor of WIDE, and say
    whether it is."""
    ticks = {"x": axis.xaxis, "y": axis.yaxis}[which]
    low, high = ticks.get_data_interval()
    if not 0 < WIDE * low <= high:
        return False
    axis.set(**{f"{which}scale": "log"})
    ticks.set_label_text(f"{ticks.get_label_text()}, log scale")
    ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(StrMethodFormatter("{x:,.12g}"))
    return True
