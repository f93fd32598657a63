"""What a run found out: the content of result.json."""

import resource
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from forever.config.methods import distribution
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
        rows[task.name] = {"train": task.train_count, "test": len(task.test)}
    examples = Counter[str]()
    for note in notes:
        examples.update(note["examples"])
    package = distribution(config.method.name)
    return {
        "schema_version": SCHEMA_VERSION,
        "key": config.key(),
        "fingerprint": config.fingerprint(),
        "method": config.method.name,
        **({"method_package": package} if package else {}),  # ours comes with the program
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
        "examples": {kind: examples[kind] for kind in COUNTED},
        "budget": budget_of(config, notes),
        "events": events,
        "updates": updates,
        "rows_seen": rows_seen,
        "tokens": tokens,
    }


def budget_of(config: RunConfig, notes: Sequence[dict[str, Any]]) -> str | None:
    """Say whether tasks with a memory replayed their budget: "exact", or "over" or "under" if one
    did not; None where there is no budget, or no such task.

    Seconds are not shared out finer than updates are, so a difference below that of a task's
    longest update is none.
    """
    excesses: list[float] = []
    for stage, note in enumerate(notes[1:], start=1):
        if config.budget.seconds is not None:
            excess = note["replay_seconds"] - config.budget.seconds
            excesses.append(excess if abs(excess) >= note["longest_replay_seconds"] else 0.0)
        elif (total := config.budget.of(stage)) is not None:
            counted = Counter[str](note["examples"])
            excesses.append(counted["replayed"] + counted["padded"] - total)
    if not excesses:
        return None
    if max(excesses) > 0:
        return "over"
    return "under" if min(excesses) < 0 else "exact"


def costs(learner: Learner, method: Method[Any], state: State) -> dict[str, Any]:
    """On what it was trained, and what that took."""
    # The most that this process held at once, on the device where it computes.
    peak_memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if learner.world.device.type == "cuda":
        peak_memory_bytes = torch.cuda.max_memory_allocated(learner.world.device)
    stored = [*learner.state_dict(optimizer=False).values(), *method.tensors.values()]
    return {
        "parameters": {
            "trained": learner.parameters.flat.numel(),
            "stored": sum(tensor.numel() for tensor in stored),
        },
        "peak_memory_bytes": peak_memory_bytes,
        "world_size": learner.world.size,
        "at_once": {"examples": learner.micro_batch, "answers": learner.backbone.at_once},
        "model": state.model,
        "seconds": {phase: round(spent, 3) for phase, spent in state.seconds.items()},
    }
