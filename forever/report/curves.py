"""Numbers that move while training: the loss on memory through a run, the rate of forgetting
through a task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from forever.report.style import (
    GREY,
    GRID,
    INK,
    LARGE,
    NORMAL,
    SMALL,
    Look,
    draw_line,
    known,
    log_scale,
    looks,
    tidy,
)
from forever.report.timeline import CONSOLIDATION, REPLAY, Lines, draw_bands, name_stages, stages_of

BANDS = 4  # variants; more bands hide each other
MANY = 40  # events; more have small marks
COMPARABLE = 3.0  # factor between two scales up to which they share an axis
_KINDS = (("replay", "o", REPLAY), ("consolidation", "D", CONSOLIDATION))

# ---- replay events of one run


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
    places = {
        kind: [x for x, line in enumerate(steps, 1) if line["kind"] == kind] for kind, *_ in _KINDS
    }
    penalised = any((steps[x - 1].get("penalty") or 0) > 0 for xs in places.values() for x in xs)
    heights = [1.6, 1.0] if penalised else [1.6]
    figure = Figure(figsize=(11, 2.0 + 1.9 * len(heights)), layout="constrained")
    axes: list[Axes] = list(
        figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    )
    stages = list(stages_of(steps))
    for axis in axes:
        draw_bands(axis, stages)
        tidy(axis)
        axis.grid(axis="y", color=GRID, linewidth=0.6)
    for axis, field in zip(axes, ("loss", "penalty"), strict=False):
        _plot_updates(axis, steps, places, field, size=5.0 if len(events) <= MANY else 3.5)
    axes[0].set_ylabel("cross-entropy\non memory (nats)", fontsize=NORMAL)
    for axis in axes[1:]:
        axis.set_ylabel("scaled penalty", fontsize=NORMAL)
    _plot_events(axes[0], steps, events)
    for axis in axes:
        _scale_losses(axis)
    name_stages(axes[0], stages, len(steps), width_pt=9.9 * 72)
    axes[-1].set_xlabel("update of the run, replay included", fontsize=NORMAL)
    axes[-1].set_xlim(0.5, max(len(steps), 1) + 0.5)
    axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    handles, names = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, names, loc="outside lower center", ncols=6, frameon=False, fontsize=SMALL + 0.5
        )
    if title:
        figure.suptitle(title, fontsize=LARGE, color=INK)
    return figure


def _plot_updates(
    axis: Axes, steps: Lines, places: Mapping[str, Sequence[int]], field: str, size: float
) -> None:
    """A dot an update on memory."""
    style: dict[str, Any] = {
        "linestyle": "none",
        "marker": ".",
        "markersize": size,
        "alpha": 0.6,
        "markeredgewidth": 0,
    }
    for kind, _, colour in _KINDS:
        values = [steps[x - 1].get(field) for x in places[kind]]
        if any(map(known, values)):
            axis.plot(
                places[kind],
                np.array(values, dtype=float),
                color=colour,
                label=f"{kind} update",
                **style,
            )


class _Span(NamedTuple):
    """An event and the positions of its first and last update."""

    event: Mapping[str, Any]
    first: int
    last: int


def _spans(steps: Lines, events: Lines) -> Iterator[_Span]:
    """Events that have updates; found by kind, task and step, of which no two events have the
    same."""
    places: dict[tuple[str, str, int], list[int]] = {}
    for x, line in enumerate(steps, 1):
        places.setdefault((line["kind"], line["task"], line["step"]), []).append(x)
    for event in events:
        xs = places.get((event["kind"], event["task"], event["step"]))
        if xs:
            yield _Span(event, xs[0], xs[-1])


def _plot_events(axis: Axes, steps: Lines, events: Lines) -> None:
    """A line from before (hollow) to after (filled), as wide as the event is long."""
    spans = list(_spans(steps, events))
    size = 4.5 if len(spans) <= MANY else 3.2
    for kind, marker, colour in _KINDS:
        chosen = [span for span in spans if span.event["kind"] == kind]
        points = [
            ((s.first, s.event["loss_before"]), (s.last, s.event["loss_after"])) for s in chosen
        ]
        points = [
            (before, after) for before, after in points if known(before[1]) and known(after[1])
        ]
        for before, after in points:
            axis.plot(*zip(before, after, strict=True), color=colour, linewidth=1.0, zorder=3)
        for part, name, face in ((0, "before", "white"), (1, "after", colour)):
            if points:
                style: dict[str, Any] = {
                    "linestyle": "none",
                    "marker": marker,
                    "markersize": size,
                    "zorder": 4,
                }
                style["clip_on"] = False
                x, y = zip(*(pair[part] for pair in points), strict=True)
                axis.plot(
                    x, y, color=colour, markerfacecolor=face, label=f"{name} a {kind}", **style
                )


def _scale_losses(axis: Axes) -> None:
    """Logarithmic if the numbers span more than a power of ten, else from zero."""
    values = np.concatenate(
        [np.ravel(np.asarray(line.get_ydata(), dtype=float)) for line in axis.lines] or [[]]
    )
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() / values.min() > 10:
        log_scale(axis, "y")
    else:
        axis.set_ylim(bottom=0)


# ---- rate of forgetting


def forgetting_rate_figure(
    rates: Mapping[str, Sequence[Sequence[float]]],
    phase: int,
    published: Sequence[float] | None = None,
    reference: str | None = None,
) -> Figure:
    """How fast the loss on earlier tasks rises in each phase of a task: the mean over tasks and
    runs.

    Bands are one standard deviation over tasks and runs: of all variants if there are up to BANDS,
    else of the reference. Published rates are hollow, with an axis of their own if they are of
    another size: its zero is where ours is, and its highest rate is as high as the reference's
    (without one: as the highest of all).

    Args:
        rates: by variant, for each task of each run, the rise in nats an update in phases 1, 2, ...
        A task that ends
            earlier has fewer; NaN where nothing was measured.
        phase: updates in a phase, counted from the start of the task.
        published: the paper's rates for phases 1, 2, ...
    """
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    axis = figure.subplots()
    tidy(axis)
    means: dict[str, np.ndarray] = {}
    shown = {
        name: curves
        for name, curves in rates.items()
        if any(known(v) for curve in curves for v in curve)
    }
    banded = [name for name in shown if len(shown) <= BANDS or name == reference]
    for name, look in looks(rates, reference).items():
        if name not in shown:
            continue
        mean, spread = _over_curves(shown[name])
        means[name] = mean
        x = np.arange(1, len(mean) + 1)
        draw_line(axis, x, mean, look, name)
        if name in banded:
            axis.fill_between(
                x, mean - spread, mean + spread, color=look.colour, alpha=0.12, linewidth=0
            )
    axis.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    axis.set_ylabel("rise of the loss on earlier tasks\n(nats an update)", fontsize=NORMAL)
    _small_powers(axis)
    axis.grid(axis="y", color=GRID, linewidth=0.6)
    last = max([*map(len, means.values()), len(published or ())], default=1)
    _phase_ticks(axis, last, phase)
    ends = sorted(axis.get_lines()[: len(means)], key=lambda line: -_last(line.get_ydata()))
    scale = [means[reference]] if reference in means else list(means.values())
    handles = [*ends, *_published(axis, scale, published)]
    if any(len(curves) > 1 for name, curves in shown.items() if name in banded):
        handles.append(
            Patch(color=INK, alpha=0.12, linewidth=0, label="± 1 s.d. over tasks and runs")
        )
    if handles:
        figure.legend(
            handles=handles, loc="outside right upper", frameon=False, fontsize=SMALL + 0.5
        )
    return figure


def _over_curves(curves: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation at each phase, over the curves that have it; a single one has no
    spread."""
    columns = [
        [curve[p] for curve in curves if p < len(curve) and known(curve[p])]
        for p in range(max(map(len, curves)))
    ]
    mean = np.array([np.mean(column) if column else math.nan for column in columns])
    spread = np.array(
        [np.std(column, ddof=1) if len(column) > 1 else math.nan for column in columns]
    )
    return mean, spread


def _small_powers(axis: Axes) -> None:
    """Numbers of several digits as a power of ten above the axis, in the size of the numbers."""
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    axis.yaxis.get_offset_text().set_fontsize(SMALL + 0.5)


def _last(values: Any) -> float:
    """The last number of a line that has one."""
    numbers = np.asarray(values, dtype=float)
    return float(numbers[np.isfinite(numbers)][-1])


def _phase_ticks(axis: Axes, last: int, phase: int) -> None:
    every = math.ceil(last / 8)
    ticks = range(1, last + 1, every)
    axis.set_xticks(ticks, [f"{(p - 1) * phase}–{p * phase}" for p in ticks])
    axis.set_xlim(0.7, last + 0.3)
    axis.set_xlabel("updates since the task began", fontsize=NORMAL)


def _published(
    axis: Axes, means: Sequence[np.ndarray], published: Sequence[float] | None
) -> list[Any]:
    """Hollow markers; on the right axis if the highest of them and of the means differ by more than
    COMPARABLE."""
    if not published or not any(map(known, published)):
        return []
    values = np.array(published, dtype=float)
    ours = max((float(np.nanmax(np.abs(mean))) for mean in means), default=0.0)
    factor = float(np.nanmax(np.abs(values))) / ours if ours else math.inf
    shared = (
        not means
        or not factor
        or not math.isfinite(factor)
        or 1 / COMPARABLE <= factor <= COMPARABLE
    )
    target, label = (axis, "published") if shared else (axis.twinx(), "published (right axis)")
    x = np.arange(1, len(values) + 1)
    look = Look(GREY, "o", (0, (1.5, 1.2)), 1.0, 4)
    line = draw_line(target, x, values, look, label, hollow=True)
    if not shared:
        scaled = values / factor  # where the published points will be on the left axis
        axis.set_ylim(
            *_widened(axis.get_ylim(), float(np.nanmin(scaled)), float(np.nanmax(scaled)))
        )
        low, high = axis.get_ylim()
        target.set_ylim(factor * low, factor * high)
        target.set_ylabel("published rate", fontsize=NORMAL, color=GREY)
        _small_powers(target)
        target.tick_params(labelsize=SMALL + 0.5, color=GREY, labelcolor=GREY, length=3)
        target.spines[["top", "left", "bottom"]].set_visible(False)
        target.spines["right"].set_color(GREY)
    return [line]


def _widened(limits: tuple[float, float], low: float, high: float) -> tuple[float, float]:
    room = 0.05 * (limits[1] - limits[0])
    return min(limits[0], low - room), max(limits[1], high + room)
