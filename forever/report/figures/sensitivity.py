"""Scores over the values of one setting: how much of the memory, how long a warm-up, which
spacing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forever.report.figures.style import (
    ACCENT,
    DOTTED,
    Drawing,
    Number,
    draw_numbers,
    legend,
    looks,
    mark,
    new_figure,
    scale,
)
from forever.report.study import Part

Setting = float | str


class Point(NamedTuple):
    """The scores of a method at one value of a setting; `published` are the paper's."""

    method: str
    setting: Setting
    op: Number
    bwt: Number = None
    published: bool = False


def sensitivity(part: Part) -> Iterator[Drawing]:
    for axis in part.file.figures if part.file else ():
        if axis.kind == "sensitivity" and axis.key and axis.label:
            settings: dict[str, Setting] = {}
            for row in part.measured:
                settings[row.variant] = axis.unit * float(row.runs[0].settings[axis.key])
            yield _drawing(part, settings, axis.label)


def spacing(part: Part) -> Iterator[Drawing]:
    yield _drawing(part, {row.variant: row.variant for row in part.measured}, "spacing of replays")


def _drawing(part: Part, settings: Mapping[str, Setting], name: str) -> Drawing:
    points: list[Point] = []
    for row in part.measured:
        method, setting = str(row.results[0]["method"]), settings[row.variant]
        points.append(Point(method, setting, row.compared("op"), row.compared("bwt")))
        if row.paper and row.same_setting:
            points.append(Point(method, setting, row.paper.op, row.paper.bwt, published=True))
    default = settings.get(part.reference or "")
    figure = sensitivity_figure(points, name, "forever", default)
    caption = f"OP and BWT against {name}, with 95 % intervals."
    if any(point.published for point in points):
        caption += " Hollow: the paper's numbers."
    return Drawing("sensitivity", caption, figure)


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
    fields = {"op": "OP (%)"}
    if any(point.bwt is not None for point in points):
        fields["bwt"] = "BWT (points)"
    places = _places(points)
    look_of = looks(dict.fromkeys(point.method for point in points), reference)
    figure, axes = new_figure(7.2, [2.4] * len(fields))
    for axis, (field, quantity) in zip(axes, fields.items(), strict=True):
        axis.set_ylabel(quantity)
        if default in places:
            mark(axis.axvline, places[default], ACCENT)
        for number, (method, look) in enumerate(look_of.items()):
            # Printer's points: methods stand beside each other at each place.
            shift = min(2.2, 14 / len(look_of)) * (number - (len(look_of) - 1) / 2)
            hollow = look._replace(dashes=DOTTED, width=1.0, hollow=True)
            for kind, published in ((look, False), (hollow, True)):
                numbers: dict[float, Number] = {}
                for point in points:
                    if (point.method, point.published) == (method, published):
                        numbers[places[point.setting]] = getattr(point, field)
                label = f"{method}, published" if published else method
                if _has_names(places):
                    kind = kind._replace(dashes="none")
                draw_numbers(axis, numbers, kind, label, shift)
    axes[-1].set_xlabel(name)
    _scale(axes[-1], places, default)
    legend(figure)
    return figure


def _has_names(settings: Iterable[Setting]) -> bool:
    return any(isinstance(setting, str) for setting in settings)


def _places(points: Sequence[Point]) -> dict[Setting, float]:
    """Where each value of the setting stands: numbers at themselves, names at 0, 1, 2, ..."""
    settings = dict.fromkeys(point.setting for point in points)
    if _has_names(settings):
        return {setting: float(place) for place, setting in enumerate(settings)}
    return {setting: float(setting) for setting in settings}


def _scale(axis: Axes, places: Mapping[Setting, float], default: Setting | None) -> None:
    """A tick at each value, bold at the default."""
    axis.margins(x=0.08)
    if _has_names(places):
        axis.set_xlim(-0.5, len(places) - 0.5)
    else:
        scale(axis, "x", places.values())
    names = [setting if isinstance(setting, str) else f"{setting:g}" for setting in places]
    axis.set_xticks(list(places.values()), names)
    for setting, tick in zip(places, axis.get_xticklabels(), strict=True):
        if setting == default:
            tick.set(color=ACCENT, fontweight="bold")
