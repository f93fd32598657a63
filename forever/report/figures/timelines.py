"""The timeline of a run: how far each update moves, what the clock shows, when the memory is
replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from forever.report.figures.stages import KINDS, Lines, run_figure, stages_of
from forever.report.figures.style import INK, Drawing, label, legend
from forever.report.study import Part
from forever.sweeps.sweep import slug

DELTA, CLOCK = "#88AACC", "#004488"


def timelines(part: Part) -> Iterator[Drawing]:
    """The first run of each variant, the example's first and on every order."""
    first = part.example.variant if part.example else None
    for row in sorted(part.measured, key=lambda row: row.variant != first):
        runs = [row.runs[0]]
        if row.variant == first:
            runs = list({run.order: run for run in reversed(row.runs)}.values())[::-1]
        for run in runs:
            order = f"-o{slug(run.order)}" if len(runs) > 1 else ""
            figure = timeline_figure(run.steps, run.events, run.title)
            yield Drawing(f"timeline-{slug(row.variant)}{order}", run.title, figure, "timeline")


def timeline_figure(steps: Lines, events: Lines, title: str = "") -> Figure:
    """One run over all its updates: how far each update moves, what the clock shows, when the
    memory is replayed.

    Args:
        steps: the lines of steps.jsonl. Methods without a clock get the upper panel only.
        events: the lines of events.jsonl.
    """
    ticking = any(line.get("days") for line in steps)
    heights, total = ([1.0, 1.25], 5.0) if ticking else ([1.0], 2.8)
    figure, axes = run_figure(steps, heights, total, title)
    for axis in axes:
        _draw_replays(axis, steps)
    _draw_delta(axes[0], steps)
    if ticking:
        _draw_clock(axes[1], steps, events)
    legend(figure, place="lower center")
    return figure


def _draw_replays(axis: Axes, steps: Lines) -> None:
    """The updates that are spent on replay, as wide as they are many."""
    colours = {kind: colour for kind, _, colour in KINDS}
    first = 1
    for kind, lines in groupby(steps, key=lambda line: line["kind"]):
        count = sum(1 for _ in lines)
        if kind in colours:
            ends = first - 0.5, first + count - 0.5
            axis.axvspan(*ends, color=colours[kind], alpha=0.3, linewidth=0)
        first += count


def _broken(steps: Lines, values: Sequence[float | None]) -> tuple[np.ndarray, np.ndarray]:
    """Points of a line that breaks between tasks and where a value is None."""
    places, heights = [0.0], [np.nan]
    for stage in stages_of(steps):
        places += [*range(stage.first, stage.last + 1), stage.last]
        heights += [*values[stage.first - 1 : stage.last], None]
    return np.array(places), np.array(heights, dtype=float)


def _draw_delta(axis: Axes, steps: Lines) -> None:
    """Task updates only: the clock does not count replay updates. A dot a value, as some stand
    alone."""
    for field, name, colour, width in (
        ("update_norm", "Δ", DELTA, 0.8),
        ("mu", "μ (moving average of Δ)", INK, 1.0),
    ):
        values = [line.get(field) if line["kind"] == "task" else None for line in steps]
        if any(value is not None for value in values):
            axis.plot(
                *_broken(steps, values),
                color=colour,
                linewidth=width,
                marker="o",
                markersize=1.4 * width,
                markeredgewidth=0,
                label=name,
            )
    axis.set_ylim(bottom=0)
    label(axis, y="Δ: distance moved\nby a task update (L2)")


def _draw_clock(axis: Axes, steps: Lines, events: Lines) -> None:
    # 0: a day has no length until the warm-up is over.
    days = [line.get("days") or None for line in steps]
    axis.plot(*_broken(steps, days), color=CLOCK, linewidth=1.2, label="clock since the task began")
    place: dict[tuple[str, int], int] = {}
    for x, line in enumerate(steps, 1):
        if line["kind"] == "task":
            place[line["task"], line["step"]] = x
    for kind, marker, colour in KINDS:
        happened = [event for event in events if event["kind"] == kind and event["days"] > 0]
        if happened:
            axis.scatter(
                [place[event["task"], event["step"]] for event in happened],
                [event["days"] for event in happened],
                label="replay, at its day" if kind == "replay" else kind,
                marker=marker,
                color=colour,
                s=22,
                edgecolor="white",
                linewidth=0.5,
                zorder=4,
                clip_on=False,
            )
    label(axis, y=f"clock: {_unit_of_clock(steps)}")
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


def _unit_of_clock(steps: Lines) -> str:
    """What a day is: a distance on the model clock, a number of updates on a step clock (`days` is
    then linear)."""
    ticks = [line for line in steps if line["kind"] == "task" and line.get("days")]
    updates = {round(line["step"] / line["days"], 6) for line in ticks}
    if len(updates) != 1:
        return "τ in model days"
    day = updates.pop()
    return "task updates" if day == 1 else f"days of {day:g} updates"
