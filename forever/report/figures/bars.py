"""Bars by backbone and method: scores, and minutes of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from matplotlib.figure import Figure

from forever.report.analyses import minutes_an_epoch
from forever.report.figures.style import (
    ACCENT,
    GREY,
    INK,
    LARGE,
    SMALL,
    Drawing,
    Number,
    ends_of,
    known,
    new_figure,
    place_name,
)
from forever.report.study import Part

REFERENCE = "forever"  # the method in the accent colour

Bars = Mapping[str, Mapping[str, Number]]  # by backbone and method


def backbones(part: Part) -> Iterator[Drawing]:
    op: dict[str, dict[str, Number]] = {}
    bwt: dict[str, dict[str, Number]] = {}
    for row in part.measured:
        backbone, method = row.runs[0].backbone, str(row.results[0]["method"])
        op.setdefault(backbone, {})[method] = row.compared("op")
        bwt.setdefault(backbone, {})[method] = row.compared("bwt")
    caption = "OP and BWT of each method on each backbone, with 95 % intervals."
    yield Drawing("backbones", caption, bars_figure({"OP (%)": op, "BWT (points)": bwt}))


def training_time(part: Part) -> Iterator[Drawing]:
    caption = "Minutes of training an epoch and task, replay and merges included."
    figure = bars_figure({"minutes an epoch": minutes_an_epoch(part)})
    yield Drawing("training-time", caption, figure)


def bars_figure(panels: Mapping[str, Bars], reference: str = REFERENCE) -> Figure:
    """Bars with intervals, grouped by backbone, a panel a quantity below each other.

    A method that a group lacks in all panels has no place there. One that it lacks in some panel,
    such as joint training's BWT, has a dash there.

    Args:
        panels: by the label of the y axis, such as "OP (%)": a number by group and method.
        reference: the method in the accent colour.
    """
    places = _places(panels)
    width = max([4.0, *places]) + 1  # a single bar is not a wall
    figure, axes = new_figure(max(4.0, 1.2 + 0.21 * width), [1.9] * len(panels))
    for axis, (name, bars) in zip(axes, panels.items(), strict=True):
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(axis="x", length=0)
        axis.set(ylabel=name, xlim=(-0.8, width - 0.2))
        axis.axhline(0, color=GREY, linewidth=0.8)
        for x, (group, method) in places.items():
            value, low, high = ends_of(bars.get(group, {}).get(method))
            if known(value):
                colour = ACCENT if method == reference else "#B4B4B4"
                axis.bar(x, value, width=0.82, color=colour, linewidth=0)
                axis.vlines(x, low, high, color=INK, linewidth=1.0)
            else:
                axis.text(x, 0, "–", fontsize=LARGE, color=INK, ha="center", va="bottom")
    names = [method for _, method in places.values()]
    axes[-1].set_xticks(list(places), names, rotation=90, fontsize=SMALL)
    for tick in axes[-1].get_xticklabels():
        if tick.get_text() == reference:
            tick.set(color=ACCENT, fontweight="bold")
    for group, members in groupby(places, key=lambda x: places[x][0]):
        xs = list(members)
        place_name(axes[0], (xs[0] + xs[-1]) / 2, group, ha="center", fontsize=LARGE - 1)
    return figure


def _places(panels: Mapping[str, Bars]) -> dict[float, tuple[str, str]]:
    """The group and method at each x: methods in one order, a free place between groups."""
    groups: dict[str, None] = {}
    methods: dict[str, None] = {}
    measured: set[tuple[str, str]] = set()
    for bars in panels.values():
        for group, numbers in bars.items():
            groups[group] = None
            for method, number in numbers.items():
                methods[method] = None
                if known(ends_of(number)[0]):
                    measured.add((group, method))
    places: dict[float, tuple[str, str]] = {}
    for group in groups:
        start = max(places, default=-2.0) + 2
        members = [(group, method) for method in methods if (group, method) in measured]
        places |= {start + number: member for number, member in enumerate(members)}
    return places
