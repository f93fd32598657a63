"""What a run found out: the content of result.json."""

import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from forever.config.methods import distribution
from forever.config.parts import BudgetConfig
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.evaluation.metrics import PerformanceMatrix
from forever.files import read_lines
from forever.runs.checkpoint import State
from forever.runs.directory import SCHEMA_VERSION, RunDirectory
from forever.training.learner import Learner
from forever.training.method import Method

COUNTED = ("task", "replayed", "padded", "probed", "written")  # see `Learner.examples`


def summary(
    config: RunConfig,
    benchmark: Benchmark,
    matrix: PerformanceMatrix,
    notes: Sequence[dict[str, Any]],
    directory: RunDirectory,
) -> dict[str, Any]:
    """What was run, its scores, what was noted about each stage, and what the journal counts."""
    updates, rows_seen, tokens = Counter[str](), Counter[str](), 0
    for line in read_lines(directory.steps):
        updates[line["kind"]] += 1
        rows_seen[line["kind"]] += line["rows"]
        tokens += line["tokens"]
    events = {name: Counter[str]() for name in matrix.stages}
    for event in read_lines(directory.events):
        events[event["task"]][event["kind"]] += 1
    rows: dict[str, dict[str, int]] = {}
    for task in benchmark.tasks:
        rows[task.name] = {"train": len(task.train), "test": len(task.test)}
    return {
        "schema_version": SCHEMA_VERSION,
        "key": config.key(),
        "fingerprint": config.fingerprint(),
        "method": config.method.name,
        **method_package(config),
        "seed": config.seed,
        "benchmark": benchmark.name,
        "order": benchmark.order,
        "tasks": list(matrix.tasks),
        "stages": list(matrix.stages),
        "metrics": {task.name: task.metric for task in benchmark.tasks},
        "data": {task.name: task.digest() for task in benchmark.tasks},
        "rows": rows,
        "matrix": matrix.rows(),
        "op": matrix.overall(),
        "bwt": matrix.backward_transfer(),
        "fwt": matrix.forward_transfer(),
        "forgetting": matrix.forgetting(),
        "notes": dict(zip(matrix.stages, notes, strict=True)),
        "examples": examples_of(notes),
        "budget": budget_of(config, notes),
        "events": events,
        "updates": updates,
        "rows_seen": rows_seen,
        "tokens": tokens,
    }


def method_package(config: RunConfig) -> dict[str, Any]:
    """Return the package that the method comes from, and its version; nothing for ours."""
    package = distribution(config.method.name)
    return {"method_package": package} if package else {}


def examples_of(notes: Sequence[dict[str, Any]]) -> dict[str, int] | None:
    """Sum the examples that all stages had, by kind; None if earlier code trained one of them."""
    total = Counter[str]()
    for note in notes:
        if "examples" not in note:
            return None
        total.update(note["examples"])
    return {kind: total[kind] for kind in COUNTED}


def budget_of(config: RunConfig, notes: Sequence[dict[str, Any]]) -> str | None:
    """Say whether tasks with a memory replayed their budget: "exact", or "over" or "under" if one
    did not.

    None is said where there is no budget, or no such task, or one that was not counted.
    """
    excesses: list[float] = []
    for note in notes[1:]:
        excess = _excess(config.budget, note)
        if excess is None:
            return None
        excesses.append(excess)
    if not excesses:
        return None
    if max(excesses) > 0:
        return "over"
    return "under" if min(excesses) < 0 else "exact"


def _excess(budget: BudgetConfig, note: Mapping[str, Any]) -> float | None:
    """What a task replayed less its budget. Seconds are not shared out finer than updates are, so
    less of them than its longest such update took is nothing."""
    if budget.seconds is not None and "replay_seconds" in note:
        excess_s = note["replay_seconds"] - budget.seconds
        return excess_s if abs(excess_s) >= note["longest_replay_seconds"] else 0.0
    if budget.examples is not None and "examples" in note:
        counted = note["examples"]
        return counted.get("replayed", 0) + counted.get("padded", 0) - budget.examples
    return None


def costs(learner: Learner, method: Method[Any], state: State) -> dict[str, Any]:
    """On what it was trained, and what that took."""
    stored = [*learner.state_dict(optimizer=False).values(), *method.tensors.values()]
    return {
        "parameters": {
            "trained": learner.parameters.flat.numel(),
            "stored": sum(tensor.numel() for tensor in stored),
        },
        "peak_memory_bytes": peak_memory(learner.world.device),
        "world_size": learner.world.size,
        "at_once": {"examples": learner.micro_batch, "answers": learner.backbone.at_once},
        "model": state.model,
        "seconds": {phase: round(spent, 3) for phase, spent in state.seconds.items()},
    }


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process held at once, on the device where it computes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
