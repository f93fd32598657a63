"""Bars by backbone and method: scores, and minutes of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from matplotlib.figure import Figure

from forever.report.analyses import minutes_an_epoch
from forever.report.figures import style
from forever.report.study import Part

REFERENCE = "forever"  # the method in the accent colour

Bars = Mapping[str, Mapping[str, style.Number]]  # by backbone and method


def backbones(part: Part) -> Iterator[style.Picture]:
    op: dict[str, dict[str, style.Number]] = {}
    bwt: dict[str, dict[str, style.Number]] = {}
    for row in part.measured:
        backbone, method = row.runs[0].backbone, str(row.results[0]["method"])
        op.setdefault(backbone, {})[method] = row.compared("op")
        bwt.setdefault(backbone, {})[method] = row.compared("bwt")
    caption = "OP and BWT of each method on each backbone, with 95 % intervals."
    yield style.Picture("backbones", caption, bars_figure({"OP (%)": op, "BWT (points)": bwt}))


def training_time(part: Part) -> Iterator[style.Picture]:
    caption = "Minutes of training an epoch and task, replay and merges included."
    figure = bars_figure({"minutes an epoch": minutes_an_epoch(part)})
    yield style.Picture("training-time", caption, figure)


def bars_figure(panels: Mapping[str, Bars], reference: str = REFERENCE) -> Figure:
    """Bars with intervals, grouped by backbone, a panel a quantity below each other.

    Args:
        panels: by the label of the y axis, such as "OP (%)": a number by group and method. The
            first has all groups and methods. What lacks a number, such as joint training's BWT,
            has a dash.
        reference: the method in the accent colour.
    """
    places = _places(next(iter(panels.values())))
    width = max([4.0, *places]) + 1  # a single bar is not a wall
    figure, axes = style.new_figure(max(4.0, 1.2 + 0.21 * width), [1.9] * len(panels))
    for axis, (label, bars) in zip(axes, panels.items(), strict=True):
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(axis="x", length=0)
        axis.set(ylabel=label, xlim=(-0.8, width - 0.2))
        axis.axhline(0, color=style.GREY, linewidth=0.8)
        for x, (group, method) in places.items():
            value, low, high = style.ends_of(bars[group].get(method))
            if style.known(value):
                colour = style.ACCENT if method == reference else "#B4B4B4"
                axis.bar(x, value, width=0.82, color=colour, linewidth=0)
                axis.vlines(x, low, high, color=style.INK, linewidth=1.0)
            else:
                axis.text(x, 0, "–", fontsize=style.LARGE, ha="center", va="bottom")
    names = [method for _, method in places.values()]
    axes[-1].set_xticks(list(places), names, rotation=90, fontsize=style.SMALL)
    style.embolden(axes[-1].get_xticklabels(), reference)
    for group in dict.fromkeys(group for group, _ in places.values()):
        xs = [x for x, (other, _) in places.items() if other == group]
        style.name_above(axes[0], (xs[0] + xs[-1]) / 2, group, ha="center")
    return figure


def _places(bars: Bars) -> dict[float, tuple[str, str]]:
    """The group and method at each x: methods in one order, a free place between groups."""
    methods = dict.fromkeys(method for numbers in bars.values() for method in numbers)
    places: dict[float, tuple[str, str]] = {}
    x = 0.0
    for group, numbers in bars.items():
        for method in methods:
            if method in numbers:
                places[x] = group, method
                x += 1
        x += 1
    return places
