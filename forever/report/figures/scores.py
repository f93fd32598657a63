"""OP and BWT by backbone and method as bars, minutes of training too, and over the values of one
setting: how much of the memory, how long a warm-up, which spacing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from forever.report.analyses import minutes_an_epoch
from forever.report.figures import style
from forever.report.format import setting as written
from forever.report.study import Part

Bars = Mapping[str, Mapping[str, style.Number]]  # by backbone and method
Setting = float | str


def backbones(part: Part) -> Iterator[style.Picture]:
    panels: dict[str, dict[str, dict[str, style.Number]]] = {"OP (%)": {}, "BWT (points)": {}}
    for row in part.measured:
        method = str(row.results[0]["method"])
        for bars, field in zip(panels.values(), ("op", "bwt"), strict=True):
            bars.setdefault(row.runs[0].backbone, {})[method] = row.compared(field)
    caption = "OP and BWT of each method on each backbone, with 95 % intervals."
    yield style.Picture("backbones", caption, bars_figure(panels))


def training_time(part: Part) -> Iterator[style.Picture]:
    caption = "Minutes of training an epoch and task, replay and merges included."
    figure = bars_figure({"minutes an epoch": minutes_an_epoch(part)})
    yield style.Picture("training-time", caption, figure)


def bars_figure(panels: Mapping[str, Bars], reference: str = "forever") -> Figure:
    """Bars with intervals, grouped by backbone, a panel a quantity below each other.

    Args:
        panels: by the label of the y axis, such as "OP (%)": a number by group and method. The
            first has all groups and methods. What lacks a number, such as joint training's BWT,
            has a dash.
        reference: the method in the accent colour.
    """
    first = next(iter(panels.values()))
    methods = dict.fromkeys(method for numbers in first.values() for method in numbers)
    places: dict[float, tuple[str, str]] = {}
    middles: dict[str, float] = {}
    for group, numbers in first.items():
        start = max(places, default=-2.0) + 2  # a free place between groups
        members = [method for method in methods if method in numbers]
        middles[group] = start + (len(members) - 1) / 2
        places |= {start + place: (group, method) for place, method in enumerate(members)}
    width = max([4.0, *places]) + 1  # a single bar is not a wall
    figure, axes = style.new_figure(max(4.0, 1.2 + 0.21 * width), [1.9] * len(panels))
    for axis, (label, bars) in zip(axes, panels.items(), strict=True):
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(axis="x", length=0)
        axis.set(ylabel=label, xlim=(-0.8, width - 0.2))
        axis.axhline(0, color=style.GREY, linewidth=0.8)
        for x, (group, method) in places.items():
            value, low, high = style.ends_of(bars[group].get(method))
            if math.isfinite(value):
                colour = style.ACCENT if method == reference else "#B4B4B4"
                axis.bar(x, value, width=0.82, color=colour, linewidth=0)
                axis.vlines(x, low, high, color=style.INK, linewidth=1.0)
            else:
                axis.text(x, 0, "–", fontsize=style.LARGE, ha="center", va="bottom")
    names = [method for _, method in places.values()]
    axes[-1].set_xticks(list(places), names, rotation=90, fontsize=style.SMALL)
    style.embolden(axes[-1].get_xticklabels(), reference)
    for group, middle in middles.items():
        style.name_above(axes[0], middle, group, ha="center")
    return figure


class Point(NamedTuple):
    """The scores of a method at one value of a setting; `published` are the paper's."""

    method: str
    setting: Setting
    op: style.Number
    bwt: style.Number = None
    published: bool = False


def sensitivity(part: Part) -> Iterator[style.Picture]:
    for axis in part.file.figures if part.file else ():
        if axis.kind == "sensitivity" and axis.key and axis.label:
            settings: dict[str, Setting] = {}
            for row in part.measured:
                settings[row.variant] = axis.unit * float(row.runs[0].settings[axis.key])
            yield _picture(part, settings, axis.label)


def spacing(part: Part) -> Iterator[style.Picture]:
    yield _picture(part, {row.variant: row.variant for row in part.measured}, "spacing of replays")


def _picture(part: Part, settings: Mapping[str, Setting], name: str) -> style.Picture:
    caption = f"OP and BWT against {name}, with 95 % intervals."
    points: list[Point] = []
    for row in part.measured:
        method, setting = str(row.results[0]["method"]), settings[row.variant]
        points.append(Point(method, setting, row.compared("op"), row.compared("bwt")))
        if row.paper and row.same_setting:
            points.append(Point(method, setting, row.paper.op, row.paper.bwt, published=True))
    if any(point.published for point in points):
        caption += " Hollow: the paper's numbers."
    default = settings.get(part.reference or "")
    figure = sensitivity_figure(points, name, "forever", default)
    return style.Picture("sensitivity", caption, figure)


def sensitivity_figure(
    points: Sequence[Point], name: str, reference: str | None = None, default: Setting | None = None
) -> Figure:
    """OP, and BWT below it, against a setting, a line a method, with intervals.

    Values of the setting that are names stand side by side, unjoined, in the order in which they
    come. Numbers of the paper are hollow, in the method's colour.

    Args:
        name: what the setting is called, such as "memory (% of the rows)".
        reference: the method in bold.
        default: the value that all other experiments use; its place is marked.
    """
    labels = {"op": "OP (%)", "bwt": "BWT (points)"}
    if all(point.bwt is None for point in points):
        del labels["bwt"]
    places: dict[Setting, float] = {}  # numbers at themselves, names at 0, 1, 2, ...
    for _, setting, *_ in points:
        places.setdefault(setting, float(len(places) if isinstance(setting, str) else setting))
    has_names = any(isinstance(setting, str) for setting in places)
    looks = style.looks(dict.fromkeys(point.method for point in points), reference)
    lines: dict[tuple[str, bool], list[Point]] = {}
    for point in points:
        lines.setdefault((point.method, point.published), []).append(point)
    figure, axes = style.new_figure(7.2, [2.4] * len(labels))
    for axis, (field, label) in zip(axes, labels.items(), strict=True):
        axis.set_ylabel(label)
        axis.margins(x=0.08)
        if default in places:
            axis.axvline(places[default], **style.MARK)
        for (method, published), members in lines.items():
            look, title = looks[method], method
            if published:
                look = look._replace(dashes=style.DOTTED, width=1.0, hollow=True)
                title = f"{method}, published"
            if has_names:
                look = look._replace(dashes="none")
            numbers = {places[point.setting]: getattr(point, field) for point in members}
            # Methods stand beside each other at each place.
            side = list(looks).index(method) - (len(looks) - 1) / 2
            style.draw_numbers(axis, numbers, look, title, side * min(2.2, 14 / len(looks)))
    axes[-1].set_xlabel(name)
    if has_names:
        axes[-1].set_xlim(-0.5, len(places) - 0.5)
    else:
        style.scale(axes[-1], "x")
    axes[-1].set_xticks(list(places.values()), [written(setting) for setting in places])
    if default is not None:
        style.embolden(axes[-1].get_xticklabels(), written(default))
    style.legend(figure)
    return figure
