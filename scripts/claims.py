"""What the paper claims and what our runs say to it, as RESULTS.md shows it.

A claim is a difference of the paper's tables in OP or in BWT (a variant against the reference of
its table, on one benchmark) or a finding. What answers it is the report.json of a sweep. The paper
compares at its own budgets, so here a difference is judged whatever the variants replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple

from forever.report.analyses import correlation
from forever.report.statistics import ALPHA, holm
from forever.sweeps import published as paper
from forever.sweeps.files import load_sweep
from forever.sweeps.parts import Published

_WEAK = 0.5  # a correlation that explains less than a quarter of the variance

Side = Literal["win", "tie", "loss"]
Report = Mapping[str, Any]  # the content of report.json
Key = tuple[str, ...]  # the sweep that answers a claim, and what in it


class Status(NamedTuple):
    """What our runs say to a claim, in the words of the ledger, and what that comes down to."""

    text: str
    outcome: str


REPRODUCED = Status("reproduced", "reproduced")
CONTRADICTED = Status("contradicted", "contradicted")
NOT_SHOWN = Status("not reproduced: no difference shown", "not shown")
NO_CORRELATION = Status("not reproduced: no correlation shown", "not shown")
TOO_FEW_TASKS = Status("no correlation shown: too few tasks", "not shown")
MEASURED = Status("measured", "not judged")
NOT_JUDGED = Status("not judged", "not judged")
AS_FINETUNING = Status("not judged: ends as fine-tuning does, to the last digit", "not judged")
DEGENERATE = Status("degenerate here: fewer than half of its days come", "not judged")
NOT_ATTEMPTED = Status("not attempted", "")

_OF_AGREEMENT = {
    "agrees": REPRODUCED,
    "not equal": Status("contradicted: they differ", "contradicted"),
    "": NOT_JUDGED,
}
# What is compared, by the name of its difference in a row, and the p-value of that.
MEASURES = {"op": ("difference", "p"), "bwt": ("bwt_difference", "bwt_p")}
_ROUNDING = 1e-9

# A sweep that stands for others: the tables its variants are in, with the names that differ there.
_STANDS_FOR: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "language_model": {"components": {}, "main_results": {"base": "forever"}}
}

# To which claim, our number, what it says, of how many runs.
Answer = tuple[Key, str, Status, int]
Answers = Iterator[Answer]


@dataclass(frozen=True)
class Claim:
    """A row of the ledger: a claim as the paper makes it and one answer, or none if nobody tried.

    `origin` says where the answer's runs were made.
    """

    key: Key
    claim: str
    published: str
    ours: str = ""
    status: Status = NOT_ATTEMPTED
    scale: str = ""
    runs: str = ""
    origin: str = ""


def claims(reports: Sequence[Report]) -> list[Claim]:
    """Every claim of the tables and of the findings, once for each answer."""
    return answered((*_differences(), *_findings()), reports, _answers)


def answered(
    claims: Iterable[Claim], reports: Sequence[Report], answers_of: Callable[[Report], Answers]
) -> list[Claim]:
    """Some claims, once for each answer that reports have."""
    asked = {claim.key: claim for claim in claims}
    answers: dict[Key, list[Claim]] = {key: [] for key in asked}
    for report in reports:
        where = {"scale": report["scale"], "origin": _origin(report)}
        for key, ours, status, runs in answers_of(report):
            if key in asked:
                answer = replace(asked[key], ours=ours, status=status, runs=str(runs), **where)
                answers[key].append(answer)
    rows: list[Claim] = []
    for key, claim in asked.items():
        rows += answers[key] or [claim]
    return rows


def _answers(report: Report) -> Answers:
    for part in report["parts"]:
        yield from _compared(report, part)
        yield from _analysed(report, part)


def _origin(report: Report) -> str:
    machines = f"{', '.join(report['revisions'])}; {', '.join(report['hardware'])}"
    commands = [f"  `{command}`" for command in report["commands"]]
    return "\n".join([f"- {report['scale']}, {machines}:", *commands])


def _differences() -> Iterator[Claim]:
    """Each variant of a table less its reference, as far as the paper's numbers are known."""
    for name, tables in paper.TABLES.items():
        file = load_sweep(name)
        for benchmark, rows in tables.items():
            where = f"{benchmark}: " if len(tables) > 1 else ""
            for variant, measure in product(rows, MEASURES):
                reference = file.variants[variant].reference or file.reference
                published = _less(rows, variant, reference, measure)
                if published is not None and variant != reference:
                    key = (name, benchmark, variant, reference, measure)
                    text = f"{where}{variant} less {reference}, {measure.upper()}"
                    yield Claim(key, text, f"{published:+.1f}")


def _less(
    rows: Mapping[str, Published], variant: str, reference: str, measure: str
) -> float | None:
    """A published difference; None if one of its numbers is not known."""
    ours, base = (getattr(rows.get(name), measure, None) for name in (variant, reference))
    return None if ours is None or base is None else ours - base


def _compared(report: Report, part: Mapping[str, Any]) -> Answers:
    """Answers of the rows that were compared and stand for a variant of the paper."""
    for sweep, names in _STANDS_FOR.get(report["name"], {report["name"]: {}}).items():
        place = paper.table_of(sweep, part["benchmark"])
        if place is not None:
            yield from _answers_of_table(*place, part["rows"], names)


def _answers_of_table(
    name: str, benchmark: str, rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]
) -> Answers:
    """Answers to one table, in which some variants have other `names`."""
    published = paper.TABLES[name][benchmark]
    in_paper: dict[str, str] = {}
    for row in rows:
        in_paper[row["variant"]] = names.get(row["paper_variant"], row["paper_variant"])
    degenerate = {row["variant"] for row in rows if row.get("degenerate")}
    for measure, (difference, _) in MEASURES.items():
        shown = sides(rows, measure)
        for row in rows:
            estimate = row[difference]
            variant, reference = in_paper[row["variant"]], in_paper.get(row["reference"], "")
            theirs = _less(published, variant, reference, measure)
            if estimate and theirs is not None:
                status = judged(theirs, shown[row["variant"]], estimate)
                if degenerate & {row["variant"], row["reference"]}:
                    status = DEGENERATE
                if row.get("idle"):
                    status = AS_FINETUNING
                key = (name, benchmark, variant, reference, measure)
                yield key, interval(estimate), status, estimate["runs"]


def sides(rows: Sequence[Mapping[str, Any]], measure: str) -> dict[str, Side | None]:
    """On which side of zero the differences of a report are shown to be, by variant.

    That is after Holm's correction for all that are no bounds. Only the interval says it of bounds
    and of a sweep in rounds, whose interval is corrected. From one run nothing can be said, however
    many rows it answered: None.
    """
    difference, p = MEASURES[measure]
    shown: dict[str, Side | None] = {}
    corrected: list[Mapping[str, Any]] = []
    for row in rows:
        estimate = row[difference]
        shown[row["variant"]] = None
        if estimate and estimate["runs"] > 1:
            shown[row["variant"]] = side(estimate)
            if row[p] is not None and not row["bound"]:
                corrected.append(row)
    for row, p_holm in zip(corrected, holm([row[p] for row in corrected]), strict=True):
        if p_holm > ALPHA:
            shown[row["variant"]] = "tie"
    return shown


def judged(published: float, shown: Side | None, ours: Mapping[str, float]) -> Status:
    """The status of a difference: `shown` says on which side of zero ours is.

    It contradicts the paper if its interval excludes zero on the other side.
    """
    agreement = paper.agreement(published, shown, ours["low"], ours["high"])
    if agreement in _OF_AGREEMENT:
        return _OF_AGREEMENT[agreement]
    other: Side = "loss" if published > 0 else "win"
    if abs(published) >= paper.EQUAL and side(ours) == other:
        return CONTRADICTED
    return unshown(published, ours)


def unshown(published: float, ours: Mapping[str, float], digits: int = 1) -> Status:
    """The status of a difference that is not shown: an interval that is wider to each side than the
    published difference could not have shown it."""
    half_width = (ours["high"] - ours["low"]) / 2
    if half_width <= abs(published) + _ROUNDING:
        return NOT_SHOWN
    return Status(f"cannot tell: ±{half_width:.{digits}f}", "cannot tell")


def side(estimate: Mapping[str, float]) -> Side:
    """On which side of zero the interval lies."""
    if estimate["low"] > 0:
        return "win"
    return "loss" if estimate["high"] < 0 else "tie"


def interval(estimate: Mapping[str, float], digits: int = 1) -> str:
    value, low, high = (f"{estimate[key]:+.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _findings() -> Iterator[Claim]:
    rates = paper.FORGETTING_RATE
    text = "forgetting slows down within a task: rate of the first phase less the last's (rates)"
    published = f"{rates[0] - rates[-1]:+.4f} ({_rates(rates)})"
    yield Claim(("forgetting_rate",), text, published)
    for name, numbers in paper.MODEL_DAY.items():
        text = f"correlation of tau_day with {name}"
        yield Claim(("model_day", name), text, correlation(*numbers))
    # Minutes depend on the machine; what a method costs beside MixReplay does so less.
    for backbone, minutes in paper.TRAINING_TIME.items():
        for method in minutes:
            if method != "mix_replay":
                text = f"an epoch of {method} as a multiple of mix_replay's, {backbone}"
                key = "training_time", backbone, method
                yield Claim(key, text, _multiple(minutes, method))


def _analysed(report: Report, part: Mapping[str, Any]) -> Answers:
    """Answers of the analysis after which the sweep is named."""
    name, runs = report["name"], report["finished"]
    analysis, is_small = part["analyses"].get(name, {}), report["scale"] != "paper"
    if name == "forgetting_rate" and "finetune" in analysis:
        yield (name,), *_slowing(is_small, **analysis["finetune"]), runs
    if name == "model_day":
        for other, numbers in analysis.items():
            text = f"{correlation(numbers['r'], numbers['p'])}, {numbers['pairs']} pairs"
            yield (name, other), text, _correlated(*paper.MODEL_DAY[other], numbers), runs
    if name == "training_time":
        for own, minutes in analysis.items():
            for backbone, method in product(paper.TRAINING_TIME, minutes):
                if "mix_replay" in minutes and (own == backbone or is_small):
                    text = _multiple(minutes, method)
                    yield (name, backbone, method), text, MEASURED, runs


def _slowing(
    is_small: bool, rates: Sequence[float], fall: Mapping[str, float] | None
) -> tuple[str, Status]:
    """The whole of the paper's table at its scale; smaller tasks have fewer phases, of which two
    tell a direction."""
    ours, status = f"({_rates(rates)})", NOT_JUDGED
    if fall is not None:
        ours = f"{interval(fall, 4)} {ours}"
        if is_small or len(rates) == len(paper.FORGETTING_RATE):
            status = slows_down(fall)
    return ours, status


def slows_down(fall: Mapping[str, float]) -> Status:
    """Whether forgetting does, as `judged`; no difference in nats is so small that it is none."""
    shown = {"win": REPRODUCED, "loss": CONTRADICTED}
    published = paper.FORGETTING_RATE[0] - paper.FORGETTING_RATE[-1]
    return shown.get(side(fall)) or unshown(published, fall, digits=4)


def _rates(values: Sequence[float]) -> str:
    return ", ".join(f"{rate:.4f}" for rate in values)


def _correlated(r: float, p: float, ours: Mapping[str, float]) -> Status:
    """What ours says to the published r and p. That there is no correlation is shown by an interval
    (Fisher's z), not by a large p."""
    significant = p < ALPHA
    if ours["p"] < ALPHA:
        same_sign = (ours["r"] > 0) == (r > 0)
        return REPRODUCED if significant and same_sign else CONTRADICTED
    if significant:
        return NO_CORRELATION
    if ours["pairs"] <= 3:  # no width of an interval can be computed
        return TOO_FEW_TASKS
    farthest = abs(math.atanh(ours["r"])) + 1.96 / math.sqrt(ours["pairs"] - 3)
    return REPRODUCED if math.tanh(farthest) < _WEAK else TOO_FEW_TASKS


def _multiple(minutes: Mapping[str, float], method: str) -> str:
    return f"{minutes[method] / minutes['mix_replay']:.2f}"
