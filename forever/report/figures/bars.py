"""Bars by backbone and method: scores, and minutes of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forever.report.analyses import minutes_an_epoch
from forever.report.bootstrap import Estimate
from forever.report.figures.style import (
    ACCENT,
    GREY,
    INK,
    LARGE,
    SMALL,
    Drawing,
    known,
    label,
    new_figure,
)
from forever.report.study import Part

REFERENCE = "forever"  # the method in the accent colour
BAR = "#B4B4B4"

# By backbone and method; without an interval where there is none.
Bars = Mapping[str, Mapping[str, Estimate | float | None]]


def backbones(part: Part) -> Iterator[Drawing]:
    op: dict[str, dict[str, Estimate]] = {}
    bwt: dict[str, dict[str, Estimate]] = {}
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
    width = max([4.0, *(x for x, *_ in places)]) + 1  # a single bar is not a wall
    heights = [1.9] * len(panels)
    figure, axes = new_figure(max(4.0, 1.2 + 0.21 * width), heights, 1.3 + sum(heights))
    for axis, (name, groups) in zip(axes, panels.items(), strict=True):
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(axis="x", length=0)
        label(axis, y=name)
        for x, group, method in places:
            colour = ACCENT if method == reference else BAR
            _draw_bar(axis, x, groups.get(group, {}).get(method), colour)
        axis.axhline(0, color=GREY, linewidth=0.8)
        axis.set_xlim(-0.8, width - 0.2)
    names = [method for *_, method in places]
    axes[-1].set_xticks([x for x, *_ in places], names, rotation=90, fontsize=SMALL)
    for tick in axes[-1].get_xticklabels():
        if tick.get_text() == reference:
            tick.set(color=ACCENT, fontweight="bold")
    for group in dict.fromkeys(group for _, group, _ in places):
        xs = [x for x, other, _ in places if other == group]
        _name_group(axes[0], group, (min(xs) + max(xs)) / 2)
    return figure


def _places(panels: Mapping[str, Bars]) -> list[tuple[float, str, str]]:
    """Where each bar stands, with its group and method: methods in one order, a free place between
    groups."""
    groups = dict.fromkeys(group for bars in panels.values() for group in bars)
    methods: dict[str, None] = {}
    for bars in panels.values():
        for found in bars.values():
            methods |= dict.fromkeys(found)
    places: list[tuple[float, str, str]] = []
    x = 0.0
    for group in groups:
        before = x
        for method in methods:
            found = [bars.get(group, {}).get(method) for bars in panels.values()]
            if any(known(_value(number)) for number in found):
                places.append((x, group, method))
                x += 1
        x += x > before
    return places


def _value(number: Estimate | float | None) -> float | None:
    return number.value if isinstance(number, Estimate) else number


def _draw_bar(axis: Axes, x: float, number: Estimate | float | None, colour: str) -> None:
    value = _value(number)
    if not known(value):
        axis.annotate(
            "–", (x, 0), fontsize=LARGE, color=INK, textcoords="offset points", xytext=(0, 5),
            ha="center", va="center",
        )  # fmt: skip
        return
    axis.bar(x, value, width=0.82, color=colour, linewidth=0)
    if isinstance(number, Estimate) and number.high > number.low:
        axis.plot([x, x], [number.low, number.high], color=INK, linewidth=1.0)


def _name_group(axis: Axes, name: str, middle: float) -> None:
    """Above the first panel."""
    axis.annotate(
        name,
        (middle, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=LARGE - 1,
        color=INK,
    )
