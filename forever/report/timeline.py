"""The timeline of one run: how far each update moves, what the clock shows, when the memory is
replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from forever.report.style import INK, LARGE, NORMAL, SMALL, tidy

Lines = Sequence[Mapping[str, Any]]

PALE, DELTA, CLOCK, REPLAY, CONSOLIDATION = "#F3F3F1", "#88AACC", "#004488", "#EE7733", "#009988"


class Stage(NamedTuple):
    """The lines of one task: positions `first` to `last` on the axis of all updates, which counts
    from 1."""

    name: str
    first: int
    last: int


def timeline_figure(steps: Lines, events: Lines, title: str = "") -> Figure:
    """One run over all its updates: how far each update moves, what the clock shows, when the
    memory is replayed.

    Args:
        steps: the lines of steps.jsonl. Methods without a clock get the upper panel only.
        events: the lines of events.jsonl.
    """
    ticking = any(line.get("days") for line in steps)
    heights = [1.0, 1.25] if ticking else [1.0]
    figure = Figure(figsize=(11, 5.0 if ticking else 2.8), layout="constrained")
    axes: list[Axes] = list(
        figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    )
    stages = list(stages_of(steps))
    for axis in axes:
        draw_bands(axis, stages)
        _replay_spans(axis, steps)
        tidy(axis)
    _plot_delta(axes[0], steps)
    if ticking:
        _plot_clock(axes[1], steps, events)
    name_stages(axes[0], stages, len(steps), width_pt=9.9 * 72)
    axes[-1].set_xlabel("update of the run" + ", replay included" * bool(events), fontsize=NORMAL)
    axes[-1].set_xlim(0.5, max(len(steps), 1) + 0.5)
    axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    handles = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    style: dict[str, Any] = {"ncols": 6, "frameon": False, "fontsize": SMALL + 0.5}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", **style)
    if title:
        figure.suptitle(title, fontsize=LARGE, color=INK)
    return figure


def stages_of(steps: Lines) -> Iterator[Stage]:
    first = 1
    for name, lines in groupby(steps, key=lambda line: line["task"]):
        last = first + sum(1 for _ in lines) - 1
        yield Stage(str(name), first, last)
        first = last + 1


def draw_bands(axis: Axes, stages: Sequence[Stage]) -> None:
    """Every other task on a pale ground."""
    for stage in stages[1::2]:
        axis.axvspan(stage.first - 0.5, stage.last + 0.5, color=PALE, linewidth=0, zorder=0)


def name_stages(axis: Axes, stages: Sequence[Stage], total: int, width_pt: float) -> None:
    """Names above the bands, slanted if one does not fit its band (a letter is about 0.6 of its
    height wide)."""
    room = [(stage.last - stage.first + 1) / max(total, 1) * width_pt - 4 for stage in stages]
    fits = all(
        0.6 * SMALL * len(stage.name) < space for stage, space in zip(stages, room, strict=True)
    )
    style: dict[str, Any] = (
        {"ha": "center"} if fits else {"ha": "left", "rotation": 35, "rotation_mode": "anchor"}
    )
    style |= {"textcoords": "offset points", "va": "bottom", "fontsize": SMALL, "color": INK}
    for stage in stages:
        middle = (stage.first + stage.last) / 2
        axis.annotate(
            stage.name, (middle, 1), xycoords=("data", "axes fraction"), xytext=(0, 4), **style
        )


def _replay_spans(axis: Axes, steps: Lines) -> None:
    """The updates that are spent on replay, as wide as they are many."""
    spans: dict[str, list[tuple[float, float]]] = {"replay": [], "consolidation": []}
    first = 1
    for kind, lines in groupby(steps, key=lambda line: line["kind"]):
        count = sum(1 for _ in lines)
        if kind in spans:
            spans[kind].append((first - 0.5, count))
        first += count
    for kind, colour in (("replay", REPLAY), ("consolidation", CONSOLIDATION)):
        if spans[kind]:
            axis.broken_barh(
                spans[kind],
                (0, 1),
                transform=axis.get_xaxis_transform(),
                facecolor=colour,
                alpha=0.3,
                linewidth=0,
            )


def _broken(steps: Lines, values: Sequence[float | None]) -> tuple[np.ndarray, np.ndarray]:
    """Points of a line that breaks between tasks and where a value is None."""
    places, heights = [0.0], [np.nan]
    for stage in stages_of(steps):
        places += [*range(stage.first, stage.last + 1), stage.last]
        heights += [np.nan if v is None else v for v in values[stage.first - 1 : stage.last]] + [
            np.nan
        ]
    return np.array(places), np.array(heights)


def _plot_delta(axis: Axes, steps: Lines) -> None:
    """Task updates only: the clock does not count replay updates. A dot a value, as some stand
    alone."""
    style: dict[str, Any] = {"marker": "o", "markeredgewidth": 0}
    for field, label, colour, width in (
        ("update_norm", "Δ", DELTA, 0.8),
        ("mu", "μ (moving average of Δ)", INK, 1.0),
    ):
        values = [line.get(field) if line["kind"] == "task" else None for line in steps]
        if any(value is not None for value in values):
            axis.plot(
                *_broken(steps, values),
                color=colour,
                linewidth=width,
                markersize=1.4 * width,
                label=label,
                **style,
            )
    axis.set_ylim(bottom=0)
    axis.set_ylabel("Δ: distance moved\nby a task update (L2)", fontsize=NORMAL)


def _plot_clock(axis: Axes, steps: Lines, events: Lines) -> None:
    # 0: a day has no length until the warm-up is over.
    days = [line.get("days") or None for line in steps]
    axis.plot(*_broken(steps, days), color=CLOCK, linewidth=1.2, label="clock since the task began")
    place = {
        (line["task"], line["step"]): x for x, line in enumerate(steps, 1) if line["kind"] == "task"
    }
    styles = (
        ("replay", "o", REPLAY, "replay, at its day"),
        ("consolidation", "D", CONSOLIDATION, "consolidation"),
    )
    for kind, marker, colour, label in styles:
        points = [
            (place[e["task"], e["step"]], e["days"])
            for e in events
            if e["kind"] == kind and e["days"] > 0
        ]
        if points:
            style: dict[str, Any] = {
                "s": 22,
                "edgecolor": "white",
                "linewidth": 0.5,
                "zorder": 4,
                "clip_on": False,
            }
            axis.scatter(
                *zip(*points, strict=True), marker=marker, color=colour, label=label, **style
            )
    axis.set_axisbelow(True)
    axis.set_ylabel(f"clock: {_unit_of_clock(steps)}", fontsize=NORMAL)
    _scale_clock(axis, steps, max(day for day in days if day))


def _scale_clock(axis: Axes, steps: Lines, last: float) -> None:
    """Ticks at the scheduled days that came within reach."""
    planned = sorted({float(line["next_day"]) for line in steps if line.get("next_day")})
    planned = [day for day in planned if day <= last]
    # Spaced like 1, 2, 4, 7, 15, 30: equal distances in the logarithm.
    if planned and planned[-1] / planned[0] > 8:
        axis.set_yscale("log", base=2)
        axis.set_ylabel(f"{axis.get_ylabel()}, log scale")
        axis.set_ylim(bottom=planned[0] * 0.8)
        axis.yaxis.set_minor_locator(NullLocator())
    else:
        axis.set_ylim(bottom=0)
    if 0 < len(planned) <= 12:
        axis.set_yticks(planned, [f"{day:g}" for day in planned])
    axis.grid(axis="y", color="#D8D8D8", linewidth=0.6)


def _unit_of_clock(steps: Lines) -> str:
    """What a day is: a distance on the model clock, a number of updates on a step clock (`days` is
    then linear)."""
    ticks = [line for line in steps if line["kind"] == "task" and line.get("days")]
    updates = {round(line["step"] / line["days"], 6) for line in ticks}
    if len(updates) != 1:
        return "τ in model days"
    day = updates.pop()
    return "task updates" if day == 1 else f"days of {day:g} updates"
