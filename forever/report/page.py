"""The words of a report: what ran, what the numbers are, and how sure they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forever.report.bootstrap import RESAMPLES
from forever.report.findings import findings
from forever.report.rows import Row
from forever.report.settings import differences, show
from forever.report.statistics import ALPHA
from forever.report.study import Study
from forever.report.tables import NOTHING, paper_texts, row_texts
from forever.sweeps.published import ALIKE, EQUAL

MAIN_FIELDS = (
    "data.benchmark",
    "data.train_rows",
    "data.test_rows",
    "model.name",
    "model.tuning",
    "model.rank",
    "model.alpha",
    "model.targets",
    "optim.lr",
    "optim.batch_size",
    "optim.epochs",
    "optim.schedule",
    "memory.fraction",
)
UNFINISHED = "no run is finished"


def page(study: Study) -> dict[str, Any]:
    """What the templates fill in."""
    parts = study.parts
    variants: dict[str, str] = {}
    for part in parts:
        for row in part.rows:
            if variants.get(row.variant, UNFINISHED) == UNFINISHED:
                variants[row.variant] = _changes(part, row)
    return {
        "title": study.name,
        "subject": _subject(parts),
        "reference": study.reference,
        "references": "; ".join(f"of {name} to {other}" for name, other in study.others.items()),
        "parts": [_part(part) for part in parts],
        "single": len(variants) == 1,
        "facts": _facts(study),
        "seeds": _listed(sorted({run.seed for run in study.runs if run.result is not None})),
        "variants": list(variants.items()),
        "missing": study.missing,
        "stopped": len(study.stopped),
        "planned": len(study.runs),
    }


def _part(part: Study) -> dict[str, Any]:
    """The tables of one benchmark; it is named if there are several."""
    rows = part.rows
    return {
        "name": part.benchmark if part.several else "",
        "key": part.benchmark,
        "rows": [row_texts(row) for row in rows if not row.bound],
        "bounds": [row_texts(row) for row in rows if row.bound],
        "on_gpus": any(row.gpu_hours is not None for row in rows),
        "findings": findings(part),
        "paper": [paper_texts(row) for row in rows if row.paper],
        "intervals": _about_intervals(rows),
        "verdicts": _about_verdicts(rows),
        "published": _about_published(rows),
        "warning": about_resolution(rows),
    }


def _subject(parts: list[Study]) -> str:
    results = [run.result for run in (part.example for part in parts) if run is not None]
    names = [
        f"{result['benchmark']}, {len(result['tasks'])} tasks"
        for result in results
        if result is not None
    ]
    models = {
        run.settings["model.name"] for part in parts for run in part.runs if run.result is not None
    }
    return (
        f"{' · '.join(names)} · {_listed(sorted(_short('model.name', model) for model in models))}"
    )


def _facts(study: Study) -> list[tuple[str, str]]:
    """What ran, on what, with which code."""
    example = study.example
    assert example is not None
    finished = [run for run in study.runs if run.result is not None]
    results = [run.result for run in finished if run.result is not None]
    result, settings = results[finished.index(example)], example.settings
    fields = [*MAIN_FIELDS, *(key for key in settings if key.startswith("method."))]
    base = {key: settings[key] for key in fields if settings.get(key) is not None}
    tests = sorted({count["test"] for one in results for count in one["rows"].values()})
    where = [environment for run in finished for environment in run.environments]
    gpus = {gpu for environment in where for gpu in environment.get("gpus", ())}
    cpus = {f"{environment.get('cpu')}, {environment.get('cores')} cores" for environment in where}
    packages = [environment.get("packages", {}) for environment in where]
    versions = {
        f"{name} {one[name]}"
        for one in packages
        for name in ("forever-cl", "torch", "transformers")
        if name in one
    }
    truncated = sum(note.get("truncated", 0) for one in results for note in one["notes"].values())
    return [
        (
            "settings"
            if len({run.variant for run in finished}) == 1
            else f"settings of {example.variant}",
            _settings(base),
        ),
        (
            "tasks",
            " → ".join(result["tasks"])
            if len({r["order"] for r in results}) == 1
            else _listed(result["tasks"]),
        ),
        ("test rows a task", f"{tests[0]}" if len(tests) == 1 else f"{tests[0]} to {tests[-1]}"),
        ("seeds", _listed(sorted({run.seed for run in finished}))),
        ("orders", _listed(sorted({run.order for run in finished}))),
        (
            "hardware",
            _listed(sorted(gpus or cpus)) + _workers({one.get("world_size", 1) for one in results}),
        ),
        (
            "revision",
            _listed(
                sorted({str(one.get("revision") or "unknown") for one in where}) or ["unknown"]
            ),
        ),
        ("versions", _listed(sorted(versions))),
        ("truncated training rows", f"{truncated} in all runs together"),
    ]


def _settings(values: Mapping[str, Any]) -> str:
    return " · ".join(f"{key}={_short(key, value)}" for key, value in values.items())


def _short(key: str, value: Any) -> str:
    """A model that lies in a folder is shown by the folder's name."""
    return Path(value).name if key == "model.name" and Path(value).is_absolute() else show(value)


def _changes(part: Study, row: Row) -> str:
    example = part.example
    if example is None or not row.runs:
        return UNFINISHED
    changes = differences(example.settings, row.runs[0].settings)
    return (
        _settings(changes)
        if changes
        else ("the reference" if row.runs[0].variant == example.variant else "none")
    )


def _about_intervals(rows: list[Row]) -> str:
    counts = sorted({row.comparison.op.runs for row in rows if row.comparison})
    if not counts:
        return "No run is finished."
    text = (
        f"Brackets are 95 % percentile intervals of a paired bootstrap ({RESAMPLES:,} resamples, same draws for all "
        "variants). Tasks are taken as fixed. "
    )
    if counts[-1] == 1:
        return text + (
            "Each variant ran once, so only test items are resampled (items only, 1 seed): "
            "the intervals say nothing about what another seed would give"
            + (", and no variant is judged." if len(rows) > 1 else ".")
        )
    text += "Test items and runs are resampled; with few runs the spread between runs is uncertain, and intervals are wide."
    single = [row.variant for row in rows if row.comparison and row.comparison.op.runs == 1]
    return text + (f" One run only, hence items only: {_listed(single)}." if single else "")


def _about_published(rows: list[Row]) -> str:
    if not any(row.paper for row in rows):
        return ""
    text = (
        "Published: FOREVER, arXiv 2601.03938. It agrees if our verdict has the sign of the published difference; "
        f"a published difference below {EQUAL:g} points counts as none, and agrees if our interval lies within "
        f"±{ALIKE:g} points."
    )
    if all(row.same_setting for row in rows if row.paper):
        return text
    return text + " These runs are not the paper's setting: signs can be compared, sizes cannot."


def about_resolution(rows: list[Row]) -> str:
    """Where the test set is too small for what the paper reports, with as many runs as there
    are."""
    found: list[str] = []
    for row in rows:
        resolution, ours = (
            (row.comparison.resolution, row.comparison.difference)
            if row.comparison
            else (None, None)
        )
        if ours and row.paper_difference and resolution and resolution > abs(row.paper_difference):
            runs = f"{ours.runs} run{'s' * (ours.runs > 1)}"
            text = (
                f"{row.variant} ({row.paper_difference:+.1f}, chance ±{resolution:.1f} with {runs})"
            )
            found.append(text.replace("(-", "(−"))
    if not found:
        return ""
    return (
        f"The test set is too small for the published difference{'s' * (len(found) > 1)} with these runs: "
        f"{_listed(found)}."
    )


def _about_verdicts(rows: list[Row]) -> str:
    judged = sum(1 for row in rows if row.comparison and row.comparison.verdict)
    if not judged:
        return ""
    return (
        "Δ OP and Δ BWT are differences over the runs (order and seed) that both have. Verdicts, on OP: "
        f"two-sided bootstrap test at {100 * ALPHA:g} %, Holm-corrected for {judged} comparison{'s' * (judged > 1)}; "
        "a tie means that no difference was shown, not that there is none. Bounds are not judged."
    )


def _listed(values: Any) -> str:
    return ", ".join(str(value) for value in values) or NOTHING


def _workers(sizes: set[int]) -> str:
    return "" if sizes == {1} else f" ({_listed(sorted(sizes))} workers a run)"
