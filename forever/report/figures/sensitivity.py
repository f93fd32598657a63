"""Scores over the values of one setting: how much of the memory, how long a warm-up, which
spacing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from forever.report.figures import style
from forever.report.format import setting as written
from forever.report.study import Part

Setting = float | str


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
    places = _places(points)
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


def _places(points: Sequence[Point]) -> dict[Setting, float]:
    """Where each value of the setting stands: numbers at themselves, names at 0, 1, 2, ..."""
    places: dict[Setting, float] = {}
    for point in points:
        setting = point.setting
        places.setdefault(setting, float(len(places) if isinstance(setting, str) else setting))
    return places
