"""Findings that are more than a score a variant: the forgetting rate, model days, minutes an epoch,
curves over doses, and whether a schedule is worth more than replays at random times.

Each is a function of a part of a study (one benchmark), and absent where its runs were not made for
it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise, product, takewhile
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
import pandas as pd

from forever.config.run import RunConfig
from forever.format import plural
from forever.report.effects import effects_of
from forever.report.format import NOTHING, estimated, listed, minus, number
from forever.report.row import Row, matrices_of
from forever.report.run import Run
from forever.report.study import Part
from forever.stats.bootstrap import RESAMPLES, Estimate, Replicated, Runs, Unit, summarise
from forever.stats.compare import over_logarithm
from forever.sweeps import published as paper
from forever.sweeps.named_runs import method_settings

Whose = Literal["previous", "older", "all"]

PHASES = 5  # of a task; the paper's are 60 updates each (2.5 S), and later ones are left out
PHASED = ("fifths", "updates")  # of a task, or those that the paper's table has
WHOSE: tuple[Whose, ...] = ("previous", "older", "all")  # loss: of which tasks before this one
ONSET = 0.1  # of the rise of a loss over a task: what is above has begun to be forgotten
DAYS = (1, 2, 4, 7, 15, 30)  # the paper's list
TIMED = ("training_time", "backbones")  # sweeps whose minutes are comparable

# In what runs of one line of doses differ; the first is the dose.
ALONG_DOSES = ("budget.examples", "memory.fraction")

Finding = tuple[str, str, str, str]  # what, ours, published, and from how many of what


def analyses(part: Part) -> dict[str, Any]:
    """Those for which a part has the runs, by name."""
    by_name: dict[str, Any] = {
        "forgetting_rate": forgetting(part),
        "doses": dose_areas(part),
        "main_effects": effects_of(part),
    }
    if part.name == "model_day":
        by_name["model_day"] = correlations(part)
    if part.name in TIMED:
        by_name["training_time"] = minutes_an_epoch(part)
    return {name: value for name, value in by_name.items() if value}


# ---- the forgetting rate


def probes_of(
    tasks: Sequence[str], events: Sequence[Mapping[str, Any]], whose: Whose = "all"
) -> dict[str, list[tuple[int, float]]]:
    """By task, the updates at which it was probed and the mean loss there of the tasks before it:
    "all" of them, the "previous" one or the "older" ones.

    Args:
        tasks: in the order in which they were learned. A third of them is left out at the
            beginning, as in the paper, where few tasks can be forgotten yet: 5 of 15. Each but
            the first has a previous one.
        events: the lines of events.jsonl.
    """
    previous = {task: earlier for earlier, task in pairwise(tasks)}
    probed = tasks if whose == "previous" else tasks[len(tasks) // 3 :]
    curves: dict[str, list[tuple[int, float]]] = {task: [] for task in probed}
    for event in events:
        task = event["task"]
        if event["kind"] == "look" and task in curves:
            chosen: list[float] = []
            for name, loss in event["losses"].items():
                if whose in ("all", "previous" if name == previous.get(task) else "older"):
                    chosen.append(loss)
            if chosen:
                curves[task].append((event["step"], fmean(chosen)))
    return {task: curve for task, curve in curves.items() if len(curve) > 1}


def rates(
    tasks: Sequence[str],
    events: Sequence[Mapping[str, Any]],
    whose: Whose = "all",
    fifths: bool = False,
) -> dict[str, list[float]]:
    """By task, the rise of the loss of `probes_of` per update, in each phase that the task reaches:
    between its first probes, or in fifths of the time from its first to its last one."""
    by_task: dict[str, list[float]] = {}
    for task, curve in probes_of(tasks, events, whose).items():
        steps, losses = np.array(curve).T
        ends = np.linspace(steps[0], steps[-1], PHASES + 1) if fifths else steps[: PHASES + 1]
        by_task[task] = (np.diff(np.interp(ends, steps, losses)) / np.diff(ends)).tolist()
    return by_task


def forgetting_rates(
    part: Part, whose: Whose = "all", fifths: bool = False
) -> dict[str, pd.DataFrame]:
    """By variant, the rates of `rates` in nats an update: a row a task and run, a column a phase;
    NaN after a task's end."""
    curves: dict[str, dict[tuple[str, int], list[float]]] = defaultdict(dict)
    for place, run in _probed(part):
        for task, curve in rates(run.outcome["tasks"], run.events, whose, fifths).items():
            curves[run.variant][task, place] = curve
    return {variant: rate_table(known) for variant, known in curves.items()}


def _probed(part: Part) -> Iterator[tuple[int, Run]]:
    for place, run in enumerate(part.finished):
        if run.settings.get("method.probe_every") is not None:
            yield place, run


def rate_table(curves: Mapping[tuple[str, int], Sequence[float]]) -> pd.DataFrame:
    """Rates by task and run as `forgetting_rates` has them."""
    places = pd.MultiIndex.from_tuples(curves, names=["task", "run"])
    by_phase = [dict(enumerate(curve)) for curve in curves.values()]
    return pd.DataFrame(by_phase, places, dtype=float)


def slowing(table: pd.DataFrame) -> dict[str, Any]:
    """The mean rate in each phase, and by how much the first is above the last that any task
    reaches.

    `fall` is of each task the mean over its runs, and its 95 % interval is over tasks, so it holds
    for other tasks like these; `runs` counts the tasks. None if there is nothing to compare: one
    phase, or one task that reaches the last.
    """
    falls = (table.iloc[:, 0] - table.iloc[:, -1]).groupby(level="task", sort=False).mean().dropna()
    fall = None
    if table.shape[1] > 1 and len(falls) > 1:
        exact: dict[Unit, Replicated] = {}
        for place, mean in enumerate(falls):
            exact["tasks", place] = Replicated(mean, np.full(RESAMPLES, mean))
        fall = asdict(summarise(exact, (-math.inf, math.inf))[0])
    return {"rates": table.mean().tolist(), "fall": fall}


def forgetting(part: Part) -> dict[str, dict[str, Any]]:
    """By variant: `slowing` for all earlier tasks in the paper's phases; the same apart for the
    task learned just before and for older ones, also in fifths of a task; the onset; the days."""
    found: dict[str, dict[str, Any]] = {}
    for variant, table in forgetting_rates(part).items():
        found[variant] = {**slowing(table), "apart": {}}
    for whose, phases in product(WHOSE, PHASED):
        for variant, table in forgetting_rates(part, whose, phases == "fifths").items():
            slowed = slowing(table)
            first, last = slowed["rates"][0], slowed["rates"][-1]
            slowed["ratio"] = first / last if min(first, last) > 0 else None
            found[variant]["apart"].setdefault(whose, {})[phases] = slowed
    for variant, start in onsets(part).items():
        found[variant] |= {"onset": start, "days": scheduled_days(part, variant)}
    return found


def onset(curve: Sequence[tuple[int, float]]) -> int | None:
    """The update at which forgetting begins: the first probe from which on the smoothed loss stays
    above the loss at the start by more than ONSET of its rise until the end.

    Smoothed is the median of each probe and its neighbours. None if the loss does not rise.
    """
    losses = [loss for _, loss in curve]
    smooth = [median(losses[max(0, place - 1) : place + 2]) for place in range(len(losses))]
    rise = smooth[-1] - losses[0]
    if rise <= 0:
        return None
    below = [place for place, loss in enumerate(smooth) if loss <= losses[0] + ONSET * rise]
    return curve[max(below, default=-1) + 1][0]


def onsets(part: Part) -> dict[str, Estimate]:
    """By variant, the mean `onset` of the loss of the task learned just before, with an interval
    over tasks and seeds; `runs` counts both together. A task that is not forgotten has none."""
    found: dict[str, dict[Unit, Replicated]] = defaultdict(dict)
    for place, run in _probed(part):
        for task, curve in probes_of(run.outcome["tasks"], run.events, "previous").items():
            if (start := onset(curve)) is not None:
                found[run.variant][task, place] = Replicated(start, np.full(RESAMPLES, start))
    limits = 0.0, math.inf
    return {name: summarise(cases, limits)[0] for name, cases in found.items() if len(cases) > 1}


def scheduled_days(part: Part, variant: str) -> dict[str, dict[str, float]]:
    """By clock, the update after which each of FOREVER's days comes.

    On "steps" that is the day times S, of FOREVER's runs in the study or else of its scale; on the
    "model" clock the median over those runs and their tasks after the first, if there are any; a
    task without the day counts as infinitely late.
    """
    runs = [run for run in part.finished if run.settings.get("method.clock") == "model"]
    probed = next(run for run in part.finished if run.variant == variant)
    if runs:
        day_steps = runs[0].settings["method.day_steps"]
    else:
        config = RunConfig.parse(probed.config)
        method = config.override(method_settings(config, "forever")).method
        day_steps = method.model_dump()["day_steps"]
    days: dict[str, dict[str, float]] = {"steps": {str(day): day * day_steps for day in DAYS}}
    replays = [event for run in runs for event in run.events if event["kind"] == "replay"]
    tasks = sum(len(run.outcome["stages"]) - 1 for run in runs)
    model: dict[str, float] = {}
    for day in DAYS if replays else ():
        steps = [event["step"] for event in replays if event.get("day") == day]
        middle = median([*steps, *[math.inf] * (tasks - len(steps))])
        if math.isfinite(middle):
            model[str(day)] = middle
    if model:
        days["model"] = model
    return days


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
                # Nothing can be forgotten of the last task, nor of one that is not scored again.
                if i + 1 < len(tasks) and None not in (matrix[i][-1], matrix[i][i]):
                    record["BWT"] = matrix[i][-1] - matrix[i][i]
            records.append(record)
    frame = pd.DataFrame(records, columns=["order", "task", "day", "BWT", "joint"])
    return frame.astype({"day": float, "BWT": float, "joint": float})


def day_pairs(part: Part) -> dict[str, pd.DataFrame]:
    """What tau_day is compared with: a row a task, in the first column its tau_day, in the second
    the other number. The figure's points and what r is of.

    For BWT and joint training, tau_day and BWT are means over the orders, since the paper's p of
    0.0291 belongs to 15 pairs.
    """
    frame: Any = model_days(part)
    # Over seeds first, and then over orders, of which one may have more seeds.
    seeds = frame.groupby(["order", "task"], sort=False)[["day", "BWT"]].mean()
    means = seeds.groupby("task", sort=False).mean()
    means["joint"] = frame.groupby("task", sort=False)["joint"].mean()
    pairs = {"BWT": means[["day", "BWT"]], "joint training": means[["day", "joint"]]}
    days = seeds["day"].dropna().unstack("order", sort=False)
    if days.shape[1] > 1:
        pairs = {"other order": days.iloc[:, :2], **pairs}
    tables = {name: table.dropna() for name, table in pairs.items()}
    return {name: table for name, table in tables.items() if len(table)}


def correlations(part: Part) -> dict[str, dict[str, float | int]]:
    """Pearson's r of `day_pairs`, its two-sided p and the number of pairs; absent where it is not
    defined."""
    by_name: dict[str, dict[str, float | int]] = {}
    for name, table in day_pairs(part).items():
        if correlation := pearson(table):
            r, p = correlation
            by_name[name] = {"r": r, "p": p, "pairs": len(table)}
    return by_name


def pearson(table: pd.DataFrame) -> tuple[float, float] | None:
    """r of two columns and its two-sided p; None for fewer than three pairs or constants, which
    have no r."""
    from scipy.stats import pearsonr

    if len(table) < 3 or table.nunique().min() == 1:
        return None
    test: Any = pearsonr(table.iloc[:, 0], table.iloc[:, 1])
    return float(test.statistic), float(test.pvalue)


def correlation(r: float, p: float) -> str:
    """How r and its p are written."""
    return f"r = {r:.2f}, p = {p:.4f}"


# ---- minutes an epoch


def minutes_an_epoch(part: Part) -> dict[str, dict[str, float]]:
    """By backbone and method: all that training took, replay and merges included, by task and
    epoch."""
    minutes: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in part.finished:
        epochs = len(run.outcome["stages"]) * int(run.settings["optim.epochs"])
        training = run.seconds - run.outcome["seconds"].get("evaluation", 0.0)
        minutes[run.backbone][run.outcome["method"]].append(training / 60 / epochs)
    means: dict[str, dict[str, float]] = {}
    for backbone, methods in minutes.items():
        means[backbone] = {method: fmean(values) for method, values in methods.items()}
    return means


# ---- curves over doses: the area under what differs in nothing but how much is replayed


def dose_lines(part: Part) -> dict[str, list[Row]]:
    """The variants that differ in nothing but the dose, by rising dose, under the words with which
    their names begin; none where all have one dose."""
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in part.measured:
        settings = dict(row.runs[0].settings)
        along = [settings.pop(key, None) for key in ALONG_DOSES]
        if isinstance(along[0], int):  # and not a list, a number for each task
            lines[json.dumps(settings, sort_keys=True)].append(row)
    by_name: dict[str, list[Row]] = {}
    for rows in lines.values():
        rows.sort(key=dose_of)
        columns = zip(*[row.variant.split() for row in rows], strict=False)
        words = [column[0] for column in takewhile(lambda column: len({*column}) == 1, columns)]
        name = " ".join(words)
        if not name or name in by_name:
            name = rows[0].variant
        by_name[name] = rows
    return {name: rows for name, rows in by_name.items() if dose_of(rows[0]) < dose_of(rows[-1])}


def dose_of(row: Row) -> int:
    """The examples that a task replays, as the configuration says."""
    return row.runs[0].settings[ALONG_DOSES[0]]


def line_of(variant: str | None, lines: Mapping[str, Sequence[Row]]) -> str | None:
    """The name of the line that a variant is in."""
    for name, rows in lines.items():
        if any(row.variant == variant for row in rows):
            return name
    return None


def dose_areas(part: Part) -> dict[str, dict[str, Estimate]]:
    """The mean OP and BWT of each line over the logarithm of the dose; see `over_logarithm`.

    Lines that lack one of the doses, over which they would be other means, are left out.
    """
    lines = dose_lines(part)
    doses = {dose_of(row) for rows in lines.values() for row in rows}
    curves: dict[str, dict[float, Runs]] = {}
    for name, rows in lines.items():
        if [dose_of(row) for row in rows] == sorted(doses):
            curves[name] = {dose_of(row): matrices_of(row.runs) for row in rows}
    return over_logarithm(curves, line_of(part.reference, lines))


# ---- next to the paper


def findings(part: Part) -> list[Finding]:
    """The results of the analyses next to the paper's; none for most studies."""
    known = analyses(part)
    return [
        *_forgetting(known.get("forgetting_rate", {})),
        *_model_day(known.get("model_day", {})),
        *_training_time(part, known.get("training_time", {})),
        *_doses(known.get("doses", {})),
    ]


def _forgetting(variants: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    published = dict(enumerate(paper.FORGETTING_RATE))
    for variant, slowed in variants.items():
        for phase, rate in enumerate(slowed["rates"]):
            what = f"{variant}: forgetting per update, phase {phase + 1}"
            theirs = number(published.get(phase), "{:.4f}")
            yield what, number(rate, "{:.4f}"), theirs, NOTHING
        if slowed["fall"]:
            fall, last = Estimate(**slowed["fall"]), len(slowed["rates"]) - 1
            what = f"{variant}: phase 1 less phase {last + 1}"
            theirs = number(published[0] - published[last], "{:+.4f}")
            yield what, estimated(fall, "{:+.4f}"), theirs, plural(fall.runs, "task")
        if start := slowed.get("onset"):
            text = estimated(start, "{:.1f}")
            counted = plural(start.runs, "curve")
            yield f"{variant}: update at which forgetting begins", text, NOTHING, counted
            for clock, days in slowed["days"].items():
                early = [day for day, update in days.items() if update < start.value]
                what = f"{variant}: days before it, {clock} clock".replace("steps", "step")
                yield what, listed(early), NOTHING, NOTHING


def forgetting_table(part: Part) -> pd.DataFrame:
    """Tabulates the rates by phase as text: of the task learned just before and of older ones, in
    fifths of a task beside the paper's phases."""
    phases = [f"phase {phase + 1}" for phase in range(PHASES)]
    rows: list[list[str]] = []
    for variant, known in forgetting(part).items():
        for whose, by_phases in known["apart"].items():
            for name, slowed in by_phases.items():
                texts = [number(rate, "{:.4f}") for rate in slowed["rates"]]
                texts += [NOTHING] * (PHASES - len(texts))
                fall = Estimate(**slowed["fall"]) if slowed["fall"] else None
                texts += [estimated(fall, "{:+.4f}"), number(slowed["ratio"], "{:.1f}")]
                rows.append([variant, f"{whose}, {name}", *texts])
    columns = ["variant", "loss and phases", *phases, "first less last", "ratio"]
    return pd.DataFrame(rows, columns=columns)


def _model_day(correlations: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    for name, ours in correlations.items():
        what = f"correlation of tau_day with {name}"
        text, theirs = correlation(ours["r"], ours["p"]), correlation(*paper.MODEL_DAY[name])
        yield what, minus(text), minus(theirs), f"{ours['pairs']} tasks"


def _training_time(part: Part, backbones: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    runs = Counter((run.backbone, run.outcome["method"]) for run in part.finished)
    for backbone, minutes in backbones.items():
        published = paper.TRAINING_TIME.get(backbone, {})
        for method, value in minutes.items():
            what = f"{method}, {backbone}: minutes an epoch"
            ours = number(value, "{:.2g}" if value < 1 else "{:.1f}")
            theirs = number(published.get(method), "{:.1f}")
            yield what, ours, theirs, plural(runs[backbone, method], "run")


def _doses(areas: Mapping[str, Mapping[str, Estimate]]) -> Iterator[Finding]:
    for name, scores in areas.items():
        for score, mean in scores.items():
            what = f"{name}: {score.upper()}, mean over doses"
            form = "{:.1f}" if score == "op" and "less" not in name else "{:+.1f}"
            yield what, estimated(mean, form), NOTHING, plural(mean.runs, "run")
