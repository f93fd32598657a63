"""What the paper's tables claim and what our runs say to it, as RESULTS.md shows it.

A claim is a difference in OP or in BWT (a variant against the reference of its table, on one
benchmark); `finding_claims` and `text_claims` have others. What answers it is the report.json of a
sweep. The paper compares at its own budgets, so here a difference is judged whatever the variants
replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple

from forever.stats.compare import ALPHA, holm
from forever.sweeps import published as paper
from forever.sweeps.files import load_sweep
from forever.sweeps.parts import Published

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
    """Every difference of the tables, once for each answer."""
    return answered(_differences(), reports, _answers)


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
