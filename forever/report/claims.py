"""What the paper claims and what our runs say to it, as RESULTS.md shows it.

A claim is a difference of the paper's tables (a variant against the reference of its table, on one
benchmark) or a finding. The runs of a sweep are committed by copying its report.json to
experiments/results/<name>-<scale>/.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from forever.report.analyses import correlation
from forever.sweeps import published as paper
from forever.sweeps.files import load_sweep

_SIGNIFICANT = 0.05
_WEAK = 0.5  # a correlation that explains less than a quarter of the variance

Report = Mapping[str, Any]  # the content of report.json
Key = tuple[str, ...]  # the sweep that answers a claim, and what in it


class Status(NamedTuple):
    """What our runs say to a claim, in the words of the ledger, and what that comes down to."""

    text: str
    outcome: str


REPRODUCED = Status("reproduced", "reproduced")
OTHER_CORRELATION = Status("not reproduced", "contradicted")
NO_CORRELATION = Status("not reproduced: no correlation shown", "not shown")
TOO_FEW_TASKS = Status("no correlation shown: too few tasks", "not shown")
MEASURED = Status("measured", "not judged")
NOT_JUDGED = Status("not judged", "not judged")
AS_FINETUNING = Status("not judged: ends as fine-tuning does, to the last digit", "not judged")
NOT_ATTEMPTED = Status("not attempted", "")

_OF_AGREEMENT = {
    "agrees": REPRODUCED,
    "opposite": Status("not reproduced: opposite", "contradicted"),
    "not shown": Status("not reproduced: no difference shown", "not shown"),
    "not equal": Status("not reproduced: they differ", "contradicted"),
    "too wide": Status("no difference shown: interval too wide", "not shown"),
    "": NOT_JUDGED,
}
# Where an interval could not show the published difference, what our runs do show is said beside.
_SHOWN_BESIDE = {"opposite": "; the opposite sign is shown", "not equal": "; a difference is shown"}
_ROUNDING = 1e-9

# To which claim, our number, what it says, of how many runs.
Answer = tuple[Key, str, Status, int]


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
    """Every claim, once for each answer."""
    asked = {claim.key: claim for claim in (*_differences(), *_findings())}
    answers: dict[Key, list[Claim]] = {key: [] for key in asked}
    for report in reports:
        where = {"scale": report["scale"], "origin": _origin(report)}
        for part in report["parts"]:
            for key, ours, status, runs in (*_compared(report, part), *_analysed(report, part)):
                if key in asked:
                    answer = replace(asked[key], ours=ours, status=status, runs=str(runs), **where)
                    answers[key].append(answer)
    rows: list[Claim] = []
    for key, claim in asked.items():
        rows += answers[key] or [claim]
    return rows


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
            for variant, row in rows.items():
                reference = file.variants[variant].reference or file.reference
                if reference in rows and variant != reference:
                    base = rows[reference]
                    published = f"OP {row.op - base.op:+.1f}"
                    if row.bwt is not None and base.bwt is not None:
                        published += f"; BWT {row.bwt - base.bwt:+.1f}"
                    text = f"{where}{variant} less {reference}"
                    yield Claim((name, benchmark, variant, reference), text, published)


def _compared(report: Report, part: Mapping[str, Any]) -> Iterator[Answer]:
    """Answers of the rows that were compared and stand for a variant of the paper."""
    place = paper.table_of(report["name"], part["benchmark"])
    in_paper = {row["variant"]: row["paper_variant"] for row in part["rows"]}
    for row in part["rows"]:
        if place and row["paper"] and row["difference"]:
            key = (*place, row["paper_variant"], in_paper.get(row["reference"], ""))
            ours = f"OP {_interval(row['difference'])}"
            if row["bwt_difference"]:
                ours += f"; BWT {_interval(row['bwt_difference'])}"
            yield key, ours, _status(row), row["difference"]["runs"]


def _status(row: Mapping[str, Any]) -> Status:
    if row.get("idle"):
        return AS_FINETUNING
    published, difference, verdict = row["paper"]["difference"], row["difference"], row["verdict"]
    # Bounds are outside the corrected comparison; their interval alone says on which side they are.
    # From one run nothing can be said, however many rows it answered.
    if row["bound"] and difference["runs"] > 1:
        verdict = _verdict(difference)
    agreement = paper.agreement(published, verdict, difference["low"], difference["high"])
    return _said(agreement, published, difference)


def _said(
    agreement: str, published: float | None, ours: Mapping[str, float], digits: int = 1
) -> Status:
    """The status of a difference. An interval that is wider to each side than the published
    difference neither reproduces nor fails to, unless it shows the same sign."""
    half_width = (ours["high"] - ours["low"]) / 2
    if agreement in ("", "agrees") or half_width <= abs(published or 0.0) + _ROUNDING:
        return _OF_AGREEMENT[agreement]
    beside = _SHOWN_BESIDE.get(agreement, "")
    outcome = "contradicted" if beside else "cannot tell"
    return Status(f"cannot tell: ±{half_width:.{digits}f}{beside}", outcome)


def _verdict(estimate: Mapping[str, float]) -> str:
    """On which side of zero the interval lies."""
    if estimate["low"] > 0:
        return "win"
    return "loss" if estimate["high"] < 0 else "tie"


def _interval(estimate: Mapping[str, float], digits: int = 1) -> str:
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


def _analysed(report: Report, part: Mapping[str, Any]) -> Iterator[Answer]:
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
        ours = f"{_interval(fall, 4)} {ours}"
        if is_small or len(rates) == len(paper.FORGETTING_RATE):
            published = paper.FORGETTING_RATE[0] - paper.FORGETTING_RATE[-1]
            status = _said(paper.agreement(math.inf, _verdict(fall)), published, fall, digits=4)
    return ours, status


def _rates(values: Sequence[float]) -> str:
    return ", ".join(f"{rate:.4f}" for rate in values)


def _correlated(r: float, p: float | None, ours: Mapping[str, float]) -> Status:
    """What ours says to the published r and p. That there is no correlation is shown by an interval
    (Fisher's z), not by a large p."""
    significant = p is not None and p < _SIGNIFICANT
    if ours["p"] < _SIGNIFICANT:
        same_sign = (ours["r"] > 0) == (r > 0)
        return REPRODUCED if significant and same_sign else OTHER_CORRELATION
    if significant:
        return NO_CORRELATION
    if ours["pairs"] <= 3:  # no width of an interval can be computed
        return TOO_FEW_TASKS
    farthest = abs(math.atanh(ours["r"])) + 1.96 / math.sqrt(ours["pairs"] - 3)
    return REPRODUCED if math.tanh(farthest) < _WEAK else TOO_FEW_TASKS


def _multiple(minutes: Mapping[str, float], method: str) -> str:
    return f"{minutes[method] / minutes['mix_replay']:.2f}"


def unknown(name: str) -> list[str]:
    """The variants of a paper's table of which no number is known here."""
    if name not in paper.TABLES:
        return []
    variants = load_sweep(name).variants.items()
    return [key for key, variant in variants if not variant.published]
