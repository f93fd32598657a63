"""Write experiments/RESULTS.md: the paper's claims beside our numbers, then each committed sweep.

    python -m scripts.results

Claims are the lines of experiments/claims.csv: the `measure` of a `variant` less that of its
`reference`, as published. A line's `caveat` says why runs at a smaller scale do not test it. The
answers come from the report.json files of committed sweeps (scripts/keep.py). The page begins with
HEAD.md, and each sweep's table follows the sweep's README.md.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from forever.files import read_json
from forever.stats.compare import ALPHA, holm
from forever.stats.verdict import word
from forever.sweeps import published as paper
from scripts.keep import REPORT, RESULTS
from scripts.markdown import table

CLAIMS = RESULTS.parent / "claims.csv"
PAGE = RESULTS.parent / "RESULTS.md"
NOTHING = "–"
IDLE = "ends as fine-tuning does, to the last digit"
DEGENERATE = "fewer than half of its days come"
NOTHING_TO_FORGET = "nothing to forget here: fine-tuning forgot nothing"
# A sweep that answers claims of others, and the names that its variants have there.
STANDS_FOR: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "language_model": {"components": {}, "main_results": {"base": "forever"}}
}
# By measure: what is published below the first number counts as no difference, and an interval
# within the second around zero shows that there is none.
THRESHOLDS = {"op": (paper.EQUAL, paper.ALIKE), "bwt": (paper.EQUAL, paper.ALIKE), "r": (0.5, 0.5)}

Estimate = Mapping[str, float]  # value, low, high: a 95 % interval; runs
Key = tuple[str, ...]  # sweep, benchmark, variant, reference and measure of a claim


class Status(StrEnum):
    """What our interval says about a published difference."""

    REPRODUCED = "reproduced"
    NOT_SHOWN = "not shown"
    CANNOT_TELL = "cannot tell"
    CONTRADICTED = "contradicted"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Answer:
    """Our number for a claim."""

    ours: Estimate
    sweep: str  # the folder of the sweep
    compared: str = ""  # our variants, whose names have the measured settings
    is_shown: bool = True  # whether the difference is significant after Holm's correction
    note: str = ""  # why it is not judged


def status(ours: Estimate, published: float, measure: str = "op", is_shown: bool = True) -> Status:
    """Compare our interval with a published difference, by its sign.

    Args:
        is_shown: Whether ours is still significant after a correction for all comparisons.
    """
    low, high = ours["low"], ours["high"]
    equal, alike = THRESHOLDS.get(measure, (0.0, 0.0))
    if abs(published) < equal:
        if -alike <= low and high <= alike:
            return Status.REPRODUCED
        if is_shown and (low > 0 or high < 0):
            return Status.CONTRADICTED
    else:
        same_side, other_side = (low > 0, high < 0) if published > 0 else (high < 0, low > 0)
        if same_side and is_shown:
            return Status.REPRODUCED
        if other_side:
            return Status.CONTRADICTED
    # An interval this wide would not have shown the published difference.
    too_wide = (high - low) / 2 > abs(published) + 1e-9
    return Status.CANNOT_TELL if too_wide else Status.NOT_SHOWN


def read_claims() -> dict[Key, dict[str, str]]:
    """Read the table of claims, by what each of them compares."""
    with CLAIMS.open(encoding="utf-8", newline="") as file:
        lines = [*csv.DictReader(file)]
    names = ("sweep", "benchmark", "variant", "reference", "measure")
    return {tuple(line[name] for name in names): line for line in lines}


# ---- answers


def answers_of(report: Mapping[str, Any], sweep: str) -> Iterator[tuple[Key, Answer]]:
    """Find what a report says about claims; keys that are not in the table are to be ignored."""
    name, runs = report["name"], report["finished"]
    for part in report["parts"]:
        for other, names in STANDS_FOR.get(name, {name: {}}).items():
            place = paper.table_of(other, part["benchmark"])
            if place is not None:
                yield from _differences(place, part["rows"], names, sweep)
        analysis = part["analyses"].get(name, {})
        if name == "forgetting_rate" and "finetune" in analysis:
            key = (name, "superni", "first phase", "last phase", "rate")
            yield key, Answer(analysis["finetune"]["apart"]["all"]["fifths"]["fall"], sweep)
        if name == "model_day":
            for other, numbers in analysis.items():
                ours = _correlation(numbers["r"], numbers["pairs"]) | {"runs": runs}
                yield (name, "superni", "tau_day", other, "r"), Answer(ours, sweep)
        if name == "training_time":
            for backbone, minutes in analysis.items():
                for method in minutes.keys() - {"mix_replay"} if "mix_replay" in minutes else ():
                    value = minutes[method] / minutes["mix_replay"]
                    ours = {"value": value, "low": math.nan, "high": math.nan, "runs": runs}
                    answer = Answer(ours, sweep, note="measured once, without an interval")
                    yield (name, backbone, method, "mix_replay", "minutes"), answer


def _differences(
    place: tuple[str, str], rows: Sequence[Any], names: Mapping[str, str], sweep: str
) -> Iterator[tuple[Key, Answer]]:
    in_paper: dict[str, str] = {}
    for row in rows:
        in_paper[row["variant"]] = names.get(row["paper_variant"], row["paper_variant"])
    degenerate = {row["variant"] for row in rows if row["degenerate"]}
    for measure, prefix in (("op", ""), ("bwt", "bwt_")):
        shown = significant(rows, f"{prefix}difference", f"{prefix}p")
        for row in rows:
            variant, reference = row["variant"], row["reference"]
            ours = row[f"{prefix}difference"]
            if not ours or reference not in in_paper:
                continue
            note = "one run" if ours["runs"] < 2 else ""
            note = DEGENERATE if degenerate & {variant, reference} else note
            note = NOTHING_TO_FORGET if measure == "bwt" and row["nothing_to_forget"] else note
            note = IDLE if row["idle"] else note
            answer = Answer(ours, sweep, f"{variant} less {reference}", shown[variant], note)
            yield (*place, in_paper[variant], in_paper[reference], measure), answer


def significant(rows: Sequence[Mapping[str, Any]], difference: str, p: str) -> dict[str, bool]:
    """Say by variant whether its difference is significant after Holm's correction.

    The correction is for all that are compared but bounds, whatever they replayed, since the paper
    compares at its own budgets. Sweeps in rounds have no p-values: their intervals are corrected.
    """
    shown = {row["variant"]: True for row in rows}
    corrected = [row for row in rows if row[difference] and row[p] is not None]
    corrected = [row for row in corrected if not row["bound"] and row[difference]["runs"] > 1]
    p_values = holm([row[p] for row in corrected])
    shown |= {row["variant"]: p <= ALPHA for row, p in zip(corrected, p_values, strict=True)}
    return shown


def _correlation(r: float, pairs: int) -> dict[str, float]:
    """Pearson's r with Fisher's interval, which three pairs do not have."""
    half_width = 1.96 / math.sqrt(pairs - 3) if pairs > 3 else math.inf
    low, high = (math.tanh(math.atanh(r) + side * half_width) for side in (-1, 1))
    return {"value": r, "low": low, "high": high}


# ---- the page


def page() -> str:
    """Compose the whole page."""
    answers: dict[Key, list[Answer]] = {}
    for path in sorted(RESULTS.glob(f"*/{REPORT}")):
        for key, answer in answers_of(read_json(path), path.parent.name):
            answers.setdefault(key, []).append(answer)
    groups = sorted(folder for folder in RESULTS.iterdir() if folder.is_dir())
    head = (RESULTS / "HEAD.md").read_text(encoding="utf-8")
    return "\n".join([head, *claimed(read_claims(), answers), *map(group_section, groups)])


def claimed(
    claims: Mapping[Key, Mapping[str, str]], answers: Mapping[Key, Sequence[Answer]]
) -> Iterator[str]:
    """Yield the claims that have an answer as a table a sweep, and count the others."""
    by_sweep: dict[str, list[list[str]]] = {}
    counts: Counter[Status] = Counter()
    for key, claim in claims.items():
        rows = by_sweep.setdefault(claim["sweep"], [])
        for answer in answers.get(key, ()):
            cells, outcome = claim_row(claim, answer)
            rows.append(cells)
            counts[outcome] += 1
    answered = sum(key in answers for key in claims)
    yield f"{answered} of {len(claims)} claims have an answer, none of them at scale `paper`.\n"
    yield table(["answers", *Status], [[counts.total(), *(counts[name] for name in Status)]])
    columns = [
        "claim",
        "benchmark",
        "published",
        "ours",
        "ratio",
        "status",
        "runs",
        "sweep",
        "note",
    ]
    for sweep, rows in by_sweep.items():
        if rows:
            yield f"### {sweep}\n\n{table(columns, rows)}"
    numbers = Counter(claim["sweep"] for key, claim in claims.items() if key not in answers)
    yield "### Claims without runs\n"
    yield table(["sweep", "claims"], numbers.items())


def claim_row(claim: Mapping[str, str], answer: Answer) -> tuple[list[str], Status]:
    """Return a claim and its answer as cells, and the status."""
    measure, published, ours = claim["measure"], float(claim["published"]), answer.ours
    # At a smaller scale a variant has another setting than the paper's of that name.
    text = f"{claim['variant']} less {claim['reference']}"
    if measure in ("op", "bwt"):
        text = f"{answer.compared or text}, {measure.upper()}"
    elif measure == "r":
        text = f"correlation of {claim['variant']} with {claim['reference']}"
    note = answer.note
    if claim["caveat"] and not answer.sweep.endswith("-paper"):
        note = note or claim["caveat"]
    outcome = status(ours, published, measure, answer.is_shown) if not note else Status.NOT_JUDGED
    digits = len(claim["published"].partition(".")[2])
    is_ratio = outcome == Status.REPRODUCED and abs(published) >= THRESHOLDS.get(measure, (0,))[0]
    ratio = f"{ours['value'] / published:.1f}" if is_ratio else NOTHING
    cells = [text, claim["benchmark"], claim["published"], interval(ours, digits), ratio, outcome]
    return [*cells, str(ours["runs"]), answer.sweep, note], outcome


def interval(estimate: Estimate | None, digits: int = 1, sign: str = "+") -> str:
    """Format an estimate with its interval, if it has one."""
    if estimate is None:
        return NOTHING
    numbers = [round(estimate[name], digits) + 0.0 for name in ("value", "low", "high")]
    value, low, high = (f"{number:{sign}.{digits}f}" for number in numbers)
    return value if math.isnan(estimate["low"]) else f"{value} [{low}, {high}]"


def group_section(group: Path) -> str:
    """Return a folder's own words, its numbers, and where they were made."""
    note = group / "README.md"
    words = note.read_text(encoding="utf-8").strip() if note.is_file() else f"## {group.name}"
    lines = [words, ""]
    if (group / REPORT).is_file():
        report = read_json(group / REPORT)
        columns = ["variant", "runs", "OP", "BWT", "less", "difference in OP", "verdict"]
        for part in report["parts"]:
            if effects := part["analyses"].get("main_effects"):
                lines += [table(*_effects(effects))]
                continue  # whose cells are in report.json
            known = [row for row in part["rows"] if row["op"]]
            rows = [_cells(row) for row in known]
            names = [*columns, "replayed", "updates"]
            # Beside the difference that decided, and stopped the rounds, that of all seeds.
            if any(row["all_seeds"] for row in known):
                names.insert(6, "of all seeds")
                for cells, row in zip(rows, known, strict=True):
                    cells.insert(6, interval(row["all_seeds"]))
            lines += [table(names, rows)]
            reasons = [f"{row['variant']} ({row['caution']})" for row in known if row["caution"]]
            if reasons:
                lines += [f"Caution: {'; '.join(reasons)}.", ""]
        where = ", ".join([*report["revisions"], *report["hardware"]])
        lines += [f"{where}:", "", "```", *report["commands"], "```", ""]
    singles = [_single(path) for path in sorted(group.rglob("result.json"))]
    if singles:
        lines += [table(["run", "seed", "OP", "BWT", "forgetting", "updates"], singles)]
    return "\n".join(lines)


def _effects(main_effects: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the columns of a table of main effects, and its rows."""
    columns = ["factor", "level", "OP", f"difference in {main_effects['blocks']} blocks", "verdict"]
    rows = [
        [
            effect["factor"],
            effect["level"],
            f"{effect['score']:.1f}",
            interval(effect["difference"]),
            word(effect["verdict"]) or NOTHING,
        ]
        for effect in main_effects["effects"]
    ]
    return columns, rows


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Return a row of a report as cells."""
    scores = [interval(row[name], sign="-") for name in ("op", "bwt")]
    compared = [NOTHING, NOTHING, NOTHING]
    if row["difference"]:
        compared = [row["reference"], interval(row["difference"]), row["verdict"] or NOTHING]
    counts = [row["replayed_rows"], row["updates"]]
    counted = [NOTHING if count is None else f"{count:.0f}" for count in counts]
    return [row["variant"], str(row["runs"]), *scores, *compared, *counted]


def _single(path: Path) -> list[str]:
    """Return a run that was committed alone as cells."""
    result = read_json(path)
    scores = [result["op"], result["bwt"], result["forgetting"]]
    shown = [NOTHING if score is None else f"{score:.1f}" for score in scores]
    updates = str(sum(result["updates"].values()))
    return [path.parent.name, str(result["seed"]), *shown, updates]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
