"""What the paper claims and what our runs say to it, as RESULTS.md shows it.

A claim is a difference of the paper's tables: a variant against the reference of its table, on one
benchmark. The runs of a sweep are committed by copying its report.json to
experiments/results/<name>-<scale>/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from forever.runs.directory import read_json
from forever.sweeps import published as paper
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import SCALES, named_run

_SIGNIFICANT = 0.05
_WEAK = 0.5  # a correlation that explains less than a quarter of the variance

Report = Mapping[str, Any]  # the content of report.json
Answers = Iterator[tuple[str, "Status", int]]  # our number, what it says, and of how many runs


class Status(Enum):
    """What our runs say to a claim, in the words of the ledger."""

    REPRODUCED = "reproduced"
    OPPOSITE = "not reproduced: opposite"
    NO_DIFFERENCE = "not reproduced: no difference shown"
    THEY_DIFFER = "not reproduced: they differ"
    TOO_WIDE = "no difference shown: interval too wide"
    OTHER_CORRELATION = "not reproduced"
    NO_CORRELATION = "not reproduced: no correlation shown"
    TOO_FEW_TASKS = "no correlation shown: too few tasks"
    MEASURED = "measured"
    NOT_JUDGED = "not judged"
    AS_FINETUNING = "not judged: ends as fine-tuning does, to the last digit"
    NOT_ATTEMPTED = "not attempted"


_OF_AGREEMENT = {
    "agrees": Status.REPRODUCED,
    "opposite": Status.OPPOSITE,
    "not shown": Status.NO_DIFFERENCE,
    "not equal": Status.THEY_DIFFER,
    "too wide": Status.TOO_WIDE,
    "": Status.NOT_JUDGED,
}


@dataclass(frozen=True)
class Claim:
    """A row of the ledger: a claim as the paper makes it and one answer, or none if nobody tried.

    Attributes:
        table: the sweep that answers it.
        report: the report that the answer is from.
    """

    table: str
    text: str
    published: str
    ours: str = ""
    status: Status = Status.NOT_ATTEMPTED
    runs: str = ""
    report: Report | None = None

    @property
    def scale(self) -> str:
        return self.report["scale"] if self.report else ""


# A claim without an answer, and what a report says to it.
Asked = tuple[Claim, Callable[[Report], Answers]]


def read_claims(folder: Path) -> list[Claim]:
    """Every claim, with what the reports in the folders of `folder` say to it."""
    return claims([read_json(path) for path in sorted(folder.glob("*/report.json"))])


def claims(reports: Sequence[Report]) -> list[Claim]:
    """Every claim, once for each answer."""
    rows: list[Claim] = []
    for claim, answers in chain(*map(_differences, paper.TABLES), _findings()):
        answered: list[Claim] = []
        for report in reports:
            for ours, status, runs in answers(report):
                known = {"ours": ours, "status": status, "runs": str(runs), "report": report}
                answered.append(replace(claim, **known))
        rows += answered or [claim]
    return rows


# ---- differences between variants


def _differences(name: str) -> Iterator[Asked]:
    """Each variant of a table less its reference, as far as the paper's numbers are known."""
    sweep, tables = load_sweep(name).expand(named_run(SCALES["paper"])), paper.TABLES[name]
    references: dict[str, str] = {}
    for variant in sweep.variants:
        other = sweep.references.get(variant, sweep.reference)
        references[sweep.paper.get(variant, variant)] = sweep.paper.get(other, other)
    for benchmark, rows in tables.items():
        where = f"{benchmark}: " if len(tables) > 1 else ""
        for variant, row in rows.items():
            reference = references[variant]
            if variant == reference or reference not in rows:
                continue
            base = rows[reference]
            published = f"OP {row.op - base.op:+.1f}"
            if row.bwt is not None and base.bwt is not None:
                published += f"; BWT {row.bwt - base.bwt:+.1f}"
            claim = Claim(name, f"{where}{variant} less {reference}", published)
            place, pair = (name, benchmark), (variant, reference)
            yield claim, partial(_answer_difference, place, pair, row.op - base.op)


def _answer_difference(
    place: tuple[str, str], pair: tuple[str, str], published: float, report: Report
) -> Answers:
    """Of the rows that stand for a variant of the paper and were compared with what stands for its
    reference.

    Args:
        place: the paper's table and the benchmark.
        pair: the variant and its reference.
    """
    for part in report["parts"]:
        if paper.table_of(report["name"], part["benchmark"]) != place:
            continue
        in_paper = {row["variant"]: row["paper_variant"] for row in part["rows"]}
        for row in part["rows"]:
            compared = (row["paper_variant"], in_paper.get(row["reference"]))
            if compared == pair and row["difference"]:
                ours = f"OP {_interval(row['difference'])}"
                if row["bwt_difference"]:
                    ours += f"; BWT {_interval(row['bwt_difference'])}"
                yield ours, _status(published, row), row["difference"]["runs"]


def _status(published: float, row: Mapping[str, Any]) -> Status:
    if row.get("idle"):
        return Status.AS_FINETUNING
    difference, verdict = row["difference"], row["verdict"]
    # Bounds are outside the corrected comparison; their interval alone says on which side they are.
    # From one run nothing can be said, however many rows it answered.
    if row["bound"] and difference["runs"] > 1:
        verdict = {1: "win", 0: "tie", -1: "loss"}[_side(difference)]
    return _OF_AGREEMENT[paper.agreement(published, verdict, difference["low"], difference["high"])]


def _side(estimate: Mapping[str, float]) -> int:
    """Of zero: 1 if the interval is above it, -1 if below, 0 if it holds zero."""
    return (estimate["low"] > 0) - (estimate["high"] < 0)


def _interval(estimate: Mapping[str, float], digits: int = 1) -> str:
    value, low, high = (f"{estimate[key]:+.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


# ---- findings


def _analyses(report: Report, name: str) -> list[Mapping[str, Any]]:
    """The analyses of a report on the sweep that they are named after."""
    if report["name"] != name:
        return []
    return [part["analyses"][name] for part in report["parts"] if name in part["analyses"]]


def _findings() -> Iterator[Asked]:
    text = "forgetting slows down within a task: rate of the first phase less the last's (rates)"
    rates = paper.FORGETTING_RATE
    published = f"{rates[0] - rates[-1]:+.4f} ({_rates(rates)})"
    yield Claim("forgetting_rate", text, published), _answer_forgetting
    for name, (r, p) in paper.MODEL_DAY.items():
        published = f"r = {r:.2f}"
        if p is not None:
            published += f", p = {p:.4f}"
        claim = Claim("model_day", f"correlation of tau_day with {name}", published)
        yield claim, partial(_answer_correlation, name)
    # Minutes depend on the machine; what a method costs beside MixReplay does so less.
    for backbone, minutes in paper.TRAINING_TIME.items():
        for method in minutes:
            if method != "mix_replay":
                text = f"an epoch of {method} as a multiple of mix_replay's, {backbone}"
                claim = Claim("training_time", text, _multiple(minutes, method))
                yield claim, partial(_answer_time, backbone, method)


def _answer_forgetting(report: Report) -> Answers:
    """The whole of the paper's table at its scale; smaller tasks have fewer phases, of which two
    tell a direction."""
    statuses = {1: Status.REPRODUCED, 0: Status.NO_DIFFERENCE, -1: Status.OPPOSITE}
    for variants in _analyses(report, "forgetting_rate"):
        if "finetune" in variants:
            rates, fall = variants["finetune"]["rates"], variants["finetune"]["fall"]
            ours, status = f"({_rates(rates)})", Status.NOT_JUDGED
            if fall:
                ours = f"{_interval(fall, 4)} {ours}"
                if len(rates) == len(paper.FORGETTING_RATE) or report["scale"] != "paper":
                    status = statuses[_side(fall)]
            yield ours, status, report["finished"]


def _rates(values: Sequence[float]) -> str:
    return ", ".join(f"{rate:.4f}" for rate in values)


def _answer_correlation(name: str, report: Report) -> Answers:
    for correlations in _analyses(report, "model_day"):
        if name in correlations:
            ours = correlations[name]
            text = f"r = {ours['r']:.2f}, p = {ours['p']:.4f}, {ours['pairs']} pairs"
            yield text, _correlated(*paper.MODEL_DAY[name], ours), report["finished"]


def _correlated(r: float, p: float | None, ours: Mapping[str, float]) -> Status:
    """That there is no correlation is shown by an interval (Fisher's z), not by a large p.

    Args:
        r, p: the published ones.
    """
    significant = p is not None and p < _SIGNIFICANT
    if ours["p"] < _SIGNIFICANT:
        same_sign = (ours["r"] > 0) == (r > 0)
        return Status.REPRODUCED if significant and same_sign else Status.OTHER_CORRELATION
    if significant:
        return Status.NO_CORRELATION
    if ours["pairs"] <= 3:  # no width of an interval can be computed
        return Status.TOO_FEW_TASKS
    farthest = abs(math.atanh(ours["r"])) + 1.96 / math.sqrt(ours["pairs"] - 3)
    return Status.REPRODUCED if math.tanh(farthest) < _WEAK else Status.TOO_FEW_TASKS


def _multiple(minutes: Mapping[str, float], method: str) -> str:
    return f"{minutes[method] / minutes['mix_replay']:.2f}"


def _answer_time(backbone: str, method: str, report: Report) -> Answers:
    for analysis in _analyses(report, "training_time"):
        for name, minutes in analysis.items():
            stands_for = name == backbone or report["scale"] != "paper"
            if stands_for and {method, "mix_replay"} <= minutes.keys():
                yield _multiple(minutes, method), Status.MEASURED, report["finished"]


def unknown(name: str) -> list[str]:
    """The variants of a paper's table of which no number is known here."""
    if name not in paper.TABLES:
        return []
    known = {variant for rows in paper.TABLES[name].values() for variant in rows}
    variants = load_sweep(name).all_variants().items()
    return [key for key, variant in variants if key not in known]
