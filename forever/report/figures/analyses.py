"""What a report finds beyond scores: how fast a task's learning makes others be forgotten, and what
the length of its model day goes with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forever.report.analyses import Pairs, day_orders, day_pairs, forgetting_rates, pearson
from forever.report.figures import style
from forever.report.format import minus
from forever.report.study import Part
from forever.sweeps import published as paper

_TAU = r"$\tau_\mathrm{day}$"
COMPARABLE = 3.0  # factor between the highest rates up to which ours and the paper's share an axis

Rates = Mapping[str, Sequence[Sequence[float]]]  # by variant, of each task of each run, by phase


def forgetting_rate(part: Part) -> Iterator[style.Picture]:
    by_variant = forgetting_rates(part)
    if not by_variant:
        return
    run = next(run for run in part.finished if run.variant in by_variant)
    rates = {variant: list(curves.values()) for variant, curves in by_variant.items()}
    published = comparable(rates, paper.FORGETTING_RATE)
    caption = "Rise of the loss on earlier tasks while a task is learned, nothing replayed."
    if len(rates) <= style.BANDS:
        caption += " Bands: one standard deviation over tasks and runs."
    if published:
        caption += " Hollow: the paper's rates."
    else:
        caption += " The paper's rates are of another size and stand in the table of findings."
    phase = int(run.settings["method.probe_every"])
    figure = forgetting_rate_figure(rates, phase, style.looks_of(part), published)
    yield style.Picture("forgetting-rate", caption, figure)


def by_phase(curves: Sequence[Sequence[float]]) -> pd.DataFrame:
    """A row a phase, a column a curve; NaN where a curve has ended."""
    return pd.DataFrame([*zip_longest(*curves, fillvalue=math.nan)], dtype=float)


def comparable(rates: Rates, published: Sequence[float]) -> Sequence[float]:
    """The published rates if the highest of our means is of their size, else none."""
    ours = max(by_phase(curves).mean(axis=1).max() for curves in rates.values())
    theirs = max(published)
    return published if ours / COMPARABLE <= theirs <= COMPARABLE * ours else ()


def forgetting_rate_figure(
    rates: Rates, phase: int, look_of: style.Looks, published: Sequence[float] = ()
) -> Figure:
    """How fast the loss on earlier tasks rises in each phase of a task: the mean over tasks and
    runs, and for up to BANDS variants one standard deviation of them.

    Args:
        rates: by variant, for each task of each run, the rise in nats an update in phases 1, 2, ...
            A task that ends earlier has fewer; NaN where nothing was measured.
        phase: updates in a phase, counted from the start of the task.
        published: the paper's rates for phases 1, 2, ..., drawn hollow.
    """
    figure, (axis,) = style.new_figure(8, [2.5])
    last = max(1, len(published))
    for name, curves in rates.items():
        table = by_phase(curves)
        mean, spread = table.mean(axis=1), table.std(axis=1)
        if mean.notna().any():
            x = mean.index + 1
            last = max(last, len(x))
            style.draw_line(axis, x, mean, look_of[name], name)
            if len(rates) <= style.BANDS:
                ends = mean - spread, mean + spread
                axis.fill_between(x, ends[0], ends[1], color=look_of[name].colour, **style.BAND)
    if published:
        look = style.Look(style.GREY, "o", style.DOTTED, 1.0, zorder=4, hollow=True)
        style.draw_line(axis, range(1, len(published) + 1), published, look, "published")
    axis.axhline(0, color=style.GREY, linewidth=0.8, zorder=1)
    axis.set(xlabel="updates since the task began", xlim=(0.7, last + 0.3))
    axis.set(ylabel="rise of the loss on earlier tasks\n(nats an update)")
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    axis.yaxis.get_offset_text().set_fontsize(style.SMALL + 0.5)
    ticks = range(1, last + 1)
    axis.set_xticks(ticks, [f"{(place - 1) * phase}–{place * phase}" for place in ticks])
    style.legend(figure)
    return figure


def model_day(part: Part) -> Iterator[style.Picture]:
    pairs = {name: points for name, points in day_pairs(part).items() if points}
    if pairs:
        figure = model_day_figure(pairs, day_orders(part))
        caption = "The length of a task's model day beside what it could go with."
        yield style.Picture("model-day", caption, figure)


def model_day_figure(pairs: Mapping[str, Pairs], orders: Sequence[str]) -> Figure:
    """What the length of a task's model day goes with: a panel for each of `pairs`, in it a point a
    task, and in the title Pearson's r of these points with its two-sided p.

    Args:
        pairs: tau_day (L2 distance) and the other number by task, for "other order", "BWT" (points;
            both means over orders) and "joint training" (%).
        orders: the names of the orders.
    """
    tau = f"{_TAU}, mean over orders" if len(orders) > 1 else _TAU
    labels = {
        "other order": tuple(f"{_TAU}, order {order}" for order in orders[:2]),
        "BWT": (tau, "BWT of the task (points)"),
        "joint training": (tau, "joint training's score (%)"),
    }
    figure = Figure(figsize=(3.5 * len(pairs), 3.7), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, len(pairs), squeeze=False)[0])
    for axis, (name, points) in zip(axes, pairs.items(), strict=True):
        style.tidy(axis, "both")
        axis.margins(0.1, 0.1)
        x, y = zip(*points.values(), strict=True)
        axis.plot(x, y, marker="o", markersize=5.5, linestyle="none", color=style.ACCENT)
        axis.set(xlabel=labels[name][0], ylabel=labels[name][1])
        axis.set_title(correlation(list(points.values())), fontsize=style.SMALL + 0.5)
        if name == "other order":
            axis.set(xlim=axis.get_xlim(), ylim=axis.get_ylim())
            axis.axline((x[0], x[0]), slope=1, **style.MARK)  # where both days are equally long
            for task, place in points.items():
                beside: dict[str, Any] = {"xytext": (4, 3), "textcoords": "offset points"}
                axis.annotate(task, place, fontsize=style.SMALL, **beside)
    return figure


def correlation(points: Sequence[tuple[float, float]]) -> str:
    """Pearson's r with its p and the number of pairs."""
    test = pearson(points)
    if test is None:  # fewer than three or constants
        return f"r not defined (n = {len(points)})"
    r, p = test
    probability = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return minus(f"r = {r:.2f}, {probability}, n = {len(points)}")
