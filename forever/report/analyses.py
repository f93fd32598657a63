"""Findings that are more than a score a variant: the forgetting rate, model days, minutes an epoch.

Each is a function of a part of a study (one benchmark), and absent where its runs were not made for
it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise, zip_longest
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from forever.report.bootstrap import RESAMPLES, Estimate, Replicated, Unit, summarise
from forever.report.format import NOTHING, estimated, number, several
from forever.report.study import Part
from forever.sweeps import published as paper

PHASES = 5  # of a task; its later updates are left out
TIMED = ("training_time", "backbones")  # sweeps whose minutes are comparable

Curves = dict[tuple[str, int], list[float]]  # by task and run
Pairs = Mapping[str, tuple[float, float]]  # by task


def analyses(part: Part) -> dict[str, Any]:
    """Those that the runs of a part can tell, by name."""
    curves = forgetting_rates(part)
    rates = {name: slowing(known) for name, known in curves.items() if known}
    by_name: dict[str, Any] = {"forgetting_rate": rates}
    if part.name == "model_day":
        by_name["model_day"] = correlations(part)
    if part.name in TIMED:
        by_name["training_time"] = minutes_an_epoch(part)
    return {name: value for name, value in by_name.items() if value}


# ---- the rate of forgetting


def rates(tasks: Sequence[str], events: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """By task, the rise of the mean loss on the tasks before it per update, in each phase that it
    reaches.

    Args:
        tasks: in the order in which they were learned. A third of them is left out at the
            beginning, as in the paper, where few tasks can be forgotten yet: 5 of 15.
        events: the lines of events.jsonl.
    """
    looks: dict[str, list[tuple[int, float]]] = {task: [] for task in tasks[len(tasks) // 3 :]}
    for event in events:
        if event["kind"] == "look" and event["task"] in looks:
            looks[event["task"]].append((event["step"], fmean(event["losses"].values())))
    by_task: dict[str, list[float]] = {}
    for task, seen in looks.items():
        rises = [(b - a) / (end - start) for (start, a), (end, b) in pairwise(seen)]
        if rises:
            by_task[task] = rises[:PHASES]
    return by_task


def forgetting_rates(part: Part) -> dict[str, Curves]:
    """By variant, task and run, the rise of the loss on earlier tasks per update in phases 1, 2,
    ..."""
    by_variant: dict[str, Curves] = {}
    for place, run in enumerate(part.finished):
        if run.settings.get("method.probe_every") is not None:
            curves = by_variant.setdefault(run.variant, {})
            for task, curve in rates(run.outcome["tasks"], run.events).items():
                curves[task, place] = curve
    return by_variant


def slowing(curves: Curves) -> dict[str, Any]:
    """The mean rate in each phase, and by how much the first is above the last that any task
    reaches.

    `fall` is of each task the mean over its runs, and its 95 % interval is over tasks, so it holds
    for other tasks like these; `runs` counts the tasks. None if there is nothing to compare: one
    phase, or one task that reaches the last.
    """
    last = max(map(len, curves.values())) - 1
    falls: dict[str, list[float]] = defaultdict(list)
    for (task, _), curve in curves.items():
        if len(curve) > last:
            falls[task].append(curve[0] - curve[last])
    fall = None
    if last and len(falls) > 1:
        exact: dict[Unit, Replicated] = {}
        for place, values in enumerate(falls.values()):
            mean = fmean(values)
            exact["tasks", place] = Replicated(mean, np.full(RESAMPLES, mean))
        fall = asdict(summarise(exact, (-math.inf, math.inf))[0])
    phases = zip_longest(*curves.values(), fillvalue=math.nan)
    return {"rates": [float(np.nanmean(phase)) for phase in phases], "fall": fall}


# ---- model days


def model_days(part: Part) -> pd.DataFrame:
    """tau_day ("day"), BWT and joint training's score ("joint"), a row for each run and task; NaN
    where a run has none."""
    records: list[dict[str, Any]] = []
    for run in part.finished:
        tasks, matrix = run.outcome["tasks"], run.outcome["matrix"]
        for i, task in enumerate(tasks):
            record = {"order": run.order, "task": task}
            if run.outcome["method"] == "mtl":
                record["joint"] = matrix[i][-1]
            elif run.settings.get("method.clock") == "model":
                record["day"] = run.outcome["notes"][task].get("tau_day")
                if i + 1 < len(tasks):  # nothing can be forgotten of the last task
                    record["BWT"] = matrix[i][-1] - matrix[i][i]
            records.append(record)
    frame = pd.DataFrame(records, columns=["order", "task", "day", "BWT", "joint"])
    return frame.astype({"day": float, "BWT": float, "joint": float})


def day_orders(part: Part) -> list[str]:
    """The orders whose tasks have a model day."""
    return list(model_days(part).dropna(subset=["day"])["order"].unique())


def day_pairs(part: Part) -> dict[str, Pairs]:
    """What tau_day is compared with, by task: (tau_day, other number). The figure's points and what
    r is of.

    A pair a task: for BWT and joint training the mean of tau_day and BWT over the orders, since the
    paper's p of 0.0291 belongs to 15 pairs.
    """
    frame: Any = model_days(part)
    # Over seeds first, and then over orders, of which one may have more seeds.
    seeds = frame.groupby(["order", "task"], sort=False)[["day", "BWT"]].mean()
    orders = seeds.groupby("task", sort=False).mean()
    days = [seeds.loc[order, "day"] for order in day_orders(part)]
    other_order = _pairs(days[0], days[1]) if len(days) > 1 else {}
    joint = frame.groupby("task", sort=False)["joint"].mean()
    return {
        "other order": other_order,
        "BWT": _pairs(orders["day"], orders["BWT"]),
        "joint training": _pairs(orders["day"], joint),
    }


def _pairs(x: pd.Series, y: pd.Series) -> Pairs:
    both = pd.concat([x, y], axis=1, join="inner").dropna()
    return dict(zip(both.index, both.itertuples(index=False, name=None), strict=True))


def correlations(part: Part) -> dict[str, dict[str, float | int]]:
    """Pearson's r of `day_pairs`, its two-sided p and the number of pairs; absent where it is not
    defined."""
    by_name: dict[str, dict[str, float | int]] = {}
    for name, points in day_pairs(part).items():
        if correlation := pearson(list(points.values())):
            r, p = correlation
            by_name[name] = {"r": r, "p": p, "pairs": len(points)}
    return by_name


def pearson(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """r and its two-sided p; None for fewer than three pairs or constants, which have no r."""
    from scipy.stats import pearsonr

    if len(points) < 3 or any(len(set(axis)) == 1 for axis in zip(*points, strict=True)):
        return None
    test: Any = pearsonr(*zip(*points, strict=True))
    return float(test.statistic), float(test.pvalue)


# ---- time


def minutes_an_epoch(part: Part) -> dict[str, dict[str, float]]:
    """By backbone and method: all that training took, replay and merges included, by task and
    epoch."""
    minutes: dict[str, dict[str, list[float]]] = {}
    for run in part.finished:
        phases = run.outcome["seconds"]
        training = sum(phases.values()) - phases.get("evaluation", 0.0)
        epochs = len(run.outcome["stages"]) * int(run.settings["optim.epochs"])
        methods = minutes.setdefault(run.backbone, {})
        methods.setdefault(run.outcome["method"], []).append(training / 60 / epochs)
    means: dict[str, dict[str, float]] = {}
    for backbone, methods in minutes.items():
        means[backbone] = {method: fmean(values) for method, values in methods.items()}
    return means


# ---- findings as text


class Finding(NamedTuple):
    """A row of the table of findings."""

    what: str
    ours: str
    published: str
    basis: str


def findings(part: Part) -> list[Finding]:
    """What the analyses of a part say beside the paper; nothing for most studies."""
    known = analyses(part)
    return [
        *_forgetting(known.get("forgetting_rate", {})),
        *_model_day(known.get("model_day", {})),
        *_training_time(part, known.get("training_time", {})),
    ]


def _forgetting(variants: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    published = dict(enumerate(paper.FORGETTING_RATE))
    for variant, slowed in variants.items():
        for phase, rate in enumerate(slowed["rates"]):
            what = f"{variant}: forgetting per update, phase {phase + 1}"
            theirs = number(published.get(phase), "{:.4f}")
            yield Finding(what, number(rate, "{:.4f}"), theirs, NOTHING)
        if slowed["fall"]:
            fall, last = Estimate(**slowed["fall"]), len(slowed["rates"]) - 1
            what = f"{variant}: phase 1 less phase {last + 1}"
            theirs = NOTHING
            if last in published:
                theirs = number(published[0] - published[last], "{:+.4f}")
            yield Finding(what, estimated(fall, "{:+.4f}"), theirs, several(fall.runs, "task"))


def _model_day(correlations: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    names = {
        "other order": "its length in the other order",
        "BWT": "the task's BWT",
        "joint training": "joint training's score",
    }
    for name, ours in correlations.items():
        what, theirs = f"a task's model day with {names[name]}", _r(*paper.MODEL_DAY[name])
        yield Finding(what, _r(ours["r"], ours["p"]), theirs, f"{ours['pairs']} tasks")


def _r(r: float, p: float | None) -> str:
    text = f"r = {number(r, '{:+.2f}')}"
    return text if p is None else f"{text}, p = {p:.2g}"


def _training_time(part: Part, backbones: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    runs = Counter((run.backbone, run.outcome["method"]) for run in part.finished)
    for backbone, minutes in backbones.items():
        published = paper.TRAINING_TIME.get(backbone, {})
        for method, value in minutes.items():
            what = f"{method}, {backbone}: minutes an epoch"
            ours = number(value, "{:.2g}" if value < 1 else "{:.1f}")
            theirs = number(published.get(method), "{:.1f}")
            yield Finding(what, ours, theirs, several(runs[backbone, method], "run"))
