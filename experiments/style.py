"""What all figures share: colours, sizes, and how a number is written.

Colours are Paul Tol's schemes for colour-blind readers (https://personal.sron.nl/~pault/), and whatever a colour says
is also said by a marker, a line style or a number.
"""

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, GREY, ACCENT = "#222222", "#777777", "#004488"
PALETTE = ("#332288", "#CC6677", "#117733", "#88CCEE", "#AA4499", "#999933", "#882255", "#44AA99", "#DDAA33", "#777777")
MARKERS = "osD^vPX<>ph"  # one more than colours: a pair of the two comes again after 110 variants only
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


def tidy(axis: Axes) -> None:
    """Two spines instead of four, small labels, grid behind the data."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(labelsize=SMALL + 0.5, color=GREY, labelcolor=INK, length=3)
    axis.set_axisbelow(True)
