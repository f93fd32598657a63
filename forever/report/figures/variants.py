"""Figures of variants side by side: each is a function of a part of a study, and draws nothing
where there is nothing to show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forever.report.analyses import (
    correlation,
    day_pairs,
    dose_lines,
    dose_of,
    forgetting_rates,
    line_of,
    minutes_an_epoch,
    pearson,
)
from forever.report.figures import style
from forever.report.figures.style import Picture
from forever.report.format import estimated, listed, minus
from forever.report.format import setting as written
from forever.report.row import Row
from forever.report.study import Part
from forever.stats.bootstrap import Estimate
from forever.text import label

NAMED = 16  # points of OP against time; of more, as of a search, the legend is too long
BANDS = 4  # variants; more bands hide each other
TOGETHER = 8  # variants in the figure of what is kept
_TAU = r"$\tau_\mathrm{day}$"


def scored(rows: Sequence[Row], *fields: str) -> pd.DataFrame:
    """Tabulates estimates of variants with their intervals, a row a variant."""
    lines: list[dict[str, Any]] = []
    for row in rows:
        line: dict[str, Any] = {"variant": row.variant}
        for field in fields:
            estimate, name = row.compared(field), field.upper()
            if estimate is not None:
                line |= {name: estimate.value, f"{name} low": estimate.low}
                line |= {f"{name} high": estimate.high}
        lines.append(line)
    return pd.DataFrame(lines)


def intervals(part: Part) -> Iterator[Picture]:
    """Draws OP and its interval a variant, as dots and whiskers; a line marks the reference."""
    rows, looks = part.measured, style.looks_of(part)
    if len(rows) == 1:
        return
    figure, (axis,) = style.new_figure(7.5, [0.3 * len(rows)])
    for y, row in enumerate(rows):
        op, look = row.compared("op"), looks[row.variant]
        axis.hlines(y, op.low, op.high, color=look["color"], linewidth=2.2, alpha=0.35)
        axis.plot(op.value, y, **look)
        beside: Any = {"transform": axis.get_yaxis_transform(), "va": "center"}
        axis.text(1.02, y, estimated(op, "{:.1f}"), fontsize=style.SMALL, **beside)
        if row.variant == part.reference:
            axis.axvline(op.value, **style.MARK)
    axis.set_yticks(range(len(rows)), [label(row.variant) for row in rows])
    axis.set(xlabel="OP (%) with 95 % interval", ylim=(len(rows) - 0.4, -0.6))
    yield Picture("op", "Overall performance (OP) of each variant.", figure, scored(rows, "op"))


def accuracy(part: Part) -> Iterator[Picture]:
    """Draws the mean score on the tasks seen so far over stages, a line a variant, for up to BANDS
    with a band from the lowest to the highest run. Joint training is a point at the end."""
    if all(row.results[0]["method"] == "mtl" for row in part.measured):
        return
    figure, (axis,) = style.new_figure(9, [2.7])
    looks = style.looks_of(part)
    has_bands = len(part.measured) <= BANDS and part.most_runs > 1
    orders = {tuple(result["tasks"]) for row in part.measured for result in row.results}
    last = max(map(len, orders))
    lines: dict[str, pd.Series] = {}
    for row in part.measured:
        curves, look = np.array(list(map(seen, row.results))), looks[row.variant]
        stages = np.arange(last - curves.shape[1], last) + 1
        axis.plot(stages, curves.mean(axis=0), **look)
        lines[row.variant] = pd.Series(curves.mean(axis=0), stages)
        if has_bands:
            style.draw_band(axis, stages, curves.min(axis=0), curves.max(axis=0), look)
    axis.set(xlabel="tasks learned", ylabel="mean score on tasks seen so far (%)")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(orders) == 1:
        tasks = list(map(label, orders.pop()))
        axis.set_xticks(range(1, last + 1), tasks, ha="right", **style.SLANTED)
    style.legend(figure)
    caption = "Mean score on the tasks learned so far, after each task; mean over runs."
    if has_bands:
        caption += " Bands: lowest to highest run."
    numbers = pd.DataFrame(lines, range(1, last + 1)).T.rename_axis("variant").reset_index()
    yield Picture("accuracy", caption, figure, numbers)


def seen(result: Mapping[str, Any]) -> list[float]:
    """Averages, after each stage, the scores in percent on the tasks learned by then."""
    matrix = np.array(result["matrix"], dtype=float)
    tasks, stages = matrix.shape
    if stages != tasks:  # joint training
        return [result["op"]]
    learned = np.triu(np.nan_to_num(matrix))
    return (learned.sum(axis=0) / np.arange(1, tasks + 1)).tolist()


def pareto(part: Part) -> Iterator[Picture]:
    """Draws OP against seconds, with the front: the points that none beats in both."""
    rows, looks = [row for row in part.measured if not row.bound], style.looks_of(part)
    if len(rows) < 3:
        return
    figure, (axis,) = style.new_figure(6.6, [2.9])
    axis.set(xlabel="seconds a run, training and evaluation", ylabel="OP (%)")
    points: list[tuple[float, float]] = []
    for row in rows:
        seconds, op = fmean(run.seconds for run in row.runs), row.compared("op")
        style.draw_estimates(axis, [seconds], [op], looks[row.variant])
        points.append((seconds, op.value))
    # The front ends at the right edge: what lies below and right of the steps is beaten.
    best = front(points)
    right = axis.get_xlim()[1]
    axis.set_xlim(right=right)
    x, y = zip(*best, (right, best[-1][1]), strict=True)
    axis.step(x, y, where="post", color=style.INK, linewidth=1.0, zorder=1, label="front")
    if len(rows) <= NAMED:
        style.legend(figure)
    numbers = scored(rows, "op")
    numbers.insert(1, "seconds", [seconds for seconds, _ in points])
    caption = "OP against time. The line joins what nothing beats in both."
    yield Picture("pareto", caption, figure, numbers)


def front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Finds the (seconds, score) that no other point beats in one without losing in the other, by
    rising time."""
    best: list[tuple[float, float]] = []
    for seconds, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or score > best[-1][1]:
            best.append((seconds, score))
    return best


def retention(part: Part) -> Iterator[Picture]:
    """Draws the final score on each task as a share of joint training's, a dot a variant."""
    joint = [row for row in part.measured if row.bound and row.results[0]["method"] == "mtl"]
    if not joint:
        return
    best = final_scores(joint[0])
    drawn = [row for row in part.measured if not row.idle and row is not joint[0]]
    shares = {row.variant: final_scores(row) / best[best > 0] for row in drawn}
    kept = pd.DataFrame(shares, index=best.index)
    caption = "Final score on each task as a share of joint training's (dashed: 1); mean over runs."
    if len(shares) > TOGETHER:
        rank = kept.mean().drop(part.reference, errors="ignore").sort_values(ascending=False)
        kept = kept.drop(columns=rank.index[TOGETHER - 1 :])
        caption += f" The {kept.shape[1]} that keep most, with the reference."
    if idle := [row.variant for row in part.measured if row.idle]:
        caption += f" Not drawn, because they end as fine-tuning does: {listed(idle)}."
    figure, (axis,) = style.new_figure(7.5, [0.25 * len(kept)])
    looks, places = style.looks_of(part), np.arange(len(kept))
    for name, share in kept.items():
        axis.plot(share, places, **{**looks[str(name)], "linestyle": "none"})
    axis.axvline(1.0, **style.MARK)
    axis.set_yticks(places, list(map(label, kept.index)))
    axis.set(xlabel="share of joint training's score", ylim=(len(kept) - 0.4, -0.6))
    axis.set_xlim(left=0)
    style.legend(figure)
    yield Picture("retention", caption, figure, kept.T.rename_axis("variant").reset_index())


def final_scores(row: Row) -> pd.Series:
    """Averages the score on each task at the end over the runs of a variant."""
    scores: list[pd.Series] = []
    for result in row.results:
        matrix = np.array(result["matrix"], dtype=float)
        scores.append(pd.Series(matrix[:, -1], result["tasks"]))
    return pd.concat(scores, axis=1).mean(axis=1)


# ---- a line over one setting: backbones, spacing, doses, sensitivity, training time


def sensitivity(part: Part) -> Iterator[Picture]:
    """Draws OP and BWT over the values of a key that the sweep's file names."""
    for axis in part.file.figures if part.file else ():
        if axis.key and axis.label:
            values: dict[str, Any] = {}
            for row in part.measured:
                settings = row.runs[0].settings
                if axis.key in settings:
                    values[row.variant] = settings[axis.key]
            if all(type(value) in (int, float) for value in values.values()):
                values = {variant: axis.unit * value for variant, value in values.items()}
            yield from _over(part, "sensitivity", axis.label, values)


def spacing(part: Part) -> Iterator[Picture]:
    names = {row.variant: row.variant for row in part.measured}
    yield from _over(part, "sensitivity", "spacing of replays", names)


def backbones(part: Part) -> Iterator[Picture]:
    names = {row.variant: row.runs[0].backbone for row in part.measured}
    yield from _over(part, "backbones", "backbone", names)


def doses(part: Part) -> Iterator[Picture]:
    """Draws OP and BWT over the dose, a line for what differs in nothing else."""
    lines = dose_lines(part)
    values = {row.variant: dose_of(row) for rows in lines.values() for row in rows}
    names = {row.variant: name for name, rows in lines.items() for row in rows}
    yield from _over(part, "doses", "examples that a task replays", values, names)


def _over(
    part: Part, name: str, about: str, values: Mapping[str, Any], lines: Mapping[str, str] = {}
) -> Iterator[Picture]:
    """Draws OP above BWT over a setting: `values` and `lines` are by variant. The reference's value
    has a pale ground.

    Args:
        lines: those of doses, over a logarithmic axis; none: each method has a line.
    """
    shown = [row for row in part.measured if row.variant in values]
    if not shown:
        return
    panels = {"OP (%)": "op", "BWT (points)": "bwt"}
    points: dict[str, list[tuple[Any, list[Estimate | None]]]] = {}
    for row in shown:
        line = lines.get(row.variant) or row.results[0]["method"]
        estimates = [row.compared(field) for field in panels.values()]
        points.setdefault(line, []).append((values[row.variant], estimates))
    strong = line_of(part.reference, dose_lines(part)) if lines else "forever"
    marked = values.get(part.reference or "")
    figure = lines_over(points, [*panels], about, strong, marked, logarithmic=bool(lines))
    caption = f"OP and BWT against {about}, with 95 % intervals; the reference's on a pale ground."
    numbers = scored(shown, "op", "bwt")
    numbers.insert(1, about, [values[row.variant] for row in shown])
    yield Picture(name, caption, figure, numbers)


def training_time(part: Part) -> Iterator[Picture]:
    minutes = pd.DataFrame(minutes_an_epoch(part)).rename_axis("method")
    points: dict[str, list[tuple[Any, list[Estimate | None]]]] = {}
    for method, by_backbone in minutes.iterrows():
        points[str(method)] = [
            (backbone, [Estimate(value, value, value, 1)])
            for backbone, value in by_backbone.dropna().items()
        ]
    figure = lines_over(points, ["minutes an epoch"], "backbone", "forever")
    figure.axes[0].set_ylim(bottom=0)  # so that heights have the ratio of times
    caption = "Minutes of training an epoch and task, replay and merges included."
    yield Picture("training-time", caption, figure, minutes.reset_index())


def lines_over(
    lines: Mapping[str, Sequence[tuple[Any, Sequence[Estimate | None]]]],
    panels: Sequence[str],
    about: str,
    strong: str | None,
    marked: Any = None,
    logarithmic: bool = False,
) -> Figure:
    """Draws lines of estimates over the values of a setting, a panel a measure.

    Numbers are joined and ordered by size, names in the order in which they come. They are equally
    spaced, or `logarithmic`: the two that are closest have a distance of 1.

    Args:
        lines: for each line its points: a value, and an estimate for each panel.
        strong: the line that is drawn bold; `marked` is a value with a pale ground.
    """
    values = list(dict.fromkeys(value for points in lines.values() for value, _ in points))
    are_numbers = all(type(value) in (int, float) for value in values)
    if are_numbers:
        values.sort()
    places = dict(zip(values, np.arange(len(values), dtype=float), strict=True))
    if logarithmic:
        logs = np.log(values)
        places = dict(zip(values, (logs - logs[0]) / np.diff(logs).min(), strict=True))
    figure, axes = style.new_figure(7.2, [2.4] * len(panels))
    looks = style.looks(lines, strong)
    for number, (name, points) in enumerate(lines.items()):
        # Lines stand beside each other at each value.
        shift = (number - (len(lines) - 1) / 2) * min(0.1, 0.7 / len(lines))
        look = looks[name] if are_numbers else {**looks[name], "linestyle": "none"}
        ordered = sorted(points, key=lambda point: places[point[0]])
        x = [places[value] + shift for value, _ in ordered]
        for panel, axis in enumerate(axes):
            style.draw_estimates(axis, x, [estimates[panel] for _, estimates in ordered], look)
    for axis, title in zip(axes, panels, strict=True):
        axis.set_ylabel(title)
        if marked in places:
            axis.axvspan(places[marked] - 0.4, places[marked] + 0.4, **style.GROUND)
    axes[-1].set(xlabel=label(about), xlim=(-0.5, places[values[-1]] + 0.5))
    axes[-1].set_xticks([*places.values()], [label(written(value)) for value in values])
    style.legend(figure)
    return figure


# ---- the paper's findings


def forgetting_rate(part: Part) -> Iterator[Picture]:
    """Draws how fast the loss on earlier tasks rises in each phase of a task: the mean over tasks
    and runs, and one standard deviation of them."""
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
    caption = "Rise of the loss on earlier tasks while a task is learned without replay."
    caption += " Bands: one standard deviation over tasks and runs."
    numbers = pd.DataFrame(means).T.set_axis(names, axis=1).rename_axis("variant").reset_index()
    yield Picture("forgetting-rate", caption, figure, numbers)


def model_day(part: Part) -> Iterator[Picture]:
    """Draws what the length of a task's model day correlates with: a panel for each of `day_pairs`,
    in it a point a task, and in the title Pearson's r of these points with its two-sided p."""
    pairs = day_pairs(part)
    if not pairs:
        return
    labels = {
        "day": f"{_TAU}, mean over orders",
        "BWT": "BWT of the task (points)",
        "joint": "joint training's score (%)",
    }
    figure = Figure(figsize=(3.5 * len(pairs), 3.7), layout="constrained")
    points: list[tuple[Any, ...]] = []
    axes = figure.subplots(1, len(pairs), squeeze=False)[0]
    for axis, (panel, table) in zip(axes, pairs.items(), strict=True):
        style.tidy(axis)
        x, y = table.columns
        axis.plot(table[x], table[y], "o", color=style.ACCENT)
        titles = [labels.get(column, f"{_TAU}, order {label(column)}") for column in (x, y)]
        axis.set(xlabel=titles[0], ylabel=titles[1])
        test = pearson(table)
        title = correlation(*test) if test else "r not defined"
        axis.set_title(minus(f"{title}, n = {len(table)}"), fontsize=style.SMALL)
        points += [(panel, task, x, left, y, right) for task, left, right in table.itertuples()]
    numbers = pd.DataFrame(points, columns=["panel", "task", "x", "value of x", "y", "value of y"])
    caption = "The length of a task's model day beside what it could depend on."
    yield Picture("model-day", caption, figure, numbers)
