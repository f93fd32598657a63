"""What a report finds beyond scores: how fast a task's learning makes others be forgotten, and what
the length of its model day goes with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from forever.report.analyses import correlation, day_pairs, forgetting_rates, pearson
from forever.report.figures import style
from forever.report.format import minus
from forever.report.study import Part
from forever.text import label

_TAU = r"$\tau_\mathrm{day}$"
_LABELS = {
    "day": f"{_TAU}, mean over orders",
    "BWT": "BWT of the task (points)",
    "joint": "joint training's score (%)",
}


def forgetting_rate(part: Part) -> Iterator[style.Picture]:
    """How fast the loss on earlier tasks rises in each phase of a task: the mean over tasks and
    runs, and one standard deviation of them."""
    rates, looks = forgetting_rates(part), style.looks_of(part)
    if not rates:
        return
    figure, (axis,) = style.new_figure(8, [2.5])
    means: dict[str, Any] = {}
    for name, table in rates.items():
        mean, spread = table.mean(), table.std()
        means[name] = mean
        axis.plot(mean.index, mean, **looks[name])
        style.draw_band(axis, mean.index, mean - spread, mean + spread, looks[name])
    axis.axhline(0, **style.MARK)
    run = next(run for run in part.finished if run.variant in rates)
    updates = int(run.settings["method.probe_every"])
    phases = pd.concat(rates.values()).columns
    names = [f"{phase * updates}–{(phase + 1) * updates}" for phase in phases]
    axis.set_xticks(phases, names)
    axis.set_xlabel("updates since the task began")
    axis.set_ylabel("rise of the loss on earlier tasks\n(nats an update)")
    style.legend(figure)
    caption = "Rise of the loss on earlier tasks while a task is learned, nothing replayed."
    caption += " Bands: one standard deviation over tasks and runs."
    numbers = pd.DataFrame(means).T.set_axis(names, axis=1).rename_axis("variant").reset_index()
    yield style.picture("forgetting-rate", caption, figure, numbers)


def model_day(part: Part) -> Iterator[style.Picture]:
    """What the length of a task's model day goes with: a panel for each of `day_pairs`, in it a
    point a task, and in the title Pearson's r of these points with its two-sided p."""
    pairs = day_pairs(part)
    if not pairs:
        return
    figure = Figure(figsize=(3.5 * len(pairs), 3.7), layout="constrained")
    axes = figure.subplots(1, len(pairs), squeeze=False)[0]
    for axis, table in zip(axes, pairs.values(), strict=True):
        style.tidy(axis)
        axis.plot(table.iloc[:, 0], table.iloc[:, 1], "o", color=style.ACCENT)
        labels = [_LABELS.get(column, f"{_TAU}, order {label(column)}") for column in table.columns]
        axis.set(xlabel=labels[0], ylabel=labels[1])
        test = pearson(table)
        found = correlation(*test) if test else "r not defined"
        axis.set_title(minus(f"{found}, n = {len(table)}"), fontsize=style.SMALL)
    caption = "The length of a task's model day beside what it could go with."
    points: list[tuple[Any, ...]] = []
    for panel, table in pairs.items():
        x, y = table.columns
        points += [(panel, task, x, left, y, right) for task, left, right in table.itertuples()]
    numbers = pd.DataFrame(points, columns=["panel", "task", "x", "value of x", "y", "value of y"])
    yield style.picture("model-day", caption, figure, numbers)
