"""What each replay does to the loss on memory, through a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forever.report.figures.stages import KINDS, Lines, run_figure
from forever.report.figures.style import Drawing, known, legend, scale
from forever.report.study import Part


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
    on_memory = [line for line in steps if line["kind"] != "task"]
    fields = {"loss": "cross-entropy\non memory (nats)"}
    if any((line.get("penalty") or 0) > 0 for line in on_memory):
        fields["penalty"] = "scaled penalty"
    figure, axes = run_figure(steps, [2.6, 1.7][: len(fields)], title)
    for axis, (field, name) in zip(axes, fields.items(), strict=True):
        axis.set_ylabel(name)
        for kind, _, colour in KINDS:
            _draw_updates(axis, steps, kind, field, colour)
    for kind, marker, colour in KINDS:
        chosen = [event for event in events if event["kind"] == kind]
        _draw_events(axes[0], steps, chosen, {"color": colour, "marker": marker})
    for axis in axes:
        drawn = [np.ravel(np.asarray(line.get_ydata(), dtype=float)) for line in axis.lines]
        if not scale(axis, "y", np.concatenate([*drawn, []])):
            axis.set_ylim(bottom=0)
    legend(figure, place="lower center")
    return figure


def _draw_updates(axis: Axes, steps: Lines, kind: str, field: str, colour: str) -> None:
    """A dot an update on memory."""
    places = {x: line.get(field) for x, line in enumerate(steps, 1) if line["kind"] == kind}
    if any(map(known, places.values())):
        style: dict[str, Any] = {"color": colour, "alpha": 0.6, "label": f"{kind} update"}
        style |= {"linestyle": "none", "marker": ".", "markersize": 4, "markeredgewidth": 0}
        axis.plot(list(places), np.array(list(places.values()), dtype=float), **style)


def _draw_events(axis: Axes, steps: Lines, events: Lines, style: dict[str, Any]) -> None:
    """A line from before (hollow) to after (filled), as wide as the event is long.

    The updates of an event have its kind, task and step, which no two events share.
    """
    places: dict[tuple[str, str, int], list[int]] = {}
    for x, line in enumerate(steps, 1):
        places.setdefault((line["kind"], line["task"], line["step"]), []).append(x)
    drawn: list[tuple[int, int, float, float]] = []
    for event in events:
        xs = places.get((event["kind"], event["task"], event["step"]))
        before, after = event.get("loss_before"), event.get("loss_after")
        if xs and known(before) and known(after):
            drawn.append((xs[0], xs[-1], before, after))
    if drawn:
        firsts, lasts, befores, afters = zip(*drawn, strict=True)
        kind = events[0]["kind"]
        axis.plot([firsts, lasts], [befores, afters], color=style["color"], linewidth=1, zorder=3)
        style = {"markersize": 4, "linestyle": "none", "zorder": 4, "clip_on": False, **style}
        axis.plot(firsts, befores, markerfacecolor="white", label=f"before a {kind}", **style)
        axis.plot(lasts, afters, label=f"after a {kind}", **style)
