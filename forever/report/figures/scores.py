"""OP and BWT over the values of one setting (how much of the memory, how long a warm-up, which
spacing, which backbone), and the minutes of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forever.report.analyses import minutes_an_epoch
from forever.report.analyses.doses import dose_lines, dose_of, line_of
from forever.report.figures import style
from forever.report.figures.variants import scored
from forever.report.format import mark
from forever.report.format import setting as written
from forever.report.row import Row
from forever.report.study import Part
from forever.text import label

Settings = Mapping[str, float | str]  # by variant


def sensitivity(part: Part) -> Iterator[style.Picture]:
    figures = part.file.figures if part.file else ()
    for axis in figures:
        if axis.key and axis.label:
            settings = _values(part, axis.key, axis.unit)
            if settings:
                yield _picture(part, settings, "sensitivity", axis.label)


def _values(part: Part, key: str, unit: float) -> Settings:
    """What each variant that has the setting has for it: numbers, or names if one is none."""
    values: dict[str, Any] = {}
    for row in part.measured:
        if key in row.runs[0].settings:
            values[row.variant] = row.runs[0].settings[key]
    if all(type(value) in (int, float) for value in values.values()):
        return {variant: unit * value for variant, value in values.items()}
    return {variant: written(value) for variant, value in values.items()}


def spacing(part: Part) -> Iterator[style.Picture]:
    settings = {row.variant: row.variant for row in part.measured}
    yield _picture(part, settings, "sensitivity", "spacing of replays")


def backbones(part: Part) -> Iterator[style.Picture]:
    settings = {row.variant: row.runs[0].backbone for row in part.measured}
    yield _picture(part, settings, "backbones", "backbone")


def _picture(part: Part, settings: Settings, name: str, about: str) -> style.Picture:
    """OP, and BWT below it, of the variants that have a setting against it, a line a method, with
    intervals; the reference's value is marked.

    Values stand side by side: numbers by size and joined, names in the order in which they come.
    """
    shown = [row for row in part.measured if row.variant in settings]
    values = list(dict.fromkeys(settings.values()))
    has_names = isinstance(values[0], str)
    if not has_names:
        values.sort(key=float)

    def place(row: Row) -> int:
        return values.index(settings[row.variant])

    by_method: dict[str, list[Row]] = {}
    for row in sorted(shown, key=place):
        by_method.setdefault(row.results[0]["method"], []).append(row)
    figure, axes = _op_and_bwt()
    looks = style.looks(by_method, "forever")
    for number, (method, rows) in enumerate(by_method.items()):
        # Methods stand beside each other at each value.
        shift = (number - (len(by_method) - 1) / 2) * min(0.1, 0.7 / len(by_method))
        look = {**looks[method], "linestyle": "none"} if has_names else looks[method]
        _draw(axes, [place(row) + shift for row in rows], rows, look)
    if part.reference and part.reference in settings:
        middle = values.index(settings[part.reference])
        for axis in axes:
            axis.axvspan(middle - 0.4, middle + 0.4, **style.GROUND)
    axes[-1].set(xlabel=label(about), xlim=(-0.5, len(values) - 0.5))
    axes[-1].set_xticks(range(len(values)), [label(written(value)) for value in values])
    style.legend(figure)
    caption = f"OP and BWT against {about}, with 95 % intervals; the reference's on a pale ground."
    numbers = scored(shown, "op", "bwt")
    numbers.insert(1, about, [settings[row.variant] for row in shown])
    return style.picture(name, caption, figure, numbers)


def _op_and_bwt() -> tuple[Figure, list[Axes]]:
    """A panel for OP, and one for BWT below it."""
    figure, axes = style.new_figure(7.2, [2.4, 2.4])
    for axis, title in zip(axes, ("OP (%)", "BWT (points)"), strict=True):
        axis.set_ylabel(title)
    return figure, axes


def _draw(axes: Sequence[Axes], x: Sequence[float], rows: Sequence[Row], look: style.Look) -> None:
    """A line of variants in both panels."""
    marks = [mark(row.variant) for row in rows]
    for axis, field in zip(axes, ("op", "bwt"), strict=True):
        style.draw_estimates(axis, x, [row.compared(field) for row in rows], look, marks)


def doses(part: Part) -> Iterator[style.Picture]:
    """OP, and BWT below it, over the dose, a line for each way of replaying, with intervals."""
    lines = dose_lines(part)
    if not lines:
        return
    figure, axes = _op_and_bwt()
    looks = style.looks(lines, line_of(part.reference, lines))
    kept: dict[int, float] = {}
    gap = min(1.05, 1.25 ** (1 / len(lines)))  # of many lines no dose comes near another
    for number, (name, rows) in enumerate(lines.items()):
        shift = gap ** (number - (len(lines) - 1) / 2)  # beside each other at each dose
        kept |= {dose_of(row): row.runs[0].settings["memory.fraction"] for row in rows}
        _draw(axes, [shift * dose_of(row) for row in rows], rows, looks[name])
    axes[1].set_xscale("log")
    axes[1].set_xlabel("examples that a task replays, and share of a task that is kept")
    labels = [f"{dose}\n{100 * share:g} %" for dose, share in kept.items()]
    axes[1].set_xticks(list(kept), labels)
    axes[1].minorticks_off()
    style.legend(figure)
    caption = "OP and BWT over the dose, with 95 % intervals. The means over doses among the "
    caption += "findings are the areas under these curves over the logarithm of the dose, by the "
    caption += "trapezoid rule, divided by its range."
    ordered = list(chain.from_iterable(lines.values()))
    numbers = scored(ordered, "op", "bwt")
    numbers.insert(1, "examples a task", [dose_of(row) for row in ordered])
    yield style.picture("doses", caption, figure, numbers)


def training_time(part: Part) -> Iterator[style.Picture]:
    minutes: dict[str, float] = {}
    for backbone, methods in minutes_an_epoch(part).items():
        for method, value in methods.items():
            minutes[label(f"{method}, {backbone}")] = value
    figure, (axis,) = style.new_figure(7.5, [0.3 * len(minutes)])
    bars = axis.barh(list(minutes), list(minutes.values()), color=style.ACCENT)
    axis.bar_label(bars, fmt="%.2g", padding=3, fontsize=style.SMALL)
    axis.invert_yaxis()
    axis.set_xlabel("minutes an epoch")
    caption = "Minutes of training an epoch and task, replay and merges included."
    numbers = pd.DataFrame(minutes.items(), columns=["method, backbone", "minutes an epoch"])
    yield style.picture("training-time", caption, figure, numbers)
