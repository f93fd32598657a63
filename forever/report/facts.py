"""What ran, on what, with which code: the facts below the tables of a report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forever.report.format import distinct, listed, number, setting, several
from forever.report.row import Row
from forever.report.run import Run
from forever.report.study import Part, Study, differences

MAIN_FIELDS = (
    "data.benchmark", "data.train_rows", "data.test_rows", "model.name", "model.tuning",
    "model.rank", "model.alpha", "model.targets", "optim.lr", "optim.batch_size", "optim.epochs",
    "optim.schedule", "memory.fraction",
)  # fmt: skip
UNFINISHED = "no run is finished"
_PACKAGES = ("forever-cl", "torch", "transformers")


def facts(study: Study) -> dict[str, str]:
    """What ran, by what it is."""
    runs, example = study.finished, study.example
    assert example is not None, "a study has finished runs"
    one_variant = len({run.variant for run in runs}) == 1
    one_order = len({run.outcome["order"] for run in runs}) == 1
    tasks = example.outcome["tasks"]
    revisions = {str(where.get("revision") or "unknown") for where in environments(runs)}
    notes = [note for run in runs for note in run.outcome["notes"].values()]
    truncated = sum(note.get("truncated", 0) for note in notes)
    return {
        "settings" if one_variant else f"settings of {example.variant}": _settings(example),
        "tasks": " → ".join(tasks) if one_order else listed(tasks),
        "test rows a task": _test_rows(runs),
        "seeds": listed(seeds(study)),
        "orders": listed(sorted({run.order for run in runs})),
        "hardware": _hardware(runs),
        "revision": listed(sorted(revisions) or ["unknown"]),
        "versions": listed(_versions(runs)),
        "truncated training rows": f"{truncated} in all runs together",
    }


def seeds(study: Study) -> list[int]:
    return sorted({run.seed for run in study.finished})


def environments(runs: Sequence[Run]) -> list[Mapping[str, Any]]:
    """Where runs were trained, and with what."""
    return [environment for run in runs for environment in run.environments]


def machine(environment: Mapping[str, Any]) -> str:
    """The first GPU of a machine, or else its processor, and the number of its cores."""
    chip = environment["gpus"][0] if environment["gpus"] else environment["cpu"]
    return f"{chip}, {environment['cores']} cores"


def origins(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What a reader needs to make the runs again: revisions, machines and commands, each once."""
    places = environments(runs)
    return {
        "revisions": distinct(where.get("revision") for where in places),
        "hardware": distinct(map(machine, places)),
        "commands": distinct(shlex.join(where["argv"]) for where in places),
    }


def _settings(run: Run) -> str:
    of_method = [key for key in run.settings if key.startswith("method.")]
    shown = {key: run.settings.get(key) for key in (*MAIN_FIELDS, *of_method)}
    return _pairs({key: value for key, value in shown.items() if value is not None})


def _pairs(settings: Mapping[str, Any]) -> str:
    return " · ".join(f"{key}={_value(key, value)}" for key, value in settings.items())


def _value(key: str, value: Any) -> str:
    """A model that lies in a folder is shown by the folder's name."""
    is_folder = key == "model.name" and Path(value).is_absolute()
    return Path(value).name if is_folder else setting(value)


def _test_rows(runs: Sequence[Run]) -> str:
    counts = {rows["test"] for run in runs for rows in run.outcome["rows"].values()}
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def _hardware(runs: Sequence[Run]) -> str:
    gpus: set[str] = set()
    cpus: set[str] = set()
    for where in environments(runs):
        gpus.update(where.get("gpus", ()))
        cpus.add(f"{where.get('cpu')}, {where.get('cores')} cores")
    workers = {run.outcome.get("world_size", 1) for run in runs}
    text = listed(sorted(gpus or cpus))
    return text if workers == {1} else f"{text} ({listed(sorted(workers))} workers a run)"


def _versions(runs: Sequence[Run]) -> list[str]:
    versions: set[str] = set()
    for where in environments(runs):
        packages = where.get("packages", {})
        versions.update(f"{name} {packages[name]}" for name in _PACKAGES if name in packages)
    return sorted(versions)


def subject(study: Study) -> str:
    """Benchmarks and models in one line."""
    examples = [part.example.outcome for part in study.parts if part.example]
    names = [f"{result['benchmark']}, {len(result['tasks'])} tasks" for result in examples]
    models = {_value("model.name", run.settings["model.name"]) for run in study.finished}
    return f"{' · '.join(names)} · {listed(sorted(models))}"


def changes(study: Study) -> dict[str, str]:
    """In what each variant differs from the example of its benchmark."""
    by_variant: dict[str, str] = {}
    for part in study.parts:
        for row in part.rows:
            if by_variant.get(row.variant, UNFINISHED) == UNFINISHED:
                by_variant[row.variant] = _changes(part.example, row)
    return by_variant


def _changes(example: Run | None, row: Row) -> str:
    if example is None or not row.runs:
        return UNFINISHED
    if changed := differences(example.settings, row.runs[0].settings):
        return _pairs(changed)
    return "the reference" if row.variant == example.variant else "none"


def too_small_for(part: Part) -> list[str]:
    """The published differences that the test set cannot show with these runs, in words."""
    told: list[str] = []
    for row in part.rows:
        published = (row.published or {}).get("difference")
        resolution, ours = row.compared("resolution"), row.compared("difference")
        if published and resolution and resolution > abs(published):
            chance = f"chance ±{resolution:.1f} with {several(ours.runs, 'run')}"
            told.append(f"{row.variant} ({number(published, '{:+.1f}')}, {chance})")
    return told
