"""Figures of variants side by side: each is a function of a part of a study, and draws nothing
where there is nothing to show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from forever.report.analyses import (
    PHASES,
    Whose,
    correlation,
    day_pairs,
    dose_lines,
    dose_of,
    forgetting,
    forgetting_rates,
    line_of,
    minutes_an_epoch,
    pearson,
    probes_of,
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
DRAWN: dict[Whose, str] = {"previous": "the task before", "older": "older tasks"}  # whose loss
TOGETHER = 8  # variants in the figure of what is kept
Point = tuple[Any, Sequence[Estimate | None]]  # a value, and what was measured there in each panel
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
    rows, styles = part.measured, style.variant_styles(part)
    if len(rows) == 1:
        return
    figure, (axis,) = style.new_figure(7.5, [0.3 * len(rows)])
    for y, row in enumerate(rows):
        op, own = row.compared("op"), styles[row.variant]
        axis.hlines(y, op.low, op.high, color=own["color"], linewidth=2.2, alpha=0.35)
        axis.plot(op.value, y, **own)
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
    has_bands = len(part.measured) <= BANDS and part.most_runs > 1
    orders = {tuple(result["tasks"]) for row in part.measured for result in row.results}
    last = max(map(len, orders))
    lines: dict[str, list[Point]] = {}
    numbers: dict[str, pd.Series] = {}
    for row in part.measured:
        curves = np.array(list(map(seen, row.results)))
        mean = curves.mean(axis=0)
        low, high = (curves.min(axis=0), curves.max(axis=0)) if has_bands else (mean, mean)
        stages = range(last - len(mean) + 1, last + 1)
        numbers[row.variant] = pd.Series(mean, stages)
        estimates = map(Estimate, mean, low, high, [len(curves)] * len(mean))
        lines[row.variant] = [
            (stage, [each]) for stage, each in zip(stages, estimates, strict=True)
        ]
    panels, styles = ["mean score on\ntasks seen so far (%)"], style.variant_styles(part)
    figure = draw_lines(lines, panels, "tasks learned", styles, bands=True)
    if len(orders) == 1:
        tasks = list(map(label, orders.pop()))
        figure.axes[0].set_xticks(range(last), tasks, ha="right", **style.SLANTED)
    caption = "Mean score on the tasks learned so far, after each task; mean over runs."
    if has_bands:
        caption += " Bands: lowest to highest run."
    table = pd.DataFrame(numbers, range(1, last + 1)).T.rename_axis("variant").reset_index()
    yield Picture("accuracy", caption, figure, table)


def seen(result: Mapping[str, Any]) -> list[float]:
    """Averages, after each stage, the scores in percent on the tasks learned by then; NaN where
    none was scored."""
    matrix = np.array(result["matrix"], dtype=float)
    tasks, stages = matrix.shape
    if stages != tasks:  # joint training
        return [result["op"]]
    learned, scored = np.triu(np.nan_to_num(matrix)), np.triu(~np.isnan(matrix)).sum(axis=0)
    return np.where(scored, learned.sum(axis=0) / np.maximum(scored, 1), np.nan).tolist()


def pareto(part: Part) -> Iterator[Picture]:
    """Draws OP against seconds, with the front: the points that none beats in both."""
    rows = [row for row in part.measured if not row.bound]
    if len(rows) < 3:
        return
    styles = style.variant_styles(part)
    figure, (axis,) = style.new_figure(6.6, [2.9])
    axis.set(xlabel="seconds a run, training and evaluation", ylabel="OP (%)")
    points: list[tuple[float, float]] = []
    for row in rows:
        seconds, op = fmean(run.seconds for run in row.runs), row.compared("op")
        style.draw_estimates(axis, [seconds], [op], styles[row.variant])
        points.append((seconds, op.value))
    # The front ends at the right edge: what lies below and right of the steps is beaten.
    best = front(points)
    right = 1.05 * max(seconds for seconds, _ in points)
    axis.set_xlim(0, right)  # from 0, or equal costs would look different
    x, y = zip(*best, (right, best[-1][1]), strict=True)
    axis.step(x, y, where="post", color=style.INK, linewidth=1.0, zorder=1, label="front")
    if len(rows) <= NAMED:
        style.legend(figure)
    numbers = scored(rows, "op")
    numbers.insert(1, "seconds", [seconds for seconds, _ in points])
    caption = "OP against time, without the bounds. The line joins what nothing beats in both."
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
    styles, places = style.variant_styles(part), np.arange(len(kept))
    for name, share in kept.items():
        axis.plot(share, places, **{**styles[str(name)], "linestyle": "none"})
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


# ---- lines over one setting, or over the stages and phases of a run


def over_keys(part: Part) -> Iterator[Picture]:
    """Draws OP and BWT over the values of each key that the sweep's file names."""
    for axis in part.file.figures if part.file else ():
        if axis.key and axis.label:
            values: dict[str, Any] = {}
            for row in part.measured:
                settings = row.runs[0].settings
                if axis.key in settings:
                    values[row.variant] = settings[axis.key]
            if all(type(value) in (int, float) for value in values.values()):
                values = {variant: axis.unit * value for variant, value in values.items()}
            yield from over(part, "sensitivity", axis.label, values)


def over_spacing(part: Part) -> Iterator[Picture]:
    names = {row.variant: row.variant for row in part.measured}
    yield from over(part, "sensitivity", "spacing of replays", names)


def over_backbones(part: Part) -> Iterator[Picture]:
    names = {row.variant: row.runs[0].backbone for row in part.measured}
    yield from over(part, "backbones", "backbone", names)


def over_doses(part: Part) -> Iterator[Picture]:
    """Draws OP and BWT over the dose, a line for what differs in nothing else."""
    lines = dose_lines(part)
    values = {row.variant: dose_of(row) for rows in lines.values() for row in rows}
    names = {row.variant: name for name, rows in lines.items() for row in rows}
    strong = line_of(part.reference, lines)
    yield from over(part, "doses", "examples that a task replays", values, names, strong)


def over(
    part: Part,
    name: str,
    about: str,
    values: Mapping[str, Any],
    names: Mapping[str, str] = {},
    strong: str | None = "forever",
) -> Iterator[Picture]:
    """Draws OP above BWT over a setting, of which `values` has a value a variant. The reference's
    value has a pale ground.

    Args:
        names: the line of each variant, over a logarithmic axis; none: each method has a line.
        strong: the line that is drawn bold.
    """
    shown = [row for row in part.measured if row.variant in values]
    if not shown:
        return
    lines: dict[str, list[Point]] = {}
    for row in shown:
        line = names.get(row.variant) or row.results[0]["method"]
        scores = [row.compared("op"), row.compared("bwt")]
        lines.setdefault(line, []).append((values[row.variant], scores))
    styles, marked = style.line_styles(lines, strong), values.get(part.reference or "")
    panels = ["OP (%)", "BWT (points)"]
    figure = draw_lines(lines, panels, about, styles, marked, logarithmic=bool(names))
    caption = f"OP and BWT against {about}, with 95 % intervals; the reference's on a pale ground."
    numbers = scored(shown, "op", "bwt")
    numbers.insert(1, about, [values[row.variant] for row in shown])
    yield Picture(name, caption, figure, numbers)


def training_time(part: Part) -> Iterator[Picture]:
    minutes = pd.DataFrame(minutes_an_epoch(part)).rename_axis("method")
    lines: dict[str, list[Point]] = {}
    for method, by_backbone in minutes.iterrows():
        known = by_backbone.dropna().items()
        lines[str(method)] = [(name, [Estimate(value, value, value, 1)]) for name, value in known]
    styles = style.line_styles(lines, "forever")
    figure = draw_lines(lines, ["minutes an epoch"], "backbone", styles)
    figure.axes[0].set_ylim(bottom=0)  # so that heights have the ratio of times
    caption = "Minutes of training an epoch and task, replay and merges included."
    yield Picture("training-time", caption, figure, minutes.reset_index())


def forgetting_rate(part: Part) -> Iterator[Picture]:
    """Draws how fast the losses on the task learned just before and on older tasks rise in each
    fifth of a task: the mean over tasks and runs, and one standard deviation of them. Marked are
    the onset of forgetting with its interval, and FOREVER's days on the step clock."""
    found = forgetting(part)
    if not found:
        return
    figure, (axis,) = style.new_figure(7.2, [2.9])
    records: list[dict[str, Any]] = []
    styles = style.line_styles(f"{name}, {whose}" for name in found for whose in DRAWN.values())
    for whose, about in DRAWN.items():
        for variant, table in forgetting_rates(part, whose, fifths=True).items():
            last = _last_probe(part, variant)
            middles = [(fifth + 0.5) * last / PHASES for fifth in table.columns]
            estimates: list[Estimate | None] = []
            for mean, spread in zip(table.mean(), table.std(), strict=True):
                estimates.append(Estimate(mean, mean - spread, mean + spread, len(table)))
            name = f"{variant}, {about}"
            style.draw_estimates(axis, middles, estimates, styles[name], band=True)
            rates = {f"fifth {fifth + 1}": rate for fifth, rate in enumerate(table.mean())}
            records.append({"variant": variant, "loss of": about, **rates})
    for variant, known in found.items():
        if start := known.get("onset"):
            axis.axvspan(start.low, start.high, **style.GROUND)
            axis.axvline(start.value, **style.MARK, label=f"{label(variant)}, onset")
            above = axis.secondary_xaxis("top")
            days = known["days"]["steps"].items()
            shown = {day: at for day, at in days if at <= _last_probe(part, variant)}
            above.set_xticks([*shown.values()], [*shown])
            above.tick_params(labelsize=style.SMALL)
            above.set_xlabel("days of S updates", fontsize=style.SMALL)
    axis.axhline(0, **style.MARK)
    axis.set_xlim(left=0)
    axis.set(xlabel="updates since the task began", ylabel="rise of the loss\n(nats an update)")
    style.legend(figure)
    caption = (
        "Rise of the loss on earlier tasks in each fifth of a task that is learned without replay. "
        "Bands: one standard deviation over tasks and runs. Dashed: the onset of forgetting, with "
        "its 95 % interval; above: days of S updates."
    )
    yield Picture("forgetting-rate", caption, figure, pd.DataFrame(records))


def _last_probe(part: Part, variant: str) -> float:
    """The mean update of a task's last probe."""
    last: list[int] = []
    for run in part.finished:
        if run.variant == variant:
            for curve in probes_of(run.outcome["tasks"], run.events).values():
                last.append(curve[-1][0])
    return fmean(last)


def draw_lines(
    lines: Mapping[str, Sequence[Point]],
    panels: Sequence[str],
    about: str,
    styles: Mapping[str, style.LineStyle],
    marked: Any = None,
    logarithmic: bool = False,
    bands: bool = False,
) -> Figure:
    """Draws lines of estimates over the values of a setting, a panel a measure.

    Numbers are joined and ordered by size; names are in the order in which they come, and joined
    where `bands` show that they follow each other. Values are equally spaced, or `logarithmic`: the
    two that are closest have a distance of 1.

    Args:
        marked: a value with a pale ground.
        bands: whether intervals are bands; otherwise each is a whisker.
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
    for number, (name, points) in enumerate(lines.items()):
        own = styles[name] if are_numbers or bands else {**styles[name], "linestyle": "none"}
        # Whiskers stand beside each other at each value.
        shift = (number - (len(lines) - 1) / 2) * min(0.1, 0.7 / len(lines))
        ordered = sorted(points, key=lambda point: places[point[0]])
        x = [places[value] + (0 if bands else shift) for value, _ in ordered]
        for panel, axis in enumerate(axes):
            estimates = [measures[panel] for _, measures in ordered]
            style.draw_estimates(axis, x, estimates, own, bands)
    for axis, title in zip(axes, panels, strict=True):
        axis.set_ylabel(title)
        if marked in places:
            axis.axvspan(places[marked] - 0.4, places[marked] + 0.4, **style.GROUND)
    axes[-1].set(xlabel=label(about), xlim=(-0.5, places[values[-1]] + 0.5))
    axes[-1].set_xticks([*places.values()], [label(written(value)) for value in values])
    style.legend(figure)
    return figure


# ---- the lengths of model days


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
