"""The figures of one run: its performance matrix, its timeline, and what replays do to the loss on
memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

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
from forever.report.run import Run
from forever.report.study import Part
from forever.sweeps.sweep import slug
from forever.text import label

Lines = Sequence[Mapping[str, Any]]  # of a journal

# Events on memory, with their markers and colours.
KINDS = (("replay", "o", "#EE7733"), ("consolidation", "D", "#009988"))
_EVENT = ["kind", "task", "step"]  # what the updates of an event share, and no two events
_NUMBERS = ["days", "next_day", "update_norm", "mu", "loss", "penalty", "loss_before",
            "loss_after"]  # fmt: skip
_MEASURED = ["update_norm", "loss", "penalty"]  # which an update that was left out has not
# Light enough for dark numbers everywhere.
_BLUES = ListedColormap(colormaps["Blues"](np.linspace(0, 0.65, 256)))
_FEW = 300  # updates; each of them is a dot of the timeline


def png_of(figure: Literal["matrix", "timeline"], run: Run) -> bytes:
    """Draws a figure of a finished run as a PNG file."""
    if figure == "matrix":
        return style.png(matrix_figure(run.outcome, run.title))
    return style.png(timeline_figure(run.steps, run.events, run.title))


def matrices(part: Part) -> Iterator[style.Picture]:
    """Draws the matrix of the first run of each variant."""
    for row in part.measured:
        run = row.runs[0]
        figure = matrix_figure(run.outcome, run.title)
        yield style.Picture(f"matrix-{slug(row.variant)}", run.title, figure)


def matrix_figure(result: Mapping[str, Any], title: str) -> Figure:
    """The performance matrix of a result.json as a heat map: a row a task, a column a stage, scores
    in percent, the diagonal framed, hatched where nothing was measured.

    Colours always span 0 to 100, so that two figures can be compared.
    """
    scores = np.array(result["matrix"], dtype=float)  # None becomes NaN
    tasks, stages = scores.shape
    longest = max(len(label(task)) for task in result["tasks"])
    width = 1.6 + 0.07 * max(longest, 10) + 0.52 * stages
    figure, (axis,) = style.new_figure(width, [0.3 + 0.36 * tasks])
    axis.grid(visible=False)
    axis.patch.set(hatch="////", edgecolor="#E2E2E2")
    cells: dict[str, Any] = {"vmin": 0, "vmax": 100, "edgecolors": "white", "linewidth": 1}
    image = axis.pcolormesh(np.ma.masked_invalid(scores), cmap=_BLUES, **cells)
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.SMALL}
    for i, j in np.argwhere(np.isfinite(scores)):
        axis.text(j + 0.5, i + 0.5, f"{scores[i, j]:.1f}", **middle)
        if i == j and stages == tasks:
            axis.add_patch(Rectangle((j + 0.04, i + 0.04), 0.92, 0.92, fill=False))
    axis.set(ylim=(tasks, 0), xlabel="after training on", ylabel="score on")
    axis.set_yticks(np.arange(tasks) + 0.5, list(map(label, result["tasks"])))
    names = list(map(label, result["stages"]))
    axis.set_xticks(np.arange(stages) + 0.5, names, ha="right", **style.SLANTED)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    bar = figure.colorbar(image, shrink=0.8, pad=0.03, label="score (%)")
    bar.ax.tick_params(labelsize=style.SMALL)
    op, bwt = number(result["op"], "{:.1f}"), number(result["bwt"], "{:+.1f}")
    figure.suptitle(f"{label(title)}\nOP {op} · BWT {bwt}", fontsize=style.LARGE)
    return figure


def table_of(lines: Lines) -> pd.DataFrame:
    """A row a line of a journal, by its place from 1; NaN where a line has no number."""
    table = pd.DataFrame(lines, columns=[*_EVENT, *_NUMBERS])
    table.index = pd.RangeIndex(1, len(table) + 1, name="place")
    table = table.astype(dict.fromkeys(_NUMBERS, float))
    left_out = np.array([bool(line.get("skipped")) for line in lines], dtype=bool)
    table.loc[left_out, _MEASURED] = np.nan
    return table


def spans(updates: Any, by: list[str]) -> Any:
    """The `first` and the `last` place of the updates that agree in some columns."""
    return updates.reset_index().groupby(by, sort=False)["place"].agg(["first", "last"])


def shade(axis: Axes, places: Any, **options: Any) -> None:
    """Colour an axis from each `first` to each `last` place, from bottom to top."""
    starts, widths = places["first"] - 0.5, places["last"] - places["first"] + 1
    axis.broken_barh(list(zip(starts, widths, strict=True)), (0, 1),
                     transform=axis.get_xaxis_transform(), **options)  # fmt: skip


def run_figure(
    updates: pd.DataFrame, heights: Sequence[float], title: str
) -> tuple[Figure, list[Axes]]:
    """Panels over all updates of a run, every other task on a pale ground, with their names."""
    figure, axes = style.new_figure(11, heights)
    tasks = spans(updates, ["task"])
    for axis in axes:
        shade(axis, tasks.iloc[1::2], **style.GROUND)
    names = axes[0].secondary_xaxis("top")
    names.set_xticks(tasks.mean(axis=1), list(map(label, tasks.index)), ha="left", **style.SLANTED)
    names.tick_params(length=0, labelsize=style.SMALL)
    names.spines[:].set_visible(False)
    axes[-1].set_xlabel("update of the run, replay included")
    axes[-1].set_xlim(0.5, max(len(updates), 1) + 0.5)
    axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    figure.suptitle(label(title), fontsize=style.LARGE)
    return figure, axes


def timelines(part: Part) -> Iterator[style.Picture]:
    """Draws the first run of each variant; of the reference, a run on every order."""
    for row in part.measured:
        runs = {row.runs[0].order: row.runs[0]}
        if row.variant == part.example.variant:
            for run in row.runs:
                runs.setdefault(run.order, run)
        for order, run in runs.items():
            suffix = f"-o{slug(order)}" if len(runs) > 1 else ""
            name = f"timeline-{slug(row.variant)}{suffix}"
            figure = timeline_figure(run.steps, run.events, run.title)
            yield style.Picture(name, run.title, figure)


def timeline_figure(steps: Lines, events: Lines, title: str = "") -> Figure:
    """One run over all its updates, from the lines of steps.jsonl and events.jsonl: how far each
    update moves, when the memory is replayed, and, if it has a clock, what that shows."""
    updates = table_of(steps)
    has_clock = bool(updates["days"].gt(0).any())
    figure, axes = run_figure(updates, [1.6, 2.0][: 1 + has_clock], title)
    for kind, _, colour in KINDS:
        of_kind = spans(updates[updates["kind"] == kind], _EVENT)
        for axis in axes:
            shade(axis, of_kind, color=colour, alpha=0.3, linewidth=0)
    # Above: how far each update of a task moves. The clock does not count others.
    of_task = updates[updates["kind"] == "task"]
    dots: dict[str, Any] = {"markersize": 2, "marker": "." if len(updates) <= _FEW else ""}
    for field, name, colour in (
        ("update_norm", "Δ", "#88AACC"),
        ("mu", "μ (moving average of Δ)", style.INK),
    ):
        axes[0].plot(of_task[field], label=name, color=colour, linewidth=0.8, **dots)
    axes[0].set_ylabel("Δ: distance moved\nby a task update (L2)")
    axes[0].set_ylim(bottom=0)
    if has_clock:
        # Below: the clock, which has no length until the warm-up is over, and the events.
        axis, days = axes[1], updates["days"].where(updates["days"] > 0)
        axis.plot(days, label="clock since the task began", color=style.ACCENT, **dots)
        called = table_of(events).query("days > 0")
        called = called.merge(of_task.reset_index()[["place", "task", "step"]])
        for kind, marker, colour in KINDS:
            chosen = called[called["kind"] == kind]
            mark: dict[str, Any] = {"linestyle": "none", "marker": marker, "clip_on": False}
            mark |= {"label": f"{kind}, at its day", "color": colour, "markersize": 5}
            axis.plot(chosen["place"], chosen["days"], **mark)
        axis.set_ylabel("clock (days)")
        style.scale(axis)  # days are like 1, 2, 4, 7, 15, 30: equal distances in the logarithm
        # Ticks at the scheduled days within reach.
        scheduled = updates["next_day"]
        planned = np.unique(scheduled[scheduled.between(1e-9, days.max())])
        if 0 < len(planned) <= 12:
            axis.set_yticks(planned, [f"{day:g}" for day in planned])
    style.legend(figure, loc="outside lower center", ncols=6)
    return figure


def replay_loss(part: Part) -> Iterator[style.Picture]:
    run = part.example
    if run is not None and any(event["kind"] == "replay" for event in run.events):
        figure = replay_loss_figure(run.steps, run.events, run.title)
        caption = "The loss on memory and the penalty at each replay of one run."
        fields = [*_EVENT, "days", "loss_before", "loss_after"]
        numbers: Any = table_of(run.events).dropna(subset=["loss_before"])[fields]
        yield style.Picture("replay-loss", caption, figure, numbers)


def replay_loss_figure(steps: Lines, events: Lines, title: str = "") -> Figure:
    """What each replay does to the loss on memory, from the lines of steps.jsonl and events.jsonl.

    Above: the cross-entropy of an event's first batch right before (hollow) and right after the
    event (filled), and of each replay update on its batch. Below: the scaled penalty of these
    updates.
    """
    updates = table_of(steps)
    figure, axes = run_figure(updates, [2.6, 1.7], title)
    placed = table_of(events).dropna(subset=["loss_before", "loss_after"])
    placed = placed.join(spans(updates, _EVENT), on=_EVENT, how="inner")
    for kind, marker, colour in KINDS:
        pale: dict[str, Any] = {"color": colour, "alpha": 0.6, "marker": ".", "linestyle": "none"}
        of_kind = updates[updates["kind"] == kind]
        axes[0].plot(of_kind["loss"], label=f"{kind} update", **pale)
        axes[1].plot(of_kind["penalty"], label=f"{kind} update", **pale)
        dark = {**pale, "alpha": 1, "marker": marker, "markersize": 5, "clip_on": False}
        chosen = placed[placed["kind"] == kind]
        first, last = chosen["first"], chosen["last"]
        before, after = chosen["loss_before"], chosen["loss_after"]
        axes[0].plot([first, last], [before, after], color=colour, linewidth=1.0, zorder=3)
        hollow = {**dark, "markerfacecolor": "white", "label": f"before a {kind}"}
        axes[0].plot(first, before, **hollow)
        axes[0].plot(last, after, label=f"after a {kind}", **dark)
    axes[0].set_ylabel("cross-entropy\non memory (nats)")
    axes[1].set_ylabel("scaled penalty")
    for axis in axes:
        style.scale(axis)
    style.legend(figure, loc="outside lower center", ncols=6)
    return figure
