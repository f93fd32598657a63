"""The figures of one run: its performance matrix, its timeline, and what replays do to the loss on
memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from forever.report.figures import style
from forever.report.format import number
from forever.report.study import Part
from forever.sweeps.sweep import slug

Lines = Sequence[Mapping[str, Any]]  # of a journal

# Events on memory, with their markers and colours.
KINDS = (("replay", "o", "#EE7733"), ("consolidation", "D", "#009988"))
_TYPES: dict[str, Any] = {"kind": object, "task": object, "step": float} | dict.fromkeys(
    ["days", "next_day", "update_norm", "mu", "loss", "penalty", "loss_before", "loss_after"], float
)
# Light enough for dark numbers everywhere.
_BLUES = ListedColormap(colormaps["Blues"](np.linspace(0, 0.65, 256)))


def matrices(part: Part) -> Iterator[style.Picture]:
    """The first run of each variant."""
    for row in part.measured:
        title = row.runs[0].title
        figure = matrix_figure(row.results[0], title)
        yield style.Picture(f"matrix-{slug(row.variant)}", title, figure, "matrix")


def matrix_figure(result: Mapping[str, Any], title: str | None = None) -> Figure:
    """The performance matrix as a heat map: a row a task, a column a stage, scores in percent, the
    diagonal framed, hatched where nothing was measured.

    Args:
        result: the content of result.json. Colours always span 0 to 100, so that two figures can be
            compared.
        title: what stands before OP and BWT; the method and the seed if None.
    """
    scores = np.array(result["matrix"], dtype=float)  # None becomes NaN
    tasks, stages = scores.shape
    figure, (axis,) = style.new_figure(2.3 + 0.52 * stages, [0.3 + 0.36 * tasks])
    axis.grid(visible=False)
    cells: dict[str, Any] = {"vmin": 0, "vmax": 100, "edgecolors": "white", "linewidth": 1}
    image = axis.pcolormesh(np.ma.masked_invalid(scores), cmap=_BLUES, **cells)
    hatched: dict[str, Any] = {"hatch": "////", "edgecolor": "#E2E2E2", "linewidth": 0}
    framed: dict[str, Any] = {"edgecolor": style.INK, "linewidth": 0.9}
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.SMALL}
    for (i, j), score in np.ndenumerate(scores):
        if np.isnan(score):
            axis.add_patch(Rectangle((j, i), 1, 1, fill=False, **hatched))
            continue
        axis.text(j + 0.5, i + 0.5, f"{score:.1f}", **middle)
        if i == j and stages == tasks:
            axis.add_patch(Rectangle((j + 0.04, i + 0.04), 0.92, 0.92, fill=False, **framed))
    axis.set(xlim=(0, stages), ylim=(tasks, 0), xlabel="after training on", ylabel="score on")
    axis.set_yticks(np.arange(tasks) + 0.5, result["tasks"])
    axis.set_xticks(np.arange(stages) + 0.5, result["stages"], ha="right", **style.SLANTED)
    axis.tick_params(length=0, labelsize=style.SMALL)
    axis.spines[:].set_visible(False)
    bar: Any = figure.colorbar(image, shrink=0.8, aspect=18, pad=0.03, ticks=range(0, 101, 25))
    bar.set_label("score (%)", fontsize=style.SMALL)
    bar.ax.tick_params(labelsize=style.SMALL, length=2)
    bar.outline.set_visible(False)
    name = title or f"{result['method']}, seed {result['seed']}"
    op, bwt = number(result["op"], "{:.1f}"), number(result["bwt"], "{:+.1f}")
    figure.suptitle(f"{name}\nOP {op} · BWT {bwt}", fontsize=style.LARGE, color=style.INK)
    return figure


def table_of(lines: Lines) -> pd.DataFrame:
    """A row a line, by its place from 1; NaN where a line has no number."""
    table = pd.DataFrame(lines, columns=list(_TYPES)).astype(_TYPES)
    table.index = pd.RangeIndex(1, len(table) + 1, name="place")
    return table


def spans(column: Iterable[Any]) -> Iterator[tuple[str, int, int]]:
    """Updates in a row that have the same task or kind: its name, the first place and the last."""
    first = 1
    for name, lines in groupby(column):
        last = first + len(list(lines)) - 1
        yield name, first, last
        first = last + 1


def run_figure(
    updates: pd.DataFrame, heights: Sequence[float], title: str
) -> tuple[Figure, list[Axes]]:
    """Panels over all updates of a run, every other task on a pale ground, with their names."""
    figure, axes = style.new_figure(11, heights)
    stages = list(spans(updates["task"]))
    for axis in axes:
        for _, first, last in stages[1::2]:
            axis.axvspan(first - 0.5, last + 0.5, color="#F3F3F1", linewidth=0, zorder=0)
    turned: dict[str, Any] = {"ha": "center"}
    if len(stages) > style.MANY_STAGES:
        turned = {"ha": "left", **style.SLANTED}
    for name, first, last in stages:
        style.name_above(axes[0], (first + last) / 2, name, fontsize=style.SMALL, **turned)
    axes[-1].set_xlabel("update of the run, replay included")
    axes[-1].set_xlim(0.5, max(len(updates), 1) + 0.5)
    axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    figure.suptitle(title, fontsize=style.LARGE, color=style.INK)
    return figure, axes


def timelines(part: Part) -> Iterator[style.Picture]:
    """The first run of each variant, the example's first and on every order."""
    first = part.example.variant if part.example else None
    for row in sorted(part.measured, key=lambda row: row.variant != first):
        by_order = {run.order: run for run in reversed(row.runs)}
        several = row.variant == first and len(by_order) > 1
        for run in reversed(by_order.values()) if several else row.runs[:1]:
            name = f"timeline-{slug(row.variant)}"
            if several:
                name += f"-o{slug(run.order)}"
            figure = timeline_figure(run.steps, run.events, run.title)
            yield style.Picture(name, run.title, figure, "timeline")


def timeline_figure(steps: Lines, events: Lines, title: str = "") -> Figure:
    """One run over all its updates, from the lines of steps.jsonl and events.jsonl: how far each
    update moves, when the memory is replayed, and, if it has a clock, what that shows."""
    updates = table_of(steps)
    has_clock = bool(updates["days"].gt(0).any())
    figure, axes = run_figure(updates, [1.6, 2.0][: 1 + has_clock], title)
    for kind, _, colour in KINDS:
        for name, first, last in spans(updates["kind"]):
            for axis in axes if name == kind else ():
                axis.axvspan(first - 0.5, last + 0.5, color=colour, alpha=0.3, linewidth=0)
    axes[0].set_ylabel("Δ: distance moved\nby a task update (L2)")
    of_task = updates["kind"] == "task"  # the clock does not count others
    _draw(axes[0], updates, updates["update_norm"].where(of_task), "Δ", "#88AACC", 0.8)
    _draw(axes[0], updates, updates["mu"].where(of_task), "μ (moving average of Δ)", style.INK, 1.0)
    axes[0].set_ylim(bottom=0)
    if has_clock:
        _draw_clock(axes[1], updates, table_of(events))
    style.legend(figure, below=True)
    return figure


def _draw(
    axis: Axes, updates: pd.DataFrame, values: Any, name: str, colour: str, width: float
) -> None:
    """A line that breaks between tasks and where a value is NaN; with a dot a value, as some stand
    alone."""
    starts = np.flatnonzero(updates["task"] != updates["task"].shift())
    x, y = np.insert(values.index, starts, 0), np.insert(values.to_numpy(), starts, np.nan)
    if values.notna().any():
        dots: dict[str, Any] = {"marker": "o", "markersize": 1.3, "markeredgewidth": 0}
        axis.plot(x, y, color=colour, linewidth=width, label=name, **dots)


def _draw_clock(axis: Axes, updates: pd.DataFrame, events: pd.DataFrame) -> None:
    """The clock with the events that it called, and ticks at the scheduled days within reach."""
    axis.set_ylabel("clock (days)")
    days = updates["days"].where(updates["days"] > 0)  # no length until the warm-up is over
    _draw(axis, updates, days, "clock since the task began", style.ACCENT, 1.2)
    of_task = updates[updates["kind"] == "task"].reset_index()
    happened = events[events["days"] > 0].merge(of_task[["place", "task", "step"]])
    for kind, marker, colour in KINDS:
        chosen = happened[happened["kind"] == kind]
        if len(chosen):
            dots: dict[str, Any] = {"s": 22, "edgecolor": "white", "linewidth": 0.5, "zorder": 4}
            dots |= {"marker": marker, "color": colour, "clip_on": False}
            axis.scatter(chosen["place"], chosen["days"], label=f"{kind}, at its day", **dots)
    scheduled = updates["next_day"]
    planned = np.unique(scheduled[scheduled.between(1e-9, days.max())])
    # Spaced like 1, 2, 4, 7, 15, 30: equal distances in the logarithm.
    axis.set_ylim(bottom=0.8 * min(planned, default=1) if style.scale(axis, "y") else 0)
    if 0 < len(planned) <= 12:
        axis.set_yticks(planned, [f"{day:g}" for day in planned])


def replay_loss(part: Part) -> Iterator[style.Picture]:
    run = part.example
    if run is not None and any(event["kind"] == "replay" for event in run.events):
        figure = replay_loss_figure(run.steps, run.events, run.title)
        caption = "The loss on memory and the penalty at each replay of one run."
        yield style.Picture("replay-loss", caption, figure)


def replay_loss_figure(steps: Lines, events: Lines, title: str = "") -> Figure:
    """What each replay does to the loss on memory, from the lines of steps.jsonl and events.jsonl.

    Above: the cross-entropy of an event's first batch right before (hollow) and right after the
    event (filled), and of each replay update on its batch. Below: the scaled penalty of these
    updates; only if there is one.
    """
    updates = table_of(steps)
    labels = {"loss": "cross-entropy\non memory (nats)", "penalty": "scaled penalty"}
    if not updates.loc[updates["kind"] != "task", "penalty"].gt(0).any():
        del labels["penalty"]
    figure, axes = run_figure(updates, [2.6, 1.7][: len(labels)], title)
    # The updates of an event have its kind, task and step, which no two events share.
    keys = ["kind", "task", "step"]
    places = updates.reset_index().groupby(keys)["place"].agg(["first", "last"])
    placed = table_of(events).dropna(subset=["loss_before", "loss_after"])
    placed = placed.join(places, on=keys, how="inner")
    dots: dict[str, Any] = {"linestyle": "none", "markersize": 5}
    for kind, marker, colour in KINDS:
        for axis, (field, label) in zip(axes, labels.items(), strict=True):
            axis.set_ylabel(label)
            values = updates.loc[updates["kind"] == kind, field].dropna()
            if len(values):
                pale = {"color": colour, "alpha": 0.6, "marker": ".", **dots}
                axis.plot(values.index, values, label=f"{kind} update", **pale)
        chosen = placed[placed["kind"] == kind]
        if len(chosen):
            first, last = chosen["first"], chosen["last"]
            before, after = chosen["loss_before"], chosen["loss_after"]
            dark = {"color": colour, "marker": marker, "zorder": 4, "clip_on": False, **dots}
            axes[0].plot([first, last], [before, after], color=colour, linewidth=1.0, zorder=3)
            axes[0].plot(first, before, markerfacecolor="white", label=f"before a {kind}", **dark)
            axes[0].plot(last, after, label=f"after a {kind}", **dark)
    for axis in axes:
        if not style.scale(axis, "y"):
            axis.set_ylim(bottom=0)
    style.legend(figure, below=True)
    return figure
