"""What the paper claims and what our runs say to it: the first part of RESULTS.md.

A claim is a difference of the paper's tables: a variant against the reference of its table, on one
benchmark. The runs of a sweep are committed by copying its report.json to
experiments/results/<name>-<scale>/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from forever.report.format import markdown_table
from forever.runs.directory import read_json
from forever.sweeps import published as paper
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import SCALES, named_run
from forever.sweeps.sweep import Sweep

HEAD = ("claim", "ours", "published", "status", "scale", "runs")
_SIGNIFICANT = 0.05
_WEAK = 0.5  # a correlation that explains less than a quarter of the variance

Report = Mapping[str, Any]  # the content of report.json


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


# What the statuses come down to.
OUTCOMES = {
    "reproduced": (Status.REPRODUCED,),
    "not shown": (Status.NO_DIFFERENCE, Status.TOO_WIDE, Status.NO_CORRELATION,
                  Status.TOO_FEW_TASKS),
    "contradicted": (Status.OPPOSITE, Status.THEY_DIFFER, Status.OTHER_CORRELATION),
    "not judged": (Status.NOT_JUDGED, Status.MEASURED, Status.AS_FINETUNING),
}  # fmt: skip

_OF_AGREEMENT = {
    "agrees": Status.REPRODUCED,
    "opposite": Status.OPPOSITE,
    "not shown": Status.NO_DIFFERENCE,
    "not equal": Status.THEY_DIFFER,
    "too wide": Status.TOO_WIDE,
    "": Status.NOT_JUDGED,
}


class Answer(NamedTuple):
    """What one report says to a claim, and how many runs say it."""

    ours: str
    status: Status
    runs: int


@dataclass(frozen=True)
class Question:
    """A claim as the paper makes it.

    Attributes:
        table: the sweep that answers it.
        answers: what a report says to it, which may be nothing.
    """

    table: str
    text: str
    published: str
    answers: Callable[[Report], Iterator[Answer]]


@dataclass(frozen=True)
class Claim:
    """A row of the ledger: a claim and one answer, or none if nobody tried."""

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


def read_claims(folder: Path) -> list[Claim]:
    """Every claim, with what the reports in the folders of `folder` say to it."""
    return claims([read_json(path) for path in sorted(folder.glob("*/report.json"))])


def claims(reports: Sequence[Report]) -> list[Claim]:
    """Every claim, once for each answer."""
    found: list[Claim] = []
    for question in questions():
        asked = Claim(question.table, question.text, question.published)
        before = len(found)
        for report in reports:
            for ours, status, runs in question.answers(report):
                told = (asked.table, asked.text, asked.published, ours, status, str(runs))
                found.append(Claim(*told, report))
        if len(found) == before:
            found.append(asked)
    return found


def questions() -> Iterator[Question]:
    for name in paper.TABLES:
        yield from _differences(name)
    yield _forgetting()
    yield from _correlations()
    yield from _times()


# ---- differences between variants


def _sweep(name: str) -> Sweep:
    return load_sweep(name).expand(named_run(SCALES["paper"]))


def _differences(name: str) -> Iterator[Question]:
    """Each variant of a table less its reference, as far as the paper's numbers are known."""
    sweep, tables = _sweep(name), paper.TABLES[name]
    references: dict[str, str] = {}
    for variant in sweep.variants:
        other = sweep.references.get(variant, sweep.reference)
        references[sweep.paper.get(variant, variant)] = sweep.paper.get(other, other)
    for benchmark, rows in tables.items():
        for variant, row in rows.items():
            reference = references[variant]
            if variant == reference or reference not in rows:
                continue
            base = rows[reference]
            text = f"{variant} less {reference}"
            published = f"OP {row.op - base.op:+.1f}"
            if row.bwt is not None and base.bwt is not None:
                published += f"; BWT {row.bwt - base.bwt:+.1f}"
            place, pair = (name, benchmark), (variant, reference)
            yield Question(
                name,
                f"{benchmark}: {text}" if len(tables) > 1 else text,
                published,
                partial(_answer_difference, place, pair, row.op - base.op),
            )


def _answer_difference(
    place: tuple[str, str], pair: tuple[str, str], published: float, report: Report
) -> Iterator[Answer]:
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
                yield Answer(ours, _status(published, row), row["difference"]["runs"])


def _status(published: float, row: Mapping[str, Any]) -> Status:
    if row.get("idle"):
        return Status.AS_FINETUNING
    difference, verdict = row["difference"], row["verdict"]
    # Bounds are outside the corrected comparison; their interval alone says on which side they are.
    # From one run nothing can be said, however many rows it answered.
    if row["bound"] and difference["runs"] > 1:
        verdict = {1: "win", 0: "tie", -1: "loss"}[_side(difference)]
    agreement = paper.agreement(published, verdict, difference["low"], difference["high"])
    return _OF_AGREEMENT[agreement]


def _side(estimate: Mapping[str, float]) -> int:
    """Of zero: 1 if the interval is above it, -1 if below, 0 if it holds zero."""
    return (estimate["low"] > 0) - (estimate["high"] < 0)


def _interval(estimate: Mapping[str, float], digits: int = 1) -> str:
    value, low, high = (f"{estimate[key]:+.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


# ---- findings


def _analyses(report: Report, name: str) -> Iterator[Mapping[str, Any]]:
    if report["name"] == name:
        for part in report["parts"]:
            if name in part["analyses"]:
                yield part["analyses"][name]


def _forgetting() -> Question:
    text = "forgetting slows down within a task: rate of the first phase less the last's (rates)"
    rates = paper.FORGETTING_RATE
    published = f"{rates[0] - rates[-1]:+.4f} ({_rates(rates)})"
    return Question("forgetting_rate", text, published, _answer_forgetting)


def _answer_forgetting(report: Report) -> Iterator[Answer]:
    """The whole of the paper's table at its scale; smaller tasks have fewer phases, of which two
    tell a direction."""
    statuses = {1: Status.REPRODUCED, 0: Status.NO_DIFFERENCE, -1: Status.OPPOSITE}
    for found in _analyses(report, "forgetting_rate"):
        if "finetune" not in found:
            continue
        rates, fall = found["finetune"]["rates"], found["finetune"]["fall"]
        whole = len(rates) == len(paper.FORGETTING_RATE) or report["scale"] != "paper"
        status = statuses[_side(fall)] if fall and whole else Status.NOT_JUDGED
        ours = f"({_rates(rates)})"
        if fall:
            ours = f"{_interval(fall, 4)} {ours}"
        yield Answer(ours, status, report["finished"])


def _rates(values: Sequence[float]) -> str:
    return ", ".join(f"{rate:.4f}" for rate in values)


def _correlations() -> Iterator[Question]:
    for name, (r, p) in paper.MODEL_DAY.items():
        published = f"r = {r:.2f}" if p is None else f"r = {r:.2f}, p = {p:.4f}"
        text = f"correlation of tau_day with {name}"
        yield Question("model_day", text, published, partial(_answer_correlation, name))


def _answer_correlation(name: str, report: Report) -> Iterator[Answer]:
    for found in _analyses(report, "model_day"):
        if name in found:
            ours = found[name]
            text = f"r = {ours['r']:.2f}, p = {ours['p']:.4f}, {ours['pairs']} pairs"
            r, p = paper.MODEL_DAY[name]
            yield Answer(text, _correlated(r, p, ours), report["finished"])


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
    room = 1.96 / math.sqrt(ours["pairs"] - 3) if ours["pairs"] > 3 else math.inf
    z = math.atanh(ours["r"])
    weak = all(abs(math.tanh(end)) < _WEAK for end in (z - room, z + room))
    return Status.REPRODUCED if weak else Status.TOO_FEW_TASKS


def _times() -> Iterator[Question]:
    """Minutes depend on the machine; what a method costs beside MixReplay does so less."""
    for backbone, minutes in paper.TRAINING_TIME.items():
        for method, value in minutes.items():
            if method != "mix_replay":
                text = f"an epoch of {method} as a multiple of mix_replay's, {backbone}"
                published = f"{value / minutes['mix_replay']:.2f}"
                answer = partial(_answer_time, backbone, method)
                yield Question("training_time", text, published, answer)


def _answer_time(backbone: str, method: str, report: Report) -> Iterator[Answer]:
    for found in _analyses(report, "training_time"):
        for name, minutes in found.items():
            stands_for = name == backbone or report["scale"] != "paper"
            if stands_for and {method, "mix_replay"} <= minutes.keys():
                ratio = f"{minutes[method] / minutes['mix_replay']:.2f}"
                yield Answer(ratio, Status.MEASURED, report["finished"])


# ---- as Markdown


def tally(found: Sequence[Claim]) -> list[str]:
    """How many claims were answered at each scale, and how."""
    rows: list[list[str]] = []
    for scale in SCALES:
        statuses = [claim.status for claim in found if claim.scale == scale]
        if statuses:
            counts = [sum(s in of_outcome for s in statuses) for of_outcome in OUTCOMES.values()]
            rows.append([scale, str(len(statuses)), *map(str, counts)])
    texts = {(claim.table, claim.text) for claim in found}
    answered = {(claim.table, claim.text) for claim in found if claim.report}
    some = f"{len(answered)} of {len(texts)} claims have an answer"
    if not any(claim.scale == "paper" for claim in found):
        some += ", none at full scale, which needs a GPU"
    table = [*markdown_table(("scale", "answers", *OUTCOMES), rows), ""] if rows else []
    return [*table, f"{some}.", ""]


def sections(found: Sequence[Claim]) -> list[str]:
    """Claims as Markdown, a heading and a table a sweep, what was tried first."""
    tables: dict[str, list[Claim]] = {}
    for claim in found:
        tables.setdefault(claim.table, []).append(claim)
    tried = {name: any(claim.report for claim in own) for name, own in tables.items()}
    lines: list[str] = []
    for name in sorted(tables, key=lambda name: not tried[name]):
        write = _answers if tried[name] else _not_attempted
        lines += [f"### {name}", "", *write(name, tables[name])]
        if unknown := _unknown(name):
            lines += [f"The paper's numbers of {'; '.join(unknown)} are not known here.", ""]
    return lines


def _not_attempted(name: str, found: Sequence[Claim]) -> list[str]:
    table = markdown_table(("claim", "published"), [(c.text, c.published) for c in found])
    return [f"Not attempted: `forever sweep {name} --scale paper`.", "", *table, ""]


def _answers(name: str, found: Sequence[Claim]) -> list[str]:
    """The table of a sweep that was tried, and below it where the numbers come from."""
    rows: list[tuple[str, ...]] = []
    reports: dict[int, Report] = {}
    for c in sorted(found, key=lambda claim: claim.report is None):
        rows.append((c.text, c.ours, c.published, c.status.value, c.scale, c.runs))
        if c.report:
            reports[id(c.report)] = c.report
    lines = [*markdown_table(HEAD, rows), ""]
    for report in reports.values():
        where = "; ".join(", ".join(report[key]) for key in ("revisions", "hardware"))
        lines.append(f"- {report['scale']}, {where}:")
        lines += [f"  `{command}`" for command in report["commands"]]
    return [*lines, ""]


def _unknown(name: str) -> list[str]:
    """The variants of a paper's table of which no number is known here."""
    if name not in paper.TABLES:
        return []
    sweep = _sweep(name)
    known = {variant for rows in paper.TABLES[name].values() for variant in rows}
    return [variant for variant in sweep.variants if sweep.paper.get(variant, variant) not in known]
