"""Claims that stand in the paper's text, and what runs say to them.

What needs a run's journal is noted when a sweep is committed (`penalties_of`); from that and from
the results and scores of its runs come the numbers of a part (`findings`), and from those answers.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from forever.evaluation.metrics import PerformanceMatrix
from forever.report.analyses import over_tasks
from forever.report.row import Row
from forever.report.run import Run
from forever.report.study import Part
from forever.stats.bootstrap import Runs
from forever.stats.compare import compare
from forever.sweeps import published as paper
from scripts.claims import (
    CONTRADICTED,
    MEASURES,
    NOT_JUDGED,
    REPRODUCED,
    Answer,
    Claim,
    Key,
    Report,
    Status,
    answered,
    interval,
    judged,
    side,
    unshown,
)
from scripts.finding_claims import slows_down

Penalties = Mapping[str, Mapping[str, float]]  # by run, what `penalties_of` noted
Numbers = Mapping[str, Any]

DAY_7 = 140 / 1250, 180 / 1250  # of a task's updates, in tasks of 1000 examples
JOINT = ("rte", "task1687")
_TIMES = 7.0  # as fast is forgetting at first
_FACTOR = 2.0  # by which "about" may be off
_COMPARABLE = 1.0  # decades between a loss and a penalty
OTHER_FACTOR = Status("not reproduced: by another factor", "not shown")
_MAIN = paper.TABLES["main_results"]
_BENCHMARKS = ("standard", "long", "superni")


# ---- what a run's journal says


def penalties_of(run: Run) -> dict[str, float]:
    """Of each task how large the penalty of its replays was beside the loss, both means over the
    updates on memory."""
    replays: dict[str, list[Numbers]] = defaultdict(list)
    for step in run.steps:
        if step["kind"] != "task" and step["penalty"] > 0:
            replays[step["task"]].append(step)
    penalties: dict[str, float] = {}
    for task, steps in replays.items():
        loss = fmean(step["loss"] for step in steps)
        penalties[task] = float(f"{fmean(step['penalty'] for step in steps) / loss:.4g}")
    return penalties


# ---- what the runs of a part say


def findings(part: Part, penalties: Penalties) -> dict[str, Any]:
    """The numbers that answer claims of the text, by claim; absent where there are no runs."""
    rows = {row.paper_variant: row for row in part.measured}
    found: dict[str, Any] = {}
    if part.name == "components" and "base" in rows:
        found["day 7"] = _over_tasks(rows["base"], _shares(rows["base"].runs))
        found["penalty"] = _over_tasks(rows["base"], _decades(rows["base"].runs, penalties))
    if {"forever", "mtl"} <= rows.keys():
        for task in JOINT:
            if task in part.example.outcome["tasks"]:
                ours, joint = (_on_task(rows[name], task) for name in ("forever", "mtl"))
                found[f"joint, {task}"] = _differences(ours, joint)["op"]
    if {"vbm", "fixed_interval"} <= rows.keys():
        found["vbm"] = _differences(rows["vbm"].matrices(), rows["fixed_interval"].matrices())
    return {claim: numbers for claim, numbers in found.items() if numbers}


def _shares(runs: Sequence[Run]) -> Iterator[tuple[str, float]]:
    """By task, which share of its updates lies before day 7: all of them if that never came."""
    for run in runs:
        for task, note in run.outcome["notes"].items():
            if "day_7" in note:
                yield task, (note["day_7"] or note["planned"]) / note["planned"]


def _decades(runs: Sequence[Run], penalties: Penalties) -> Iterator[tuple[str, float]]:
    """By task, the decimal logarithm of penalty over loss."""
    for run in runs:
        for task, ratio in penalties[run.key].items():
            yield task, math.log10(ratio)


def _over_tasks(row: Row, numbers: Iterator[tuple[str, float]]) -> dict[str, Any] | None:
    """The mean over tasks, each the mean of its runs; None of a single task."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for task, number in numbers:
        by_task[task].append(number)
    if len(by_task) < 2:
        return None
    return {**over_tasks([fmean(values) for values in by_task.values()]), "runs": len(row.runs)}


def _on_task(row: Row, task: str) -> Runs:
    """The runs of a row on one task, when all have been learned."""
    matrices: dict[Any, PerformanceMatrix] = {}
    for unit, matrix in row.matrices().items():
        scores = matrix.items[matrix.tasks.index(task), len(matrix.stages) - 1]
        matrices[unit] = PerformanceMatrix((task,), (task,), {(0, 0): scores})
    return matrices


def _differences(ours: Runs, others: Runs) -> dict[str, Any]:
    """OP and BWT of some runs less those of others, over what both have."""
    found = compare({"ours": ours, "others": others}, "others")["ours"]
    estimates = {"op": found.difference, "bwt": found.bwt_difference}
    return {name: estimate and asdict(estimate) for name, estimate in estimates.items()}


# ---- what that says to the claims


def text_claims(reports: Sequence[Report]) -> list[Claim]:
    """Every claim of the text, once for each answer."""
    return answered(_claims(), reports, _answers)


def _claims() -> Iterator[Claim]:
    low, high = DAY_7
    yield _claim("day 7", "share of a task's updates before day 7", f"{low:.3f} to {high:.3f}")
    yield _claim("times", "early forgetting is so many times as fast as late", f"{_TIMES:.0f}")
    yield _claim("penalty", "penalty of a replay over its loss", "comparable")
    for task in JOINT:
        text = f"FOREVER reaches joint training on {task}, difference in OP"
        yield _claim(f"joint, {task}", text, "reached")
    for benchmark in _BENCHMARKS:
        text = f"{benchmark}: vbm less fixed_interval, OP"
        yield _claim(f"vbm, {benchmark}", text, f"{_ahead(benchmark, 'op'):+.1f}")
    for measure, ahead in (("op", 1.2), ("bwt", 0.9)):
        text = f"forever less vbm, {measure.upper()}, mean over the benchmarks"
        yield _claim(f"mean, {measure}", text, f"{ahead:+.1f}")


def _claim(name: str, text: str, published: str) -> Claim:
    return Claim(("text", name), text, published)


def _ahead(benchmark: str, measure: str) -> float:
    """By how much VBM is ahead of fixed intervals in the paper."""
    rows = _MAIN[benchmark]
    return getattr(rows["vbm"], measure) - getattr(rows["fixed_interval"], measure)


def _answers(report: Report) -> Iterator[Answer]:
    for part in report["parts"]:
        told = part.get("text", {})
        for claim, judge in (("day 7", _day_7), ("penalty", _penalty)):
            if claim in told:
                yield _key(claim), *judge(told[claim]), told[claim]["runs"]
        for task in JOINT:
            if numbers := told.get(f"joint, {task}"):
                yield _key(f"joint, {task}"), interval(numbers), reached(numbers), numbers["runs"]
        place = paper.table_of(report["name"], part["benchmark"])
        if place and "vbm" in told and told["vbm"]["op"]:
            numbers = told["vbm"]["op"]
            status = NOT_JUDGED
            if numbers["runs"] > 1:
                status = judged(_ahead(place[1], "op"), side(numbers), numbers)
            yield _key(f"vbm, {place[1]}"), interval(numbers), status, numbers["runs"]
        analysis = part["analyses"].get("forgetting_rate", {})
        if report["name"] == "forgetting_rate" and "finetune" in analysis:
            yield _key("times"), *times(**analysis["finetune"]), report["finished"]
    for measure, ahead in (("op", 1.2), ("bwt", 0.9)):
        if numbers := mean_over_benchmarks(report, measure):
            status = judged(ahead, side(numbers), numbers)
            yield _key(f"mean, {measure}"), interval(numbers), status, numbers["runs"]


def _key(name: str) -> Key:
    return "text", name


def within(low: float, high: float, ours: Mapping[str, float]) -> Status:
    """The status of a number that is to lie in a range: as its whole interval does, or does not."""
    if low <= ours["low"] and ours["high"] <= high:
        return REPRODUCED
    if ours["high"] < low or ours["low"] > high:
        return CONTRADICTED
    return unshown(0.0, ours, digits=2)


def _day_7(numbers: Mapping[str, float]) -> tuple[str, Status]:
    value, low, high = (f"{numbers[key]:.3f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]", within(*DAY_7, numbers)


def _penalty(numbers: Mapping[str, float]) -> tuple[str, Status]:
    value, low, high = (f"{10 ** numbers[key]:.2g}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]", within(-_COMPARABLE, _COMPARABLE, numbers)


def times(rates: Sequence[float], fall: Mapping[str, float] | None) -> tuple[str, Status]:
    """How many times as fast forgetting is in the first phase as in the last.

    Whether it slows down at all must be shown before it can be so many times.
    """
    ratio = rates[0] / rates[-1] if rates[-1] > 0 else math.inf
    if fall is None:
        return f"{ratio:.1f}", NOT_JUDGED
    status = slows_down(fall)
    if status == REPRODUCED and not _TIMES / _FACTOR <= ratio <= _TIMES * _FACTOR:
        status = OTHER_FACTOR
    return f"{ratio:.1f}", status


def reached(ours: Mapping[str, float]) -> Status:
    """Whether a difference to what is to be reached is at most a point below zero."""
    if ours["runs"] < 2:
        return NOT_JUDGED
    if ours["low"] >= -paper.ALIKE:
        return REPRODUCED
    return CONTRADICTED if ours["high"] < -paper.ALIKE else unshown(0.0, ours)


def mean_over_benchmarks(report: Report, measure: str) -> dict[str, Any] | None:
    """FOREVER less VBM, the mean over the benchmarks of a report, whose intervals are independent;
    at full scale of all three, a smaller one stands for them. One run of a benchmark tells
    nothing."""
    estimates: list[Mapping[str, Any]] = []
    for part in report["parts"]:
        place = paper.table_of(report["name"], part["benchmark"])
        for row in part["rows"]:
            ours = row[MEASURES[measure][0]]
            pair = row["paper_variant"], row["reference"]
            asked = place and place[0] == "main_results" and pair == ("vbm", "forever")
            if asked and ours and ours["runs"] > 1:
                estimates.append(ours)
    count = len(estimates)
    if not estimates or (report["scale"] == "paper" and count < len(_BENCHMARKS)):
        return None
    value = -fmean(ours["value"] for ours in estimates)
    above = math.hypot(*(ours["value"] - ours["low"] for ours in estimates)) / count
    below = math.hypot(*(ours["high"] - ours["value"] for ours in estimates)) / count
    runs = sum(ours["runs"] for ours in estimates)
    return {"value": value, "low": value - below, "high": value + above, "runs": runs}
