"""What the paper claims and what our runs say to it: the first part of RESULTS.md.

A claim is a difference of the paper's tables: a variant against the reference of its table, on one
benchmark. The runs of a sweep are committed by copying its report.json to
experiments/results/<name>-<scale>/.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import SCALES, named_run
from forever.sweeps.published import (
    FORGETTING_RATE,
    MODEL_DAY,
    TABLES,
    TRAINING_TIME,
    agreement,
    table_of,
)

HEAD = ("claim", "ours", "published", "status", "scale", "runs")
# A verdict's agreement with the paper, in the words of the ledger.
_STATUS = {
    "agrees": "reproduced",
    "opposite": "not reproduced: opposite",
    "not shown": "not reproduced: no difference shown",
    "not equal": "not reproduced: they differ",
    "too wide": "no difference shown: interval too wide",
    "": "not judged",
}

_AS_FINETUNING = "not judged: ends as fine-tuning does, to the last digit"
# What a status comes down to: the first of these that has its beginning.
_OUTCOMES = {
    "reproduced": ("reproduced",),
    "not shown": ("not reproduced: no", "no "),
    "contradicted": ("not reproduced",),
    "not judged": ("not judged", "measured"),
}

_SIGNIFICANT = 0.05
_WEAK = 0.5  # a correlation that explains less than a quarter of the variance


@dataclass(frozen=True)
class Claim:
    """A row of the ledger. `table`: the sweep that answers it; `ours` is empty if nobody tried."""

    table: str
    text: str
    published: str
    ours: str = ""
    status: str = "not attempted"
    scale: str = ""
    report: Mapping[str, Any] | None = None
    runs: str = ""


def read_claims(folder: Path) -> list[Claim]:
    """Every claim, with what the reports in the folders of `folder` say to it."""
    reports = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*/report.json"))
    ]
    return list(claims(reports))


def sections(all_claims: Sequence[Claim]) -> list[str]:
    """Claims as Markdown, a heading and a table a sweep, what was tried first."""
    tables: dict[str, list[Claim]] = {}
    for claim in all_claims:
        tables.setdefault(claim.table, []).append(claim)
    tried = {name: any(claim.report for claim in found) for name, found in tables.items()}
    lines: list[str] = []
    for name, found in sorted(tables.items(), key=lambda item: not tried[item[0]]):
        lines += [f"### {name}", ""]
        lines += (
            _answers(found)
            if tried[name]
            else [f"Not attempted: `forever sweep {name} --scale paper`.", ""]
        )
        lines += (
            []
            if tried[name]
            else [*_table(("claim", "published"), [(c.text, c.published) for c in found]), ""]
        )
        if unknown := _unknown(name):
            lines += [f"The paper's numbers of {'; '.join(unknown)} are not known here.", ""]
    return lines


def tally(found: Sequence[Claim]) -> list[str]:
    """How many claims were answered at each scale, and how."""
    rows: list[Sequence[str]] = []
    for scale in SCALES:
        here = [_outcome(claim.status) for claim in found if claim.scale == scale]
        if here:
            rows.append(
                [scale, str(len(here)), *(str(here.count(outcome)) for outcome in _OUTCOMES)]
            )
    texts = {(claim.table, claim.text) for claim in found}
    answered = {(claim.table, claim.text) for claim in found if claim.report}
    lines = [*_table(("scale", "answers", *_OUTCOMES), rows), ""] if rows else []
    some = f"{len(answered)} of {len(texts)} claims have an answer"
    full = any(claim.scale == "paper" for claim in found)
    return [*lines, f"{some}{'' if full else ', none at full scale, which needs a GPU'}.", ""]


def _outcome(status: str) -> str:
    return next(
        outcome for outcome, beginnings in _OUTCOMES.items() if status.startswith(beginnings)
    )


def _unknown(name: str) -> list[str]:
    """Variants of a paper's table of which no number is known here."""
    if name not in TABLES:
        return []
    sweep = load_sweep(name).expand(named_run(SCALES["paper"]))
    known = {variant for rows in TABLES[name].values() for variant in rows}
    return [variant for variant in sweep.variants if sweep.paper.get(variant, variant) not in known]


def _answers(found: list[Claim]) -> list[str]:
    """The table of a sweep that was tried, and below it where the numbers come from."""
    rows = sorted(found, key=lambda claim: claim.report is None)
    cells = [(c.text, c.ours, c.published, c.status, c.scale, c.runs) for c in rows]
    lines = [*_table(HEAD, cells), ""]
    for report in {id(c.report): c.report for c in rows if c.report}.values():
        where = "; ".join(", ".join(report[key]) for key in ("revisions", "hardware"))
        lines += [
            f"- {report['scale']}, {where}:",
            *(f"  `{command}`" for command in report["commands"]),
        ]
    return [*lines, ""]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") or "–" for cell in row] for row in (head, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def claims(reports: list[Mapping[str, Any]]) -> Iterator[Claim]:
    """Every claim, once for each report that answers it."""
    for name in TABLES:
        yield from _differences(name, reports)
    for name, tell in (
        ("forgetting_rate", _forgetting),
        ("model_day", _model_day),
        ("training_time", _time),
    ):
        yield from tell([report for report in reports if report["name"] == name])


def _differences(name: str, reports: list[Mapping[str, Any]]) -> Iterator[Claim]:
    sweep = load_sweep(name).expand(named_run(SCALES["paper"]))
    references = {
        sweep.paper.get(variant, variant): sweep.paper.get(other, other)
        for variant in sweep.variants
        for other in [sweep.references.get(variant, sweep.reference)]
    }
    for benchmark, rows in TABLES[name].items():
        for variant, paper in rows.items():
            reference = references[variant]
            if variant == reference or reference not in rows:
                continue
            text = f"{benchmark}: " * (len(TABLES[name]) > 1) + f"{variant} less {reference}"
            base = rows[reference]
            published = f"OP {paper.op - base.op:+.1f}"
            if paper.bwt is not None and base.bwt is not None:
                published += f"; BWT {paper.bwt - base.bwt:+.1f}"
            tried = [
                (report, row)
                for report in reports
                for part in report["parts"]
                if table_of(report["name"], part["benchmark"]) == (name, benchmark)
                for row in _compared(part["rows"], variant, reference)
            ]
            if not tried:
                yield Claim(name, text, published)
            for report, row in tried:
                ours = f"OP {_interval(row['difference'])}"
                ours += f"; BWT {_interval(row['bwt_difference'])}" if row["bwt_difference"] else ""
                status = (
                    _AS_FINETUNING
                    if row.get("idle")
                    else _STATUS[_agreement(paper.op - base.op, row)]
                )
                runs = str(row["difference"]["runs"])
                yield Claim(name, text, published, ours, status, report["scale"], report, runs)


def _compared(
    rows: list[Mapping[str, Any]], variant: str, reference: str
) -> Iterator[Mapping[str, Any]]:
    """Rows that stand for a variant of the paper and were compared with what stands for its
    reference."""
    paper = {row["variant"]: row["paper_variant"] for row in rows}
    for row in rows:
        if (
            row["paper_variant"] == variant
            and row["difference"]
            and paper.get(row["reference"]) == reference
        ):
            yield row


def _interval(estimate: Mapping[str, float], digits: int = 1) -> str:
    value, low, high = (f"{estimate[key]:+.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _agreement(published: float, row: Mapping[str, Any]) -> str:
    """Bounds are outside the corrected comparison; their interval alone says on which side they
    are."""
    low, high, runs = (row["difference"][key] for key in ("low", "high", "runs"))
    verdict = row["verdict"]
    if row["bound"] and runs > 1:  # from one run nothing can be said, however many rows it answered
        verdict = "tie" if low <= 0 <= high else "win" if low > 0 else "loss"
    return agreement(published, verdict, low, high)


def _forgetting(reports: list[Mapping[str, Any]]) -> Iterator[Claim]:
    """The whole of the paper's table at its scale; smaller tasks have fewer phases, of which two
    tell a direction."""
    text = "forgetting slows down within a task: rate of the first phase less the last's (rates)"
    fall = FORGETTING_RATE[0] - FORGETTING_RATE[-1]
    published = f"{fall:+.4f} ({_rates(FORGETTING_RATE)})"
    tried = [
        (report, found["finetune"])
        for report, found in _analyses(reports, "forgetting_rate")
        if "finetune" in found
    ]
    if not tried:
        yield Claim("forgetting_rate", text, published)
    for report, found in tried:
        rates, ours, status = found["rates"], found["fall"], "not judged"
        if ours and (len(rates) == len(FORGETTING_RATE) or report["scale"] != "paper"):
            status = _STATUS[
                "agrees" if ours["low"] > 0 else "opposite" if ours["high"] < 0 else "not shown"
            ]
        told = f"{_interval(ours, 4)} " if ours else ""
        yield Claim(
            "forgetting_rate",
            text,
            published,
            f"{told}({_rates(rates)})",
            status,
            report["scale"],
            report,
            str(report["finished"]),
        )


def _rates(values: Sequence[float]) -> str:
    return ", ".join(f"{rate:.4f}" for rate in values)


def _model_day(reports: list[Mapping[str, Any]]) -> Iterator[Claim]:
    for name, (r, p) in MODEL_DAY.items():
        text = f"correlation of tau_day with {name}"
        published = f"r = {r:.2f}" + (f", p = {p:.4f}" if p is not None else "")
        tried = [
            (report, found[name])
            for report, found in _analyses(reports, "model_day")
            if name in found
        ]
        if not tried:
            yield Claim("model_day", text, published)
        for report, ours in tried:
            told = f"r = {ours['r']:.2f}, p = {ours['p']:.4f}, {ours['pairs']} pairs"
            status = _correlated(r, p is not None and p < _SIGNIFICANT, ours)
            yield Claim(
                "model_day",
                text,
                published,
                told,
                status,
                report["scale"],
                report,
                str(report["finished"]),
            )


def _correlated(published: float, significant: bool, ours: Mapping[str, float]) -> str:
    """The status of a correlation. That there is none is shown by an interval (Fisher's z), not by
    a large p."""
    if ours["p"] < _SIGNIFICANT:
        return (
            "reproduced" if significant and (ours["r"] > 0) == (published > 0) else "not reproduced"
        )
    if significant:
        return "not reproduced: no correlation shown"
    room = 1.96 / math.sqrt(ours["pairs"] - 3) if ours["pairs"] > 3 else math.inf
    weak = all(abs(math.tanh(math.atanh(ours["r"]) + end)) < _WEAK for end in (-room, room))
    return "reproduced" if weak else "no correlation shown: too few tasks"


def _time(reports: list[Mapping[str, Any]]) -> Iterator[Claim]:
    """Minutes depend on the machine; what a method costs beside MixReplay does so less."""
    for backbone, method in (
        (b, m) for b, minutes in TRAINING_TIME.items() for m in minutes if m != "mix_replay"
    ):
        text = f"an epoch of {method} as a multiple of mix_replay's, {backbone}"
        minutes = TRAINING_TIME[backbone]
        published = f"{minutes[method] / minutes['mix_replay']:.2f}"
        tried = [
            (report, found[name])
            for report, found in _analyses(reports, "training_time")
            for name in found
            if (name == backbone or report["scale"] != "paper")
            and {method, "mix_replay"} <= found[name].keys()
        ]
        if not tried:
            yield Claim("training_time", text, published)
        for report, ours in tried:
            ratio = f"{ours[method] / ours['mix_replay']:.2f}"
            yield Claim(
                "training_time",
                text,
                published,
                ratio,
                "measured",
                report["scale"],
                report,
                str(report["finished"]),
            )


def _analyses(
    reports: list[Mapping[str, Any]], name: str
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for report in reports:
        for part in report["parts"]:
            if name in part["analyses"]:
                yield report, part["analyses"][name]
