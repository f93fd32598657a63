"""What the paper claims and what our runs say to it: the first part of RESULTS.md.

A claim is a difference of the paper's tables: a variant against the reference of its table, on one benchmark. The runs
of a sweep are committed by copying its report.json to experiments/results/<name>-<scale>/.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.paper import FORGETTING_RATE, MODEL_DAY, TABLES, TRAINING_TIME, agreement
from experiments.runs import SCALES, named_run
from experiments.sweeps import named_sweep

HEAD = (
    "claim", "ours", "published", "status", "scale", "runs", "revision", "hardware", "command",
)  # fmt: skip
# A verdict's agreement with the paper, in the words of the ledger.
_STATUS = {
    "agrees": "reproduced",
    "opposite": "not reproduced: opposite",
    "not shown": "not reproduced: no difference shown",
    "not equal": "not reproduced: they differ",
    "too wide": "no difference shown: interval too wide",
    "": "not judged",
}


@dataclass(frozen=True)
class Claim:
    """A row of the ledger. `ours` is empty if nobody tried."""

    text: str
    published: str
    ours: str = ""
    status: str = "not attempted"
    scale: str = ""
    report: Mapping[str, Any] | None = None
    runs: str = ""


def table(folder: Path) -> list[str]:
    """All claims as lines of a Markdown table."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/report.json"))]
    rows = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for claim in claims(reports):
        where = claim.report or {"revisions": [], "hardware": [], "commands": []}
        cells = [claim.text, claim.ours, claim.published, claim.status, claim.scale, claim.runs]
        cells += [", ".join(where[key]) for key in ("revisions", "hardware")]
        cells.append(" ; ".join(f"`{command}`" for command in where["commands"]))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") or "–" for cell in cells) + " |")
    return rows


def claims(reports: list[Mapping[str, Any]]) -> Iterator[Claim]:
    """Every claim, once for each scale at which it was tried."""
    for name in TABLES:
        found = [report for report in reports if report["name"] == name]
        yield from _differences(name, found)
    for name, tell in (("forgetting_rate", _forgetting), ("model_day", _model_day), ("training_time", _time)):
        yield from tell([report for report in reports if report["name"] == name])


def _differences(name: str, reports: list[Mapping[str, Any]]) -> Iterator[Claim]:
    sweep = named_sweep(name, named_run(SCALES["paper"]))
    reference = sweep.paper.get(sweep.reference, sweep.reference)
    for benchmark, rows in TABLES[name].items():
        for variant, paper in rows.items():
            if variant == reference or reference not in rows:
                continue
            text = f"{name}: OP of {variant} less {reference}'s" + f", {benchmark}" * (len(TABLES[name]) > 1)
            published = f"{paper.op - rows[reference].op:+.1f}"
            tried = [
                (report, row)
                for report in reports
                for part in report["parts"]
                if part["benchmark"] == benchmark or len(TABLES[name]) == 1
                for row in part["rows"]
                if row["paper_variant"] == variant and row["difference"]
            ]
            if not tried:
                yield Claim(text, published)
            for report, row in tried:
                ours = "{value:+.1f} [{low:+.1f}, {high:+.1f}]".format(**row["difference"])
                status = _STATUS[_agreement(paper.op - rows[reference].op, row)]
                yield Claim(text, published, ours, status, report["scale"], report, str(row["difference"]["runs"]))


def _agreement(published: float, row: Mapping[str, Any]) -> str:
    """Bounds are outside the corrected comparison; their interval alone says on which side they are."""
    low, high, runs = (row["difference"][key] for key in ("low", "high", "runs"))
    verdict = row["verdict"]
    if row["bound"] and runs > 1:  # from one run nothing can be said, however many rows it answered
        verdict = "tie" if low <= 0 <= high else "win" if low > 0 else "loss"
    return agreement(published, verdict, low, high)


def _forgetting(reports: list[Mapping[str, Any]]) -> Iterator[Claim]:
    """The whole of the paper's table at its scale; smaller tasks have fewer phases, of which two tell a direction."""
    text = "forgetting_rate: forgetting slows down within a task (rate of the first phase less the last's)"
    fall = FORGETTING_RATE[0] - FORGETTING_RATE[-1]
    published = f"{fall:+.4f} ({_rates(FORGETTING_RATE)})"
    tried = [
        (report, found["finetune"]) for report, found in _analyses(reports, "forgetting_rate") if "finetune" in found
    ]
    if not tried:
        yield Claim(text, published)
    for report, found in tried:
        rates, ours, status = found["rates"], found["fall"], "not judged"
        if ours and (len(rates) == len(FORGETTING_RATE) or report["scale"] != "paper"):
            status = _STATUS["agrees" if ours["low"] > 0 else "opposite" if ours["high"] < 0 else "not shown"]
        told = "{value:+.4f} [{low:+.4f}, {high:+.4f}] ".format(**ours) if ours else ""
        yield Claim(
            text, published, f"{told}({_rates(rates)})", status, report["scale"], report, str(report["finished"])
        )


def _rates(values: Sequence[float]) -> str:
    return ", ".join(f"{rate:.4f}" for rate in values)


def _model_day(reports: list[Mapping[str, Any]]) -> Iterator[Claim]:
    for name, (r, p) in MODEL_DAY.items():
        text = f"model_day: correlation of tau_day with {name}"
        published = f"r = {r:.2f}" + (f", p = {p:.4f}" if p is not None else "")
        tried = [(report, found[name]) for report, found in _analyses(reports, "model_day") if name in found]
        if not tried:
            yield Claim(text, published)
        for report, ours in tried:
            told = f"r = {ours['r']:.2f}, p = {ours['p']:.4f}, {ours['pairs']} pairs"
            significant = p is not None and p < 0.05
            alike = (ours["p"] < 0.05) == significant and (not significant or (ours["r"] > 0) == (r > 0))
            status = "reproduced" if alike else "not reproduced"
            yield Claim(text, published, told, status, report["scale"], report, str(report["finished"]))


def _time(reports: list[Mapping[str, Any]]) -> Iterator[Claim]:
    """Minutes depend on the machine; what replay costs beside MixReplay does so less."""
    for backbone, minutes in TRAINING_TIME.items():
        text = f"training_time: an epoch of FOREVER as a multiple of MixReplay's, {backbone}"
        published = f"{minutes['forever'] / minutes['mix_replay']:.2f}"
        tried = [
            (report, found[name])
            for report, found in _analyses(reports, "training_time")
            for name in found
            if (name == backbone or report["scale"] != "paper") and {"forever", "mix_replay"} <= found[name].keys()
        ]
        if not tried:
            yield Claim(text, published)
        for report, ours in tried:
            ratio = f"{ours['forever'] / ours['mix_replay']:.2f}"
            yield Claim(text, published, ratio, "measured", report["scale"], report, str(report["finished"]))


def _analyses(reports: list[Mapping[str, Any]], name: str) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for report in reports:
        for part in report["parts"]:
            if name in part["analyses"]:
                yield report, part["analyses"][name]
