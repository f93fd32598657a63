"""Sweeps whose runs nobody trained: folders as training leaves them, with drawn answers.

A report reads nothing but such folders, so its tests need no model and take no time.
"""

import json
import random
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from forever.config.run import RunConfig
from forever.evaluation.metrics import PerformanceMatrix
from forever.files import sha256, write_lines, write_text
from forever.runs.directory import SCHEMA_VERSION, RunDirectory
from forever.sweeps.sweep import Sweep

TASKS = ("colour", "shape", "weight", "taste")
UPDATES = 12  # of a task
TESTS = 20  # test rows of a task
DAYS = (1, 2, 4)  # when memory is replayed, in model days of four updates


def base_run(**changes: Any) -> RunConfig:
    """The run from which the variants of a made-up sweep differ."""
    run = RunConfig.parse(
        {
            "model": {"name": "tiny", "rank": 4, "alpha": 8},
            "data": {"benchmark": "toy", "order": list(TASKS), "train_rows": 24},
            "optim": {"lr": 0.01, "batch_size": 4, "epochs": 2},
            "method": {"name": "forever", "day_steps": 4},
        }
    )
    return run.override(changes)


def make_up(folder: Path, sweep: Sweep, skip: Sequence[str] = ()) -> Path:
    """Write a sweep's manifest and all its runs but those whose keys begin with one of `skip`."""
    for trial in sweep.trials():
        if not trial.key.startswith(tuple(skip)):
            make_up_run(folder / trial.key, trial.variant, trial.config)
    sweep.write_manifest(folder)
    return folder


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file."""
    rewrite(path, json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes))


def rewrite(path: Path, text: str) -> None:
    """Write another text into a file directly in a run's folder as if the run had written it."""
    path.write_text(text, encoding="utf-8")
    manifest = path.parent / "manifest.json"
    if manifest.is_file():
        digests = json.loads(manifest.read_text(encoding="utf-8"))
        if path.name in digests:
            digests[path.name] = sha256(text.encode())
        manifest.write_text(json.dumps(digests), encoding="utf-8")


def copy_run(folder: Path, path: Path, config: RunConfig) -> None:
    """Copy a finished run as if another configuration had made it."""
    shutil.copytree(folder, path)
    fingerprint = config.fingerprint()
    rewrite(path / "config.yaml", f"# fingerprint: {fingerprint}\n{config.text()}")
    edit(path / "result.json", fingerprint=fingerprint)


def put_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Finish a run with a result whose files may be changed afterwards."""
    directory = RunDirectory(folder)
    write_text(directory.manifest, "{}")
    content = {"schema_version": SCHEMA_VERSION, **result}
    write_text(directory.result, json.dumps(content, indent=1))


def make_up_run(path: Path, variant: str, config: RunConfig) -> None:
    """A finished run. Fine-tuning forgets most; what else a variant can do is drawn by its name."""
    directory = RunDirectory(path)
    tasks = tuple(config.data.order) if not isinstance(config.data.order, str) else TASKS
    method = config.method.name
    joint = method == "mtl"
    draw = random.Random(f"{variant} {config.seed} {tasks}")
    directory.create(config, ENVIRONMENT)
    matrix = PerformanceMatrix(tasks, ("joint",) if joint else tasks)
    skill = 0.75 + random.Random(variant).uniform(-0.1, 0.1)
    loss = 0.25 if method == "finetune" else 0.1
    for stage in range(len(matrix.stages)):
        for i, task in enumerate(tasks if joint else tasks[: stage + 1]):
            chance = skill - loss * (0 if joint else stage - i)
            lines = answers(task, draw, chance)
            write_lines(directory.predictions(stage, i), lines)
            matrix.items[i, stage] = [line["score"] for line in lines]
    steps, events = journal(tasks, method, draw, config)
    write_lines(directory.steps, steps)
    write_lines(directory.events, events)
    content = result(config, matrix, steps, events, draw)
    put_result(path, {"fingerprint": config.fingerprint(), **content})


ENVIRONMENT: dict[str, Any] = {
    "cpu": "a chip",
    "cores": 2,
    "gpus": [],
    "packages": {"forever-cl": "0.1.0", "torch": "2.13.0"},
    "revision": "abc",
    "argv": ["forever", "sweep", "toy"],
}


def answers(task: str, draw: random.Random, chance: float) -> list[dict[str, Any]]:
    """Rows of predictions: some are hard for everyone."""
    lines: list[dict[str, Any]] = []
    for number in range(TESTS):
        hard = 0.15 * (number % 3)
        score = float(draw.random() < chance - hard)
        lines.append({"id": f"{task}/test/{number}", "reference": "yes", "score": score})
    return lines


def journal(
    tasks: Sequence[str], method: str, draw: random.Random, config: RunConfig
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """steps.jsonl and events.jsonl: replays on DAYS for FOREVER, and probes."""
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    probe_every = getattr(config.method, "probe_every", None)
    for k, task in enumerate(tasks):
        if probe_every and k:
            for step in range(0, UPDATES + 1, probe_every):
                look = {"task": task, "step": step}
                look["losses"] = dict.fromkeys(tasks[:k], 1 + step**0.5)
                events.append({"kind": "look", **look})
        for step in range(1, UPDATES + 1):
            days = step / 4 if step >= 4 else 0.0
            line: dict[str, Any] = {"task": task, "step": step, "kind": "task", "rows": 4}
            line |= {"loss": 2 + draw.random(), "penalty": 0.0, "update_norm": 0.1 + draw.random()}
            if method == "forever":
                line |= {"mu": 0.1 if days else None, "days": days, "next_day": 1.0 if k else None}
            steps.append(line)
            kind = "replay" if days in DAYS else ""
            kind = "consolidation" if step == UPDATES else kind
            if kind and k and method == "forever":
                event = {"kind": kind, "task": task, "step": step, "days": days}
                events.append({**event, "loss_before": 2.0, "loss_after": 1 + draw.random()})
                steps.append({**line, "kind": kind, "penalty": 0.01})
    return steps, events


def result(
    config: RunConfig,
    matrix: PerformanceMatrix,
    steps: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    draw: random.Random,
) -> dict[str, Any]:
    """The content of result.json."""
    tasks, stages = matrix.tasks, matrix.stages
    cells = [[matrix[i, j] for j in range(len(stages))] for i in range(len(tasks))]
    happened = {task: Counter(e["kind"] for e in events if e["task"] == task) for task in tasks}
    bwt = matrix.backward_transfer()
    updates = dict(Counter(line["kind"] for line in steps))
    on_memory = updates.get("replay", 0) + updates.get("consolidation", 0)
    notes = {task: {"truncated": 1, "tau_day": 1 + draw.random()} for task in tasks}
    return {
        "method": config.method.name,
        "benchmark": config.data.benchmark,
        "order": "-".join(tasks),
        "seed": config.seed,
        "tasks": list(tasks),
        "stages": list(stages),
        "rows": {task: {"train": 24, "test": TESTS} for task in tasks},
        "matrix": cells,
        "op": fmean(cells[i][-1] or 0.0 for i in range(len(tasks))),
        "bwt": bwt,
        "forgetting": None if bwt is None else abs(bwt) + 1,
        "notes": notes,
        "events": {task: dict(kinds) for task, kinds in happened.items()},
        "updates": updates,
        "examples": {"task": 4 * updates["task"], "replayed": 4 * on_memory, "padded": 0},
        "seconds": {"task": 10 + 5 * draw.random(), "replay": 3.0, "evaluation": 1.0},
        "world_size": 1,
    }


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The numbers and words in nested JSON by their places."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= leaves(inner, f"{path}.{key}")
    return found
