"""Findings that are more than a score a variant: the forgetting rate, model days, minutes an epoch.

Each is a function of a part of a study (one benchmark), and absent where its runs were not made for
it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from forever.report.bootstrap import RESAMPLES, Replicated, Unit, summarise
from forever.report.format import NOTHING, number, several
from forever.report.study import Part
from forever.sweeps import published as paper

PHASES = 5  # of a task; its later updates are left out
TIMED = ("training_time", "backbones")  # sweeps whose minutes are comparable

Curves = Mapping[tuple[str, int], list[float]]  # by task and run
Pairs = Mapping[str, tuple[float, float]]  # by task


def analyses(part: Part) -> dict[str, Any]:
    """Those that the runs of a part can tell, by name."""
    curves = forgetting_rates(part)
    rates = {name: slowing(found) for name, found in curves.items() if found}
    told = {
        "forgetting_rate": rates,
        "model_day": correlations(part) if part.name == "model_day" else {},
        "training_time": minutes_an_epoch(part) if part.name in TIMED else {},
    }
    return {name: value for name, value in told.items() if value}


# ---- the rate of forgetting


def rates(tasks: Sequence[str], events: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """By task, the rise of the mean loss on the tasks before it per update, in each phase that it
    reaches.

    Args:
        tasks: in the order in which they were learned. A third of them is left out at the
            beginning, as in the paper, where few tasks can be forgotten yet: 5 of 15.
        events: the lines of events.jsonl.
    """
    late = tasks[len(tasks) // 3 :]
    looks: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        if event["kind"] == "look" and event["task"] in late:
            looks.setdefault(event["task"], []).append(
                (event["step"], fmean(event["losses"].values()))
            )
    found: dict[str, list[float]] = {}
    for task, seen in looks.items():
        rises = [(b - a) / (end - start) for (start, a), (end, b) in pairwise(seen)]
        found[task] = rises[:PHASES]
    return found


def forgetting_rates(part: Part) -> dict[str, dict[tuple[str, int], list[float]]]:
    """By variant, task and run, the rise of the loss on earlier tasks per update in phases 1, 2,
    ..."""
    by_variant: dict[str, dict[tuple[str, int], list[float]]] = {}
    for number_, run in enumerate(part.finished):
        if run.settings.get("method.probe_every") is not None:
            curves = by_variant.setdefault(run.variant, {})
            for task, curve in rates(run.outcome["tasks"], run.events).items():
                if curve:
                    curves[task, number_] = curve
    return by_variant


def slowing(curves: Curves) -> dict[str, Any]:
    """The mean rate in each phase, and by how much the first is above the last that any task
    reaches.

    `fall` is of each task the mean over its runs, and its 95 % interval is over tasks, so it holds
    for other tasks like these; `runs` counts the tasks. None if there is nothing to compare: one
    phase, or one task that reaches the last.
    """
    last = max(map(len, curves.values())) - 1
    phases: dict[int, list[float]] = defaultdict(list)
    falls: dict[str, list[float]] = defaultdict(list)
    for (task, _), curve in curves.items():
        for phase, rate in enumerate(curve):
            phases[phase].append(rate)
        if len(curve) > last:
            falls[task].append(curve[0] - curve[last])
    fall = None
    if last and len(falls) > 1:
        exact: dict[Unit, Replicated] = {}
        for place, values in enumerate(falls.values()):
            mean = fmean(values)
            exact["tasks", place] = Replicated(mean, np.full(RESAMPLES, mean))
        fall = asdict(summarise(exact, (-math.inf, math.inf))[0])
    return {"rates": [fmean(phases[phase]) for phase in range(last + 1)], "fall": fall}


# ---- model days


class ModelDays(NamedTuple):
    """tau_day and BWT by order and task, joint training's score by task; means over seeds."""

    days: dict[tuple[str, str], float]
    bwt: dict[tuple[str, str], float]
    joint: dict[str, float]

    @property
    def orders(self) -> list[str]:
        return list(dict.fromkeys(order for order, _ in self.days))

    def of_order(self, order: str) -> dict[str, float]:
        return {task: day for (other, task), day in self.days.items() if other == order}


def model_days(part: Part) -> ModelDays:
    days: dict[tuple[str, str], list[float]] = defaultdict(list)
    bwt: dict[tuple[str, str], list[float]] = defaultdict(list)
    joint: dict[str, list[float]] = defaultdict(list)
    for run in part.finished:
        tasks, matrix = run.outcome["tasks"], run.outcome["matrix"]
        is_joint = run.outcome["method"] == "mtl"
        for i, task in enumerate(tasks):
            if is_joint:
                joint[task].append(matrix[i][-1])
            elif run.settings.get("method.clock") == "model":
                day = run.outcome["notes"][task].get("tau_day")
                if day is not None:
                    days[run.order, task].append(day)
                if i + 1 < len(tasks):  # nothing can be forgotten of the last task
                    bwt[run.order, task].append(matrix[i][-1] - matrix[i][i])
    return ModelDays(_means(days), _means(bwt), _means(joint))


def _means(values: Mapping[Any, Sequence[float]]) -> dict[Any, float]:
    return {key: fmean(found) for key, found in values.items()}


def _over_orders(values: Mapping[tuple[str, str], float]) -> dict[str, float]:
    by_task: dict[str, list[float]] = defaultdict(list)
    for (_, task), value in values.items():
        by_task[task].append(value)
    return _means(by_task)


def day_pairs(part: Part) -> dict[str, Pairs]:
    """What tau_day is compared with, by task: (tau_day, other number). The figure's points and what
    r is of.

    A pair a task: for BWT and joint training the mean of tau_day and BWT over the orders, since the
    paper's p of 0.0291 belongs to 15 pairs.
    """
    found = model_days(part)
    orders = [found.of_order(order) for order in found.orders]
    first, second = [*orders, {}, {}][:2]
    mean_days = _over_orders(found.days)
    return {
        "other order": _pairs(first, second),
        "BWT": _pairs(mean_days, _over_orders(found.bwt)),
        "joint training": _pairs(mean_days, found.joint),
    }


def _pairs(x: Mapping[str, float], y: Mapping[str, float]) -> Pairs:
    return {task: (x[task], y[task]) for task in x if task in y}


def correlations(part: Part) -> dict[str, dict[str, float | int]]:
    """Pearson's r of `day_pairs`, its two-sided p and the number of pairs; absent where it is not
    defined."""
    found: dict[str, dict[str, float | int]] = {}
    for name, points in day_pairs(part).items():
        correlation = pearson(list(points.values()))
        if correlation is not None:
            r, p = correlation
            found[name] = {"r": r, "p": p, "pairs": len(points)}
    return found


def pearson(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """r and its two-sided p; None for fewer than three pairs or constants, of which there is no
    r."""
    from scipy.stats import pearsonr

    x, y = [point[0] for point in points], [point[1] for point in points]
    if len(points) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    test: Any = pearsonr(x, y)
    return float(test.statistic), float(test.pvalue)


# ---- time


def minutes_an_epoch(part: Part) -> dict[str, dict[str, float]]:
    """By backbone and method: all that training took, replay and merges included, by task and
    epoch."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in part.finished:
        phases = run.outcome["seconds"]
        training = sum(phases.values()) - phases.get("evaluation", 0.0)
        epochs = len(run.outcome["stages"]) * int(run.settings["optim.epochs"])
        methods = found.setdefault(run.backbone, {})
        methods.setdefault(run.outcome["method"], []).append(training / 60 / epochs)
    return {name: _means(methods) for name, methods in found.items()}


# ---- findings as text

_WITH = {
    "other order": "its length in the other order",
    "BWT": "the task's BWT",
    "joint training": "joint training's score",
}


class Finding(NamedTuple):
    """A row of the table of findings."""

    what: str
    ours: str
    published: str
    basis: str


def findings(part: Part) -> list[Finding]:
    """What the analyses of a part say beside the paper; nothing for most studies."""
    told = analyses(part)
    return [
        *_forgetting(told.get("forgetting_rate", {})),
        *_model_day(told.get("model_day", {})),
        *_training_time(part, told.get("training_time", {})),
    ]


def _forgetting(told: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    published = dict(enumerate(paper.FORGETTING_RATE))
    for variant, found in told.items():
        last = len(found["rates"]) - 1
        for phase, rate in enumerate(found["rates"]):
            what = f"{variant}: forgetting per update, phase {phase + 1}"
            theirs = number(published.get(phase), "{:.4f}")
            yield Finding(what, number(rate, "{:.4f}"), theirs, NOTHING)
        if fall := found["fall"]:
            value, low, high = (number(fall[key], "{:+.4f}") for key in ("value", "low", "high"))
            theirs = published[0] - published[last] if last in published else None
            yield Finding(
                f"{variant}: phase 1 less phase {last + 1}",
                f"{value} [{low}, {high}]",
                number(theirs, "{:+.4f}"),
                several(fall["runs"], "task"),
            )


def _model_day(told: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    for name, found in told.items():
        what = f"a task's model day with {_WITH[name]}"
        ours = _correlation(found["r"], found["p"])
        yield Finding(what, ours, _correlation(*paper.MODEL_DAY[name]), f"{found['pairs']} tasks")


def _correlation(r: float, p: float | None) -> str:
    text = f"r = {number(r, '{:+.2f}')}"
    return text if p is None else f"{text}, p = {p:.2g}"


def _training_time(part: Part, told: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    runs = Counter((run.backbone, run.outcome["method"]) for run in part.finished)
    for backbone, minutes in told.items():
        published = paper.TRAINING_TIME.get(backbone, {})
        for method, value in minutes.items():
            yield Finding(
                f"{method}, {backbone}: minutes an epoch",
                number(value, "{:.2g}" if value < 1 else "{:.1f}"),
                number(published.get(method), "{:.1f}"),
                several(runs[backbone, method], "run"),
            )
