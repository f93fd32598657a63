"""The timeline of a run: how far each update moves, what the clock shows, when the memory is
replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forever.report.figures.stages import KINDS, Lines, run_figure, spans
from forever.report.figures.style import ACCENT, INK, Drawing, legend, scale
from forever.report.study import Part
from forever.sweeps.sweep import slug


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
    has_clock = any(line.get("days") for line in steps)
    figure, axes = run_figure(steps, [1.6, 2.0][: 1 + has_clock], title)
    colours = {kind: colour for kind, _, colour in KINDS}
    for kind, first, last in spans(steps, "kind"):
        for axis in axes:
            if kind in colours:  # the updates that are spent on memory
                ends = first - 0.5, last + 0.5
                axis.axvspan(*ends, color=colours[kind], alpha=0.3, linewidth=0)
    _draw_distances(axes[0], steps)
    if has_clock:
        _draw_clock(axes[1], steps, events)
    legend(figure, place="lower center")
    return figure


def _draw_distances(axis: Axes, steps: Lines) -> None:
    """Those of task updates: the clock does not count others."""
    of_task = [line if line["kind"] == "task" else {} for line in steps]
    distances = [line.get("update_norm") for line in of_task]
    _draw_by_task(axis, steps, distances, color="#88AACC", linewidth=0.8, label="Δ")
    means = [line.get("mu") for line in of_task]
    _draw_by_task(axis, steps, means, color=INK, linewidth=1.0, label="μ (moving average of Δ)")
    axis.set_ylim(bottom=0)
    axis.set_ylabel("Δ: distance moved\nby a task update (L2)")


def _draw_by_task(axis: Axes, steps: Lines, values: Sequence[float | None], **style: Any) -> None:
    """A line that breaks between tasks and where a value is None; with a dot a value, as some stand
    alone."""
    places, heights = [0.0], [np.nan]
    for _, first, last in spans(steps, "task"):
        places += [*range(first, last + 1), last]
        heights += [*values[first - 1 : last], None]
    table = np.array([places, heights], dtype=float)
    if np.isfinite(table[1]).any():
        axis.plot(table[0], table[1], marker="o", markersize=1.3, markeredgewidth=0, **style)


def _draw_clock(axis: Axes, steps: Lines, events: Lines) -> None:
    """The clock with the events that it called, and ticks at the scheduled days within reach."""
    # 0: a day has no length until the warm-up is over.
    days = [line.get("days") or None for line in steps]
    _draw_by_task(
        axis, steps, days, color=ACCENT, linewidth=1.2, label="clock since the task began"
    )
    places: dict[tuple[str, int], int] = {}
    for x, line in enumerate(steps, 1):
        if line["kind"] == "task":
            places[line["task"], line["step"]] = x
    for kind, marker, colour in KINDS:
        happened = [event for event in events if event["kind"] == kind and event["days"] > 0]
        if happened:
            x = [places[event["task"], event["step"]] for event in happened]
            style: dict[str, Any] = {"s": 22, "edgecolor": "white", "linewidth": 0.5, "zorder": 4}
            style |= {"marker": marker, "color": colour, "clip_on": False}
            axis.scatter(
                x, [event["days"] for event in happened], label=f"{kind}, at its day", **style
            )
    axis.set_ylabel(f"clock: {_unit_of_clock(steps)}")
    reached = max(day for day in days if day)
    scheduled = {float(line.get("next_day") or np.inf) for line in steps}
    planned = sorted(day for day in scheduled if day <= reached)
    # Spaced like 1, 2, 4, 7, 15, 30: equal distances in the logarithm.
    bottom = 0.8 * planned[0] if scale(axis, "y", planned) else 0
    axis.set_ylim(bottom=bottom)
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
