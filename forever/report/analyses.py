"""Findings that are more than a score a variant: the forgetting rate, model days, minutes an epoch.

Each is a function of a part of a study (one benchmark), and absent where its runs were not made for
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import pearsonr

from forever.report.bootstrap import RESAMPLES, Replicated, Unit, summarise
from forever.report.forgetting import rates
from forever.report.reading import read_records
from forever.report.rows import Run
from forever.report.study import Study

Curves = Mapping[tuple[str, int], list[float]]  # by task and run


def analyses(part: Study) -> dict[str, Any]:
    """Those that the runs of a part can tell, by name."""
    found = {
        "forgetting_rate": {
            name: slowing(curves) for name, curves in forgetting_rates(part).items() if curves
        },
        "model_day": correlations(part) if part.name == "model_day" else {},
        "training_time": minutes_an_epoch(part)
        if part.name in ("training_time", "backbones")
        else {},
    }
    return {name: value for name, value in found.items() if value}


def forgetting_rates(part: Study) -> Mapping[str, Curves]:
    """By variant, task and run, the rise of the loss on earlier tasks per update in phases 1, 2,
    ..."""
    found: dict[str, dict[tuple[str, int], list[float]]] = {}
    for number, run in enumerate(_finished(part)):
        if run.settings.get("method.probe_every") is not None:
            assert run.result is not None
            by_task = rates(run.result["tasks"], read_records(run.directory.events))
            curves = {(task, number): curve for task, curve in by_task.items() if curve}
            found.setdefault(run.variant, {}).update(curves)
    return found


def slowing(curves: Curves) -> dict[str, Any]:
    """The mean rate in each phase, and by how much the first is above the last that any task
    reaches.

    `fall` is of each task the mean over its runs, and its 95 % interval is over tasks, so it holds
    for other tasks like these; `runs` counts the tasks. None if there is nothing to compare: one
    phase, or one task that reaches the last.
    """
    last = max(map(len, curves.values())) - 1
    phases = [
        [curve[phase] for curve in curves.values() if len(curve) > phase]
        for phase in range(last + 1)
    ]
    falls: dict[str, list[float]] = {}
    for (task, _), curve in curves.items():
        if len(curve) > last:
            falls.setdefault(task, []).append(curve[0] - curve[last])
    fall = None
    if last and len(falls) > 1:
        means = [fmean(values) for values in falls.values()]
        exact: dict[Unit, Replicated] = {
            ("tasks", i): Replicated(mean, np.full(RESAMPLES, mean)) for i, mean in enumerate(means)
        }
        fall = asdict(summarise(exact, (-math.inf, math.inf))[0])
    return {"rates": [fmean(values) for values in phases], "fall": fall}


def model_days(
    part: Study,
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]], dict[str, float]]:
    """tau_day and BWT by order and task, joint training's score by task; means over seeds."""
    days: dict[str, dict[str, list[float]]] = {}
    bwt: dict[str, dict[str, list[float]]] = {}
    joint: dict[str, list[float]] = {}
    for run in _finished(part):
        assert run.result is not None
        tasks, matrix = run.result["tasks"], run.result["matrix"]
        if run.result["method"] == "mtl":
            for i, task in enumerate(tasks):
                joint.setdefault(task, []).append(matrix[i][-1])
        elif run.settings.get("method.clock") == "model":
            for i, task in enumerate(tasks):
                day = run.result["notes"][task].get("tau_day")
                if day is not None:
                    days.setdefault(run.order, {}).setdefault(task, []).append(day)
                if i + 1 < len(tasks):  # nothing can be forgotten of the last task
                    bwt.setdefault(run.order, {}).setdefault(task, []).append(
                        matrix[i][-1] - matrix[i][i]
                    )
    means = [
        {
            order: {task: fmean(values) for task, values in by_task.items()}
            for order, by_task in table.items()
        }
        for table in (days, bwt)
    ]
    return means[0], means[1], {task: fmean(values) for task, values in joint.items()}


def day_pairs(part: Study) -> dict[str, dict[str, tuple[float, float]]]:
    """What tau_day is compared with, by task: (tau_day, other number). The figure's points and what
    r is of.

    A pair a task: for BWT and joint training the mean of tau_day and BWT over the orders, since the
    paper's p of 0.0291 belongs to 15 pairs.
    """
    days, bwt, joint = model_days(part)
    first, second = [*days.values(), {}, {}][:2]
    mean_days = _over_orders(days)
    return {
        "other order": _pairs(first, second),
        "BWT": _pairs(mean_days, _over_orders(bwt)),
        "joint training": _pairs(mean_days, joint),
    }


def _pairs(x: Mapping[str, float], y: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    return {task: (x[task], y[task]) for task in x if task in y}


def correlations(part: Study) -> dict[str, dict[str, float | int]]:
    """Pearson's r of `day_pairs`, its two-sided p and the number of pairs; absent where it is not
    defined."""
    found: dict[str, dict[str, float | int]] = {}
    for name, points in day_pairs(part).items():
        if points and (one := pearson(*zip(*points.values(), strict=True))):
            found[name] = {"r": one[0], "p": one[1], "pairs": len(points)}
    return found


def pearson(x: Sequence[float], y: Sequence[float]) -> tuple[float, float] | None:
    """r and its two-sided p; None for fewer than three pairs or constants, of which there is no
    r."""
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    test: Any = pearsonr(x, y)
    return float(test.statistic), float(test.pvalue)


def _over_orders(table: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    tasks = dict.fromkeys(task for by_task in table.values() for task in by_task)
    return {
        task: fmean(by_task[task] for by_task in table.values() if task in by_task)
        for task in tasks
    }


def minutes_an_epoch(part: Study) -> dict[str, dict[str, float]]:
    """By backbone and method: all that training took, replay and merges included, by task and
    epoch."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in _finished(part):
        assert run.result is not None
        training = sum(
            value for phase, value in run.result["seconds"].items() if phase != "evaluation"
        )
        epochs = len(run.result["stages"]) * int(run.settings["optim.epochs"])
        found.setdefault(backbone_of(run), {}).setdefault(run.result["method"], []).append(
            training / 60 / epochs
        )
    return {
        name: {method: fmean(values) for method, values in row.items()}
        for name, row in found.items()
    }


def backbone_of(run: Run) -> str:
    """The last part of its name, with which tables are headed."""
    return str(run.settings["model.name"]).rsplit("/", 1)[-1]


def _finished(part: Study) -> list[Run]:
    return [run for run in part.runs if run.result is not None]
