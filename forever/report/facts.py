"""What ran, on what, with which code: the facts below the tables of a report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from forever.format import plural
from forever.report.effects import effects_note
from forever.report.format import distinct, listed, number
from forever.report.run import Run, differences, pairs
from forever.report.study import Part, Study
from forever.stats.bootstrap import RESAMPLES
from forever.stats.compare import ALPHA
from forever.stats.verdict import EQUIVALENT, FORGOTTEN
from forever.sweeps.published import EQUAL

UNFINISHED = "no run is finished"


def facts(study: Study) -> dict[str, str]:
    """What ran, by what it is."""
    example, known = study.example, origins(study.finished)
    orders: set[str] = set()
    sequences: set[str] = set()
    workers: set[int] = set()
    tests: set[int] = set()
    truncated = 0
    for run in study.finished:
        orders.add(run.order)
        sequences.add(run.outcome["order"])
        workers.add(run.outcome.get("world_size", 1))
        for count in run.outcome["rows"].values():
            tests.add(count["test"])
        for note in run.outcome["notes"].values():
            truncated += note.get("truncated", 0)
    settings = {key: value for key, value in example.settings.items() if value is not None}
    by_benchmark = {f"settings of {example.variant}": " · ".join(pairs(settings))}
    for part in study.parts:
        if part.finished:
            changed = differences(example.settings, part.example.settings)
            if changed:
                key = f"settings of {part.example.variant} on {part.benchmark}"
                by_benchmark[key] = f"the same but for {' · '.join(pairs(changed))}"
    return {
        **by_benchmark,
        "tasks": (" → " if len(sequences) == 1 else ", ").join(example.outcome["tasks"]),
        "test examples a task": " to ".join(map(str, sorted({min(tests), max(tests)}))),
        "seeds": listed(study.seeds),
        "orders": listed(sorted(orders)),
        "hardware": listed(known["hardware"]),
        "workers a run": listed(sorted(workers)),
        "revision": listed(known["revisions"] or ["unknown"]),
        "versions": listed(known["versions"]),
        "truncated training examples": f"{truncated} in all runs together",
    }


def origins(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What a reader needs to make the runs again, each thing once."""
    known: dict[str, list[Any]] = {}
    for run in runs:
        for where in run.environments:
            packages = where.get("packages", {}).items()
            versions = [f"{name} {version}" for name, version in packages if version]
            known.setdefault("revisions", []).append(where.get("revision"))
            known.setdefault("hardware", []).append(machine(where))
            known.setdefault("versions", []).extend(versions)
            known.setdefault("commands", []).append(shlex.join(where.get("argv", ())))
    names = ("revisions", "hardware", "versions", "commands")
    return {name: distinct(known.get(name, ())) for name in names}


def machine(environment: Mapping[str, Any]) -> str:
    """The first GPU of a machine, or else its processor, and the number of its cores."""
    gpus = environment.get("gpus")
    chip = gpus[0] if gpus else environment.get("cpu", "unknown")
    return f"{chip}, {environment.get('cores', 'unknown')} cores"


def subject(study: Study) -> str:
    """Benchmarks and models in one line."""
    names: list[str] = []
    for part in study.parts:
        if part.finished:
            names.append(f"{part.benchmark}, {len(part.example.outcome['tasks'])} tasks")
    models = {run.backbone for run in study.finished}
    return f"{' · '.join(names)} · {listed(sorted(models))}"


def changes(study: Study) -> dict[str, str]:
    """In what each variant differs from the example of its benchmark."""
    by_variant = {row.variant: UNFINISHED for row in study.rows}
    for part in study.parts:
        references = {row.reference for row in part.rows if row.reference != row.variant}
        for row in part.measured:
            if by_variant[row.variant] == UNFINISHED:
                same = "the reference" if row.variant in references else "none"
                changed = differences(part.example.settings, row.runs[0].settings)
                by_variant[row.variant] = " · ".join(pairs(changed)) or same
    return by_variant


def notes(part: Part) -> list[str]:
    """How the intervals and verdicts of a part are made."""
    if not part.measured:
        return ["No run is finished."]
    texts = [
        f"Brackets are 95 % intervals of a paired bootstrap over test examples and runs "
        f"({RESAMPLES:,} resamples)."
    ]
    if part.most_runs == 1:
        texts[0] += " Each variant has one run, so intervals are over examples only: no verdicts."
    judged = [row for row in part.measured if row.compared("verdict") and row.dose_gap.comparable]
    if part.stopping is not None and any(row.decided for row in part.rows):
        level, count = 100 * part.stopping["alpha"], part.stopping["comparisons"]
        texts.append(
            "Seeds were added in rounds to undecided comparisons: Δ OP and verdicts are those of a "
            f"confidence sequence, each wrong in at most {level / count:.2g} %, "
            f"{plural(count, 'comparison')} together in at most {level:g} %, if differences are "
            "about normal. When a difference is first shown, it is too large on average: that of "
            "all seeds is beside it. Other intervals hold for a fixed number of seeds only."
        )
    elif judged:
        texts.append(
            f"Verdicts on OP: two-sided bootstrap test at {100 * ALPHA:g} %, Holm-corrected for "
            f"{plural(len(judged), 'comparison')}; equivalent: within ±{EQUIVALENT:g} points; not "
            "shown: more seeds may show a difference. They hold if differences are about normal. "
            "Bounds are not judged."
        )
    if note := effects_note(part):
        texts.append(note)
    unequal = [row for row in part.measured if not row.dose_gap.comparable]
    if unequal:
        gaps = "; ".join(f"{row.variant} ({row.dose_gap.words()})" for row in unequal)
        texts.append(
            f"≠ dose: no verdict, because the replay dose differs from the reference's: {gaps}. "
            "With budget.examples all doses are equal."
        )
    if any(row.nothing_to_forget for row in part.measured):
        texts.append(
            f"Nothing to forget here: the BWT of fine-tuning is above −{FORGOTTEN:g}, so no "
            "difference in BWT says that a method keeps what was known."
        )
    return texts


def cautions(part: Part) -> list[str]:
    """What a reader is warned of: verdicts that may be wrong more often than promised, and runs
    without a score."""
    texts: list[str] = []
    reasons = [(row.variant, row.compared("caution")) for row in part.measured]
    if listed_reasons := "; ".join(f"{name} ({reason})" for name, reason in reasons if reason):
        texts.append(
            "Verdicts that may be wrong more often than promised, since differences need not be "
            f"normal and a rare fall shows late: {listed_reasons}."
        )
    for run in part.finished:
        if why := run.directory.why_no_bwt():
            texts.append(f"{run.place} has {why}.")
    return texts


def too_small_for(part: Part) -> list[str]:
    """The published differences that the test set cannot show with these runs, in words."""
    hidden: list[str] = []
    for row in part.rows:
        published = (row.published or {}).get("difference") or 0.0
        resolution, ours = row.compared("resolution"), row.compared("difference")
        # What counts as no difference is shown by a narrow interval, whatever chance does.
        if abs(published) >= EQUAL and resolution and resolution > abs(published):
            chance = f"chance ±{resolution:.1f} with {plural(ours.runs, 'run')}"
            hidden.append(f"{row.variant} ({number(published, '{:+.1f}')}, {chance})")
    return hidden
