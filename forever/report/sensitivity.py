"""Scores over the values of one setting: how much of the memory, how long a warm-up, which
spacing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from forever.report.bootstrap import Estimate
from forever.report.style import (
    ACCENT,
    GRID,
    NORMAL,
    SMALL,
    Look,
    draw_line,
    known,
    looks,
    shifted,
    tidy,
)

LOGARITHMIC = 8  # largest over smallest value, from where values count as powers

Setting = float | str


@dataclass(frozen=True)
class Point:
    """The scores of a variant at one value of a setting; None where nothing was measured."""

    variant: str
    setting: Setting
    op: Estimate | None
    bwt: Estimate | None = None

    @classmethod
    def published(
        cls, variant: str, setting: Setting, op: float | None, bwt: float | None = None
    ) -> Point:
        """The numbers of a paper, which have no interval."""
        exact = [Estimate(value, value, value, 0) if known(value) else None for value in (op, bwt)]
        return cls(variant, setting, *exact)


def sensitivity_figure(
    points: Sequence[Point],
    label: str,
    *,
    reference: str | None = None,
    default: Setting | None = None,
    published: Sequence[Point] = (),
) -> Figure:
    """OP, and BWT below it, against a setting, a line a variant, with intervals.

    Values of the setting that are names stand side by side, unjoined, in the order in which they
    come. Numbers are on a log2 axis if they are positive and span a factor of LOGARITHMIC.

    Args:
        label: of the setting, such as "memory (% of the rows)".
        reference: the variant in bold.
        default: the value that all other experiments use; its place is marked.
        published: numbers of the paper, only if they are comparable: hollow, in the variant's
        colour.
    """
    everything = [*points, *published]
    panels = ["op", "bwt"] if any(point.bwt is not None for point in everything) else ["op"]
    places = _places(everything)
    found = looks(dict.fromkeys(point.variant for point in everything), reference)
    figure = Figure(figsize=(7.2, 1.3 + 2.4 * len(panels)), layout="constrained")
    axes: list[Axes] = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
    joined = _numeric(places)
    step = (
        min(2.2, 14 / max(len(found), 1))
        if joined
        else min(9.0, 330 / (len(places) * max(len(found), 1) + 1))
    )
    for axis, field in zip(axes, panels, strict=True):
        tidy(axis)
        axis.set_ylabel({"op": "OP (%)", "bwt": "BWT (points)"}[field], fontsize=NORMAL)
        axis.grid(axis="y", color=GRID, linewidth=0.6)
        if default in places:
            axis.axvline(
                places[default], color=ACCENT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0
            )
        for number, (variant, look) in enumerate(found.items()):
            shift = step * (number - (len(found) - 1) / 2)
            for source, hollow in ((points, False), (published, True)):
                chosen = [point for point in source if point.variant == variant]
                _series(
                    axis, places, chosen, field, look, shift=shift, hollow=hollow, joined=joined
                )
        _limit(axis, [getattr(point, field) for point in everything])
    _scale(axes[-1], places, default)
    axes[-1].set_xlabel(label + ", log scale" * _logarithmic(places), fontsize=NORMAL)
    handles = {
        name: handle
        for axis in axes
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if handles:
        style: dict[str, Any] = {
            "loc": "outside right upper",
            "frameon": False,
            "fontsize": SMALL + 0.5,
        }
        figure.legend(list(handles.values()), list(handles), **style)
    return figure


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


def _series(
    axis: Axes,
    places: Mapping[Setting, float],
    points: Sequence[Point],
    field: str,
    look: Look,
    *,
    shift: float,
    hollow: bool,
    joined: bool,
) -> None:
    """What one variant has in one panel: nothing is drawn, nor named in the legend, if that is
    nothing."""
    estimates = {
        places[p.setting]: getattr(p, field)
        for p in sorted(points, key=lambda p: places[p.setting])
    }
    measured = {x: e for x, e in estimates.items() if e is not None and known(e.value)}
    if not measured:
        return
    for x, estimate in measured.items():
        if estimate.high > estimate.low:
            style: dict[str, Any] = {
                "color": look.colour,
                "linewidth": 1.0,
                "alpha": 0.6,
                "zorder": look.zorder,
            }
            axis.plot(
                [x, x], [estimate.low, estimate.high], transform=shifted(axis, shift), **style
            )
    label = f"{points[0].variant}, published" if hollow else points[0].variant
    look = look._replace(dashes=(0, (1.5, 1.2)), width=1.0) if hollow else look
    values = [estimate.value for estimate in measured.values()]
    draw_line(axis, list(measured), values, look, label, hollow=hollow, joined=joined, shift=shift)


def _limit(axis: Axes, estimates: Sequence[Estimate | None]) -> None:
    """Around values and intervals: matplotlib's own limits do not know of shifted lines."""
    ends = [
        end for e in estimates if e is not None for end in (e.value, e.low, e.high) if known(end)
    ]
    if ends:
        room = 0.06 * (max(ends) - min(ends)) or 1.0
        axis.set_ylim(min(ends) - room, max(ends) + room)


def _scale(axis: Axes, places: Mapping[Setting, float], default: Setting | None) -> None:
    """A tick at each value, bold at the default."""
    low, high = min(places.values(), default=0), max(places.values(), default=1)
    if _logarithmic(places):
        axis.set_xscale("log", base=2)
        room = (high / low) ** 0.08
        axis.set_xlim(low / room, high * room)
    else:
        room = 0.08 * (high - low) or 0.5
        axis.set_xlim(*((low - room, high + room) if _numeric(places) else (low - 0.5, high + 0.5)))
    names = [setting if isinstance(setting, str) else f"{setting:g}" for setting in places]
    axis.set_xticks(list(places.values()), names)
    axis.xaxis.set_minor_locator(NullLocator())
    for setting, tick in zip(places, axis.get_xticklabels(), strict=True):
        if setting == default:
            tick.set(color=ACCENT, fontweight="bold")
