"""What each replay does to the loss on memory, through a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forever.report.figures.stages import KINDS, Lines, run_figure
from forever.report.figures.style import Drawing, known, label, legend, log_scale
from forever.report.study import Part

MANY = 40  # events; more have small marks


def replay_loss(part: Part) -> Iterator[Drawing]:
    run = part.example
    if run is not None and any(event["kind"] == "replay" for event in run.events):
        figure = replay_loss_figure(run.steps, run.events, run.title)
        caption = "The loss on memory and the penalty at each replay of one run."
        yield Drawing("replay-loss", caption, figure)


def replay_loss_figure(steps: Lines, events: Lines, title: str = "") -> Figure:
    """What each replay does to the loss on memory, over all updates of one run, and what holds it
    back.

    Above: the cross-entropy of an event's first batch right before and right after the event, and
    of each replay update on its batch. Below: the scaled penalty of these updates; only if there is
    one.

    Args:
        steps: the lines of steps.jsonl.
        events: the lines of events.jsonl.
    """
    kinds = [kind for kind, *_ in KINDS]
    penalised = any((line.get("penalty") or 0) > 0 for line in steps if line["kind"] in kinds)
    heights, total = ([1.6, 1.0], 5.8) if penalised else ([1.6], 3.9)
    figure, axes = run_figure(steps, heights, total, title)
    size = 5.0 if len(events) <= MANY else 3.5
    _draw_updates(axes[0], steps, "loss", size)
    label(axes[0], y="cross-entropy\non memory (nats)")
    if penalised:
        _draw_updates(axes[1], steps, "penalty", size)
        label(axes[1], y="scaled penalty")
    _draw_events(axes[0], steps, events, 0.9 * size)
    for axis in axes:
        _scale(axis)
    legend(figure, place="lower center")
    return figure


def _draw_updates(axis: Axes, steps: Lines, field: str, size: float) -> None:
    """A dot an update on memory."""
    for kind, _, colour in KINDS:
        lines = [(x, line) for x, line in enumerate(steps, 1) if line["kind"] == kind]
        values = [line.get(field) for _, line in lines]
        if any(map(known, values)):
            axis.plot(
                [x for x, _ in lines],
                np.array(values, dtype=float),
                color=colour,
                label=f"{kind} update",
                linestyle="none",
                marker=".",
                markersize=size,
                alpha=0.6,
                markeredgewidth=0,
            )


class _Span(NamedTuple):
    """An event and the positions of its first and last update."""

    event: Mapping[str, Any]
    first: int
    last: int


def _spans(steps: Lines, events: Lines) -> Iterator[_Span]:
    """Events that have updates and losses; found by kind, task and step, of which no two events
    have the same."""
    places: dict[tuple[str, str, int], list[int]] = {}
    for x, line in enumerate(steps, 1):
        places.setdefault((line["kind"], line["task"], line["step"]), []).append(x)
    for event in events:
        xs = places.get((event["kind"], event["task"], event["step"]))
        if xs and known(event.get("loss_before")) and known(event.get("loss_after")):
            yield _Span(event, xs[0], xs[-1])


def _draw_events(axis: Axes, steps: Lines, events: Lines, size: float) -> None:
    """A line from before (hollow) to after (filled), as wide as the event is long."""
    spans = list(_spans(steps, events))
    for kind, marker, colour in KINDS:
        chosen = [span for span in spans if span.event["kind"] == kind]
        if not chosen:
            continue
        firsts, lasts = [span.first for span in chosen], [span.last for span in chosen]
        before = [span.event["loss_before"] for span in chosen]
        after = [span.event["loss_after"] for span in chosen]
        axis.plot([firsts, lasts], [before, after], color=colour, linewidth=1.0, zorder=3)
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": size}
        style |= {"linestyle": "none", "zorder": 4, "clip_on": False}
        name = f"before a {kind}"
        axis.plot(firsts, before, markerfacecolor="white", label=name, **style)
        axis.plot(lasts, after, label=f"after a {kind}", **style)


def _scale(axis: Axes) -> None:
    """Logarithmic if the numbers span more than a power of ten, else from zero."""
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axis.lines]
    values = np.concatenate([*drawn, [np.nan]])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() / values.min() > 10:
        log_scale(axis, "y")
    else:
        axis.set_ylim(bottom=0)
