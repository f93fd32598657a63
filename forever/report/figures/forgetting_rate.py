"""How fast the loss on earlier tasks rises while a task is learned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from forever.report.analyses import forgetting_rates
from forever.report.figures.style import (
    BANDS,
    DOTTED,
    GREY,
    SMALL,
    Drawing,
    Look,
    draw_band,
    draw_line,
    legend,
    looks_of,
    new_figure,
)
from forever.report.study import Part
from forever.sweeps import published as paper

COMPARABLE = 3.0  # factor between the highest rates up to which ours and the paper's share an axis

Rates = Mapping[str, Sequence[Sequence[float]]]  # by variant, of each task of each run, by phase


def forgetting_rate(part: Part) -> Iterator[Drawing]:
    by_variant = forgetting_rates(part)
    if not by_variant:
        return
    run = next(run for run in part.finished if run.variant in by_variant)
    rates = {variant: list(curves.values()) for variant, curves in by_variant.items()}
    published = comparable(rates, paper.FORGETTING_RATE)
    caption = "Rise of the loss on earlier tasks while a task is learned, nothing replayed."
    if len(rates) <= BANDS:
        caption += " Bands: one standard deviation over tasks and runs."
    if published:
        caption += " Hollow: the paper's rates."
    else:
        caption += " The paper's rates are of another size: the table of findings has them."
    phase = int(run.settings["method.probe_every"])
    figure = forgetting_rate_figure(rates, phase, looks_of(part), published)
    yield Drawing("forgetting-rate", caption, figure)


def comparable(rates: Rates, published: Sequence[float]) -> Sequence[float]:
    """The published rates if the highest mean of ours is of their size, else none."""
    highest = [pd.DataFrame(curves).mean().abs().max() for curves in rates.values()]
    factor = max(published) / max(highest)
    return published if 1 / COMPARABLE <= factor <= COMPARABLE else ()


def forgetting_rate_figure(
    rates: Rates, phase: int, look_of: Mapping[str, Look], published: Sequence[float] = ()
) -> Figure:
    """How fast the loss on earlier tasks rises in each phase of a task: the mean over tasks and
    runs, and for up to BANDS variants one standard deviation of them.

    Args:
        rates: by variant, for each task of each run, the rise in nats an update in phases 1, 2, ...
            A task that ends earlier has fewer; NaN where nothing was measured.
        phase: updates in a phase, counted from the start of the task.
        published: the paper's rates for phases 1, 2, ..., drawn hollow.
    """
    figure, (axis,) = new_figure(8, [2.5])
    last = max(1, len(published))
    for name, curves in rates.items():
        table = pd.DataFrame(curves, dtype=float)  # a row a curve, a column a phase
        mean, spread = table.mean(), table.std()
        if mean.notna().any():
            x = mean.index + 1
            last = max(last, len(x))
            draw_line(axis, x, mean, look_of[name], name)
            if len(rates) <= BANDS:
                draw_band(axis, x, mean - spread, mean + spread, look_of[name])
    if published:
        look = Look(GREY, "o", DOTTED, 1.0, zorder=4, hollow=True)
        draw_line(axis, range(1, len(published) + 1), published, look, "published")
    axis.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    axis.set(xlabel="updates since the task began", xlim=(0.7, last + 0.3))
    axis.set(ylabel="rise of the loss on earlier tasks\n(nats an update)")
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    axis.yaxis.get_offset_text().set_fontsize(SMALL + 0.5)
    ticks = range(1, last + 1, math.ceil(last / 8))
    axis.set_xticks(ticks, [f"{(place - 1) * phase}–{place * phase}" for place in ticks])
    legend(figure)
    return figure
