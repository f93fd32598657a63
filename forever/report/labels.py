"""Names beside points that do not cover each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from forever.report.style import ACCENT, GREY, INK, SMALL

RINGS = (6, 12, 20, 30, 42, 56, 72, 90, 110)  # points from a point to its name


def place_labels(
    axis: Axes, points: Mapping[str, tuple[float, float]], bold: str | None = None
) -> list[Annotation]:
    """A name beside each point, where it covers neither names nor points and stays inside the axes
    if it can.

    Each name in turn takes the cheapest of some places around its point; far ones get a thin line
    to it. The layout is
    frozen for that: call it last.
    """
    figure: Any = axis.get_figure(root=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer = FigureCanvasAgg(figure).get_renderer()
    unit = figure.dpi / 72
    centres = {name: axis.transData.transform(point) for name, point in points.items()}
    taken = [
        Bbox.from_bounds(x - 4 * unit, y - 4 * unit, 8 * unit, 8 * unit)
        for x, y in centres.values()
    ]
    taken += [box for line in axis.lines for box in _segments(line, unit)]
    placed: list[Annotation] = []
    for name, point in sorted(points.items(), key=lambda item: (-item[1][1], item[1][0])):
        style: dict[str, Any] = {
            "fontsize": SMALL,
            "fontweight": "bold" if name == bold else "normal",
        }
        extent = Text(0, 0, name, figure=figure, **style).get_window_extent(renderer)
        places = [
            (r, a, _box(centres[name], extent, r * unit, a)) for r in RINGS for a in range(16)
        ]
        cost = [
            _cost(box, taken, axis.bbox) + 6 * (r - RINGS[0]) * unit + 3 * a / 16
            for r, a, box in places
        ]
        radius, _, box = places[int(np.argmin(cost))]
        taken.append(box)
        # Aligned towards the point: letters are not exactly as wide in a file of another
        # resolution.
        x, y = centres[name]
        side = "left" if box.x0 > x else "right" if box.x1 < x else "center"
        edge = {"left": box.x0, "right": box.x1, "center": (box.x0 + box.x1) / 2}[side]
        style |= {"color": ACCENT if name == bold else INK, "zorder": 5, "ha": side, "va": "bottom"}
        if radius > RINGS[0]:
            end = ({"left": 0.0, "right": 1.0, "center": 0.5}[side], 0.5)
            line = {
                "arrowstyle": "-",
                "color": GREY,
                "linewidth": 0.5,
                "shrinkA": 0,
                "shrinkB": 3,
                "relpos": end,
            }
            style["arrowprops"] = line
        offset = ((edge - x) / unit, (box.y0 - y) / unit)
        placed.append(
            axis.annotate(name, point, xytext=offset, textcoords="offset points", **style)
        )
    return placed


def _box(centre: np.ndarray, extent: Bbox, radius: float, direction: int) -> Bbox:
    """A box of that size, its nearest edge `radius` pixels from the centre, in one of 16 directions
    from the right."""
    right, up = math.cos(math.tau * direction / 16), math.sin(math.tau * direction / 16)
    x = centre[0] + right * radius + (right - 1) / 2 * extent.width
    y = centre[1] + up * radius + (up - 1) / 2 * extent.height
    return Bbox.from_bounds(x, y, extent.width, extent.height)


def _segments(line: Line2D, unit: float) -> list[Bbox]:
    """The upright and level pieces of a line, as boxes of two points' thickness."""
    if line.get_linestyle() == "None":
        return []
    corners = line.get_transform().transform(np.asarray(line.get_xydata(), dtype=float))
    straight = [(a, b) for a, b in pairwise(corners) if min(abs(b - a)) < 0.5]
    return [Bbox([np.minimum(a, b) - unit, np.maximum(a, b) + unit]) for a, b in straight]


def _cost(box: Bbox, taken: Sequence[Bbox], inside: Bbox) -> float:
    """How much of a name is covered or outside, in pixels^2; both count much, so that distance is
    cheaper."""

    def common(other: Bbox) -> float:
        shared = Bbox.intersection(box, other)
        return 0.0 if shared is None else shared.width * shared.height

    return 20 * (sum(map(common, taken)) + box.width * box.height - common(inside))
