"""How fast the loss on earlier tasks rises while a task is learned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from forever.report.analyses import forgetting_rates
from forever.report.figures.style import (
    BANDS,
    GREY,
    INK,
    SMALL,
    Drawing,
    Look,
    draw_line,
    known,
    label,
    legend,
    looks_of,
    new_figure,
)
from forever.report.study import Part
from forever.sweeps import published as paper

COMPARABLE = 3.0  # factor between two scales up to which they share an axis

Rates = Mapping[str, Sequence[Sequence[float]]]  # by variant, of each task of each run, by phase


def forgetting_rate(part: Part) -> Iterator[Drawing]:
    by_variant = forgetting_rates(part)
    if not by_variant:
        return
    run = next(run for run in part.finished if run.variant in by_variant)
    curves = {variant: list(found.values()) for variant, found in by_variant.items()}
    phase = int(run.settings["method.probe_every"])
    figure = forgetting_rate_figure(
        curves, phase, looks_of(part), paper.FORGETTING_RATE, part.reference
    )
    caption = "Rise of the loss on earlier tasks while a task is learned, nothing replayed."
    yield Drawing("forgetting-rate", caption, figure)


def forgetting_rate_figure(
    rates: Rates,
    phase: int,
    look_of: Mapping[str, Look],
    published: Sequence[float] = (),
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
            A task that ends earlier has fewer; NaN where nothing was measured.
        phase: updates in a phase, counted from the start of the task.
        published: the paper's rates for phases 1, 2, ...
    """
    figure, (axis,) = new_figure(8, [3.8])
    tables = {name: _table(curves) for name, curves in rates.items()}
    tables = {name: table for name, table in tables.items() if np.isfinite(table).any()}
    means: dict[str, np.ndarray] = {}
    lines: list[Line2D] = []
    has_band = False
    for name, table in tables.items():
        look = look_of[name]
        mean = means[name] = _over_curves(table, np.mean)
        x = np.arange(1, len(mean) + 1)
        lines.append(draw_line(axis, x, mean, look, name))
        if len(tables) <= BANDS or name == reference:
            has_band = has_band or len(table) > 1
            spread = _over_curves(table, _deviation)
            band = mean - spread, mean + spread
            axis.fill_between(x, *band, color=look.colour, alpha=0.12, linewidth=0)
    axis.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    label(
        axis, "updates since the task began", "rise of the loss on earlier tasks\n(nats an update)"
    )
    _small_powers(axis)
    _phase_ticks(axis, max([*map(len, means.values()), len(published)], default=1), phase)
    scale = [means[reference]] if reference in means else list(means.values())
    handles: list[Any] = [*lines, *_draw_published(axis, scale, published)]
    if has_band:
        name = "± 1 s.d. over tasks and runs"
        handles.append(Patch(color=INK, alpha=0.12, linewidth=0, label=name))
    legend(figure, handles)
    return figure


def _table(curves: Sequence[Sequence[float]]) -> np.ndarray:
    """Curves as rows of one length, NaN where they have ended: [curves, phases]."""
    table = np.full((len(curves), max(map(len, curves), default=0)), np.nan)
    for row, curve in zip(table, curves, strict=True):
        row[: len(curve)] = curve
    return table


def _over_curves(table: np.ndarray, statistic: Any) -> np.ndarray:
    """A statistic of each phase over the curves that have it."""
    columns = [column[np.isfinite(column)] for column in table.T]
    return np.array([statistic(column) if len(column) else math.nan for column in columns])


def _deviation(values: np.ndarray) -> float:
    """The standard deviation; a single number has none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _small_powers(axis: Axes) -> None:
    """Numbers of several digits as a power of ten above the axis, in the size of the numbers."""
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    axis.yaxis.get_offset_text().set_fontsize(SMALL + 0.5)


def _phase_ticks(axis: Axes, last: int, phase: int) -> None:
    ticks = range(1, last + 1, math.ceil(last / 8))
    axis.set_xticks(ticks, [f"{(place - 1) * phase}–{place * phase}" for place in ticks])
    axis.set_xlim(0.7, last + 0.3)


def _draw_published(
    axis: Axes, means: Sequence[np.ndarray], published: Sequence[float]
) -> list[Line2D]:
    """Hollow markers; on the right axis if the highest of them and of the means differ by more than
    COMPARABLE."""
    if not any(map(known, published)):
        return []
    values = np.array(published, dtype=float)
    ours = max((float(np.nanmax(np.abs(mean))) for mean in means), default=0.0)
    factor = float(np.nanmax(np.abs(values))) / ours if ours else 1.0
    shared = not factor or 1 / COMPARABLE <= factor <= COMPARABLE
    look = Look(GREY, "o", (0, (1.5, 1.2)), 1.0, 4)
    x = np.arange(1, len(values) + 1)
    if shared:
        return [draw_line(axis, x, values, look, "published", hollow=True)]
    low, high = axis.get_ylim()
    room = 0.05 * (high - low)
    scaled = values / factor  # where the published points will be on the left axis
    low = min(low, float(np.nanmin(scaled)) - room)
    high = max(high, float(np.nanmax(scaled)) + room)
    axis.set_ylim(low, high)
    right = axis.twinx()
    right.set_ylim(factor * low, factor * high)
    right.set_ylabel("published rate", color=GREY)
    _small_powers(right)
    right.tick_params(labelsize=SMALL + 0.5, color=GREY, labelcolor=GREY, length=3)
    right.spines[["top", "left", "bottom"]].set_visible(False)
    right.spines["right"].set_color(GREY)
    return [draw_line(right, x, values, look, "published (right axis)", hollow=True)]
