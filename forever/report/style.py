"""What all figures share: colours, sizes, and how a number is written.

Colours are Paul Tol's schemes for colour-blind readers (https://personal.sron.nl/~pault/), and
whatever a colour says is also said by a marker, a line style or a number.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeGuard

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, Transform

INK, GREY, ACCENT = "#222222", "#777777", "#004488"
GRID = "#E4E4E4"
PALETTE = (
    "#332288",
    "#CC6677",
    "#117733",
    "#88CCEE",
    "#AA4499",
    "#999933",
    "#882255",
    "#44AA99",
    "#DDAA33",
    "#777777",
)
# One more than colours: a pair of the two comes again after 110 variants only.
MARKERS = "osD^vPX<>ph"
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
SMALL, NORMAL, LARGE = 7.5, 9.0, 10.5  # points


def png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as the content of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()


def signed(value: float | None) -> str:
    """One decimal with its sign and a true minus; "–" for a number that does not exist."""
    if value is None:
        return "–"
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def known(value: float | None) -> TypeGuard[float]:
    """Whether there is a number: what was not measured is None or NaN, and must not be drawn as
    zero."""
    return value is not None and math.isfinite(value)


def minus(text: str) -> str:
    """Hyphens in a written number as true minus signs."""
    return text.replace("-", "−")


class Look(NamedTuple):
    """How a variant is drawn where several lines cross: told apart without colour, too."""

    colour: str
    marker: str
    dashes: str | tuple[float, tuple[float, ...]]
    width: float  # points
    zorder: int


def looks(variants: Iterable[str], reference: str | None = None) -> dict[str, Look]:
    """A look for each variant, by its place: the same variants look the same in every figure. The
    reference is bold."""
    found: dict[str, Look] = {}
    for number, name in enumerate(variants):
        bold = name == reference
        colour = INK if bold else PALETTE[number % len(PALETTE)]
        dashes = "-" if bold else DASHES[number // 4 % len(DASHES)]
        found[name] = Look(
            colour, MARKERS[number % len(MARKERS)], dashes, 2.4 if bold else 1.4, 3 if bold else 2
        )
    return found


def draw_line(
    axis: Axes,
    x: Any,
    y: Any,
    look: Look,
    label: str,
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
    style: dict[str, Any] = {
        "color": look.colour,
        "linewidth": look.width,
        "marker": look.marker,
        "markersize": 5,
    }
    style |= {
        "linestyle": look.dashes if joined else "none",
        "markerfacecolor": "white" if hollow else look.colour,
    }
    (line,) = axis.plot(
        x, y, label=label, zorder=look.zorder, transform=shifted(axis, shift), **style
    )
    return line


def shifted(axis: Axes, points: float) -> Transform:
    """Data coordinates, moved to the right by printer's points."""
    figure: Any = axis.get_figure(root=True)
    return (
        axis.transData + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)
        if points
        else axis.transData
    )


def log_scale(axis: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis that says so, with plain numbers at 1, 2, 5, 10, 20, ...; and at 3 and 30
    if there is room."""
    getattr(axis, f"set_{which}scale")("log")
    getattr(axis, f"set_{which}label")(f"{getattr(axis, f'get_{which}label')()}, log scale")
    ticks = axis.xaxis if which == "x" else axis.yaxis
    low, high = getattr(axis, f"get_{which}lim")()
    ticks.set_major_locator(
        LogLocator(subs=(1.0, 2.0, 5.0) if high / low > 30 else (1.0, 2.0, 3.0, 5.0))
    )
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FuncFormatter(plain))


def plain(value: float, _: object = None) -> str:
    """A number without exponent, thousands set off by commas."""
    return minus(f"{value:,.12g}")


def tidy(axis: Axes) -> None:
    """Two spines instead of four, small labels, grid behind the data."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(labelsize=SMALL + 0.5, color=GREY, labelcolor=INK, length=3)
    axis.set_axisbelow(True)
