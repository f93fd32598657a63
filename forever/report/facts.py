"""What ran, on what, with which code: the facts below the tables of a report."""

from __future__ import annotations

import shlex
from collections import defaultdict
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
_PACKAGES = {"forever-cl", "torch", "transformers"}


def facts(study: Study) -> dict[str, str]:
    """What ran, by what it is."""
    example, seen = study.example, _seen(study)
    assert example is not None, "a study has finished runs"
    one_order, tasks = len(seen["tasks"]) == 1, example.outcome["tasks"]
    whose = f" of {example.variant}" if len(seen["variants"]) > 1 else ""
    rows = sorted({min(seen["test rows"]), max(seen["test rows"])})
    hardware = listed(sorted(seen["gpus"] or seen["cpus"]))
    if seen["workers"] != {1}:
        hardware += f" ({listed(sorted(seen['workers']))} workers a run)"
    return {
        f"settings{whose}": _settings(example),
        "tasks": " → ".join(tasks) if one_order else listed(tasks),
        "test rows a task": " to ".join(map(str, rows)),
        "seeds": listed(seeds(study)),
        "orders": listed(sorted(seen["orders"])),
        "hardware": hardware,
        "revision": listed(sorted(seen["revisions"]) or ["unknown"]),
        "versions": listed(sorted(seen["versions"])),
        "truncated training rows": f"{sum(seen['truncated'])} in all runs together",
    }


def _seen(study: Study) -> dict[str, Any]:
    """What the finished runs have, each thing once."""
    seen: dict[str, Any] = defaultdict(set, truncated=[])
    for run in study.finished:
        seen["variants"].add(run.variant)
        seen["orders"].add(run.order)
        seen["tasks"].add(run.outcome["order"])
        seen["workers"].add(run.outcome.get("world_size", 1))
        for count in run.outcome["rows"].values():
            seen["test rows"].add(count["test"])
        for note in run.outcome["notes"].values():
            seen["truncated"].append(note.get("truncated", 0))
        for where in run.environments:
            seen["gpus"].update(where.get("gpus", ()))
            seen["cpus"].add(f"{where.get('cpu')}, {where.get('cores')} cores")
            seen["revisions"].add(str(where.get("revision") or "unknown"))
            packages = where.get("packages", {})
            for name in packages.keys() & _PACKAGES:
                seen["versions"].add(f"{name} {packages[name]}")
    return seen


def seeds(study: Study) -> list[int]:
    return sorted({run.seed for run in study.finished})


def machine(environment: Mapping[str, Any]) -> str:
    """The first GPU of a machine, or else its processor, and the number of its cores."""
    chip = environment["gpus"][0] if environment["gpus"] else environment["cpu"]
    return f"{chip}, {environment['cores']} cores"


def origins(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What a reader needs to make the runs again: revisions, machines and commands, each once."""
    places = [where for run in runs for where in run.environments]
    return {
        "revisions": distinct(where.get("revision") for where in places),
        "hardware": distinct(map(machine, places)),
        "commands": distinct(shlex.join(where["argv"]) for where in places),
    }


def _settings(run: Run) -> str:
    shown: dict[str, Any] = {}
    for key in (*MAIN_FIELDS, *run.settings):
        is_shown = key in MAIN_FIELDS or key.startswith("method.")
        if is_shown and run.settings.get(key) is not None:
            shown[key] = run.settings[key]
    return _pairs(shown)


def _pairs(settings: Mapping[str, Any]) -> str:
    return " · ".join(f"{key}={_value(key, value)}" for key, value in settings.items())


def _value(key: str, value: Any) -> str:
    """A model that lies in a folder is shown by the folder's name."""
    is_folder = key == "model.name" and Path(value).is_absolute()
    return Path(value).name if is_folder else setting(value)


def subject(study: Study) -> str:
    """Benchmarks and models in one line."""
    names: list[str] = []
    for part in study.parts:
        if part.example:
            names.append(f"{part.benchmark}, {len(part.example.outcome['tasks'])} tasks")
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
