"""Scores over the values of one setting: how much of the memory, how long a warm-up, which
spacing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from forever.report.bootstrap import Estimate
from forever.report.figures.style import (
    ACCENT,
    Drawing,
    Look,
    draw_line,
    draw_whisker,
    known,
    label,
    legend,
    looks,
    new_figure,
)
from forever.report.row import Row
from forever.report.study import Part

LOGARITHMIC = 8  # largest over smallest value, from where values count as powers
# What stands below the axis for a key, and its unit; another key stands there itself.
SETTINGS = {
    "memory.fraction": ("memory (% of a task's rows)", 100.0),
    "method.warmup_steps": ("S, updates that make the first day", 1.0),
    "method.memory_epochs": ("passes over the memory at a replay", 1.0),
}

Setting = float | str


@dataclass(frozen=True)
class Point:
    """The scores of a method at one value of a setting; None where nothing was measured."""

    method: str
    setting: Setting
    op: Estimate | None
    bwt: Estimate | None = None

    @classmethod
    def published(
        cls, method: str, setting: Setting, op: float | None, bwt: float | None = None
    ) -> Point:
        """The numbers of a paper, which have no interval."""
        exact = [Estimate(value, value, value, 0) if known(value) else None for value in (op, bwt)]
        return cls(method, setting, *exact)


def sensitivity(part: Part) -> Iterator[Drawing]:
    """Scores over the one number in which the variants of a method differ."""
    key = varied_number(part)
    if key is not None:
        name, unit = SETTINGS.get(key, (key, 1.0))
        settings = {row.variant: unit * float(row.runs[0].settings[key]) for row in part.measured}
        yield _drawing(part, settings, name)


def spacing(part: Part) -> Iterator[Drawing]:
    yield _drawing(part, {row.variant: row.variant for row in part.measured}, "spacing of replays")


def varied_number(part: Part) -> str | None:
    """The numeric setting in which most variants of the same method differ."""
    by_method: dict[str, list[Row]] = {}
    for row in part.measured:
        by_method.setdefault(row.results[0]["method"], []).append(row)
    counts: dict[str, int] = {}
    for rows in by_method.values():
        settings = [row.runs[0].settings for row in rows]
        for key, value in settings[0].items():
            values = {str(each.get(key)) for each in settings}
            if isinstance(value, int | float) and len(values) > 1:
                counts[key] = counts.get(key, 0) + len(values)
    return max(counts, key=lambda key: counts[key], default=None)


def _drawing(part: Part, settings: Mapping[str, Setting], name: str) -> Drawing:
    points: list[Point] = []
    published: list[Point] = []
    for row in part.measured:
        method, setting = str(row.results[0]["method"]), settings[row.variant]
        points.append(Point(method, setting, row.compared("op"), row.compared("bwt")))
        if row.paper and row.same_setting:
            published.append(Point.published(method, setting, row.paper.op, row.paper.bwt))
    default = settings.get(part.reference or "")
    figure = sensitivity_figure(points, name, "forever", default, published)
    caption = f"OP and BWT against {name}, with 95 % intervals."
    if published:
        caption += " Hollow: the paper's numbers."
    return Drawing("sensitivity", caption, figure)


def sensitivity_figure(
    points: Sequence[Point],
    name: str,
    reference: str | None = None,
    default: Setting | None = None,
    published: Sequence[Point] = (),
) -> Figure:
    """OP, and BWT below it, against a setting, a line a method, with intervals.

    Values of the setting that are names stand side by side, unjoined, in the order in which they
    come. Numbers are on a log2 axis if they are positive and span a factor of LOGARITHMIC.

    Args:
        name: of the setting, such as "memory (% of the rows)".
        reference: the method in bold.
        default: the value that all other experiments use; its place is marked.
        published: numbers of the paper, only if they are comparable: hollow, in the method's
            colour.
    """
    everything = [*points, *published]
    panels = ["op", "bwt"] if any(point.bwt is not None for point in everything) else ["op"]
    places = _places(everything)
    methods = looks(dict.fromkeys(point.method for point in everything), reference)
    figure, axes = new_figure(7.2, [2.4] * len(panels), 1.3 + 2.4 * len(panels))
    step = _step(places, len(methods))
    for axis, field in zip(axes, panels, strict=True):
        label(axis, y={"op": "OP (%)", "bwt": "BWT (points)"}[field])
        if default in places:
            x = places[default]
            axis.axvline(x, color=ACCENT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        for number, (method, look) in enumerate(methods.items()):
            shift = step * (number - (len(methods) - 1) / 2)
            paper_look = look._replace(dashes=(0, (1.5, 1.2)), width=1.0)
            _draw(axis, _found(points, places, method, field), places, look, method, shift)
            theirs = _found(published, places, method, field)
            _draw(axis, theirs, places, paper_look, f"{method}, published", shift)
        _limit(axis, [getattr(point, field) for point in everything])
    _scale(axes[-1], places, default)
    label(axes[-1], x=f"{name}, log scale" if _logarithmic(places) else name)
    legend(figure)
    return figure


def _step(places: Mapping[Setting, float], count: int) -> float:
    """Points between methods at the same place: names have more room than numbers."""
    if _numeric(places):
        return min(2.2, 14 / max(count, 1))
    return min(9.0, 330 / (len(places) * max(count, 1) + 1))


def _places(points: Sequence[Point]) -> dict[Setting, float]:
    """Where each value of the setting stands: numbers at themselves, names at 0, 1, 2, ..."""
    settings = list(dict.fromkeys(point.setting for point in points))
    if any(isinstance(setting, str) for setting in settings):
        return {setting: float(place) for place, setting in enumerate(settings)}
    return {setting: float(setting) for setting in sorted(settings)}


def _numeric(places: Mapping[Setting, float]) -> bool:
    return not any(isinstance(setting, str) for setting in places)


def _logarithmic(places: Mapping[Setting, float]) -> bool:
    low, high = min(places.values(), default=0), max(places.values(), default=0)
    return _numeric(places) and low > 0 and high / low >= LOGARITHMIC


def _found(
    points: Sequence[Point], places: Mapping[Setting, float], method: str, field: str
) -> dict[float, Estimate]:
    """What one method has in one panel, from left to right."""
    estimates: dict[float, Estimate] = {}
    for point in points:
        estimate: Estimate | None = getattr(point, field)
        if point.method == method and estimate is not None and known(estimate.value):
            estimates[places[point.setting]] = estimate
    return dict(sorted(estimates.items()))


def _draw(
    axis: Axes,
    estimates: Mapping[float, Estimate],
    places: Mapping[Setting, float],
    look: Look,
    name: str,
    shift: float,
) -> None:
    """Nothing is drawn, nor named in the legend, if there is nothing."""
    if not estimates:
        return
    for x, estimate in estimates.items():
        draw_whisker(axis, x, estimate, look, shift)
    values = [estimate.value for estimate in estimates.values()]
    hollow = name.endswith(", published")
    joined = _numeric(places)
    draw_line(axis, list(estimates), values, look, name, hollow=hollow, joined=joined, shift=shift)


def _limit(axis: Axes, estimates: Sequence[Estimate | None]) -> None:
    """Around values and intervals: matplotlib's own limits do not know of shifted lines."""
    ends: list[float] = []
    for estimate in estimates:
        if estimate is not None:
            ends += filter(known, (estimate.value, estimate.low, estimate.high))
    if ends:
        room = 0.06 * (max(ends) - min(ends)) or 1.0
        axis.set_ylim(min(ends) - room, max(ends) + room)


def _scale(axis: Axes, places: Mapping[Setting, float], default: Setting | None) -> None:
    """A tick at each value, bold at the default."""
    low, high = min(places.values(), default=0), max(places.values(), default=1)
    if _logarithmic(places):
        axis.set_xscale("log", base=2)
        factor = (high / low) ** 0.08
        axis.set_xlim(low / factor, high * factor)
    else:
        room = 0.08 * (high - low) or 0.5
        room = room if _numeric(places) else 0.5
        axis.set_xlim(low - room, high + room)
    names = [setting if isinstance(setting, str) else f"{setting:g}" for setting in places]
    axis.set_xticks(list(places.values()), names)
    axis.xaxis.set_minor_locator(NullLocator())
    for setting, tick in zip(places, axis.get_xticklabels(), strict=True):
        if setting == default:
            tick.set(color=ACCENT, fontweight="bold")
