"""result.json: what a finished run says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.evaluation.metrics import PerformanceMatrix

SCHEMA_VERSION = 1


def scores_after(matrix: PerformanceMatrix, stage: int) -> dict[str, float | None]:
    """What is known when a stage is over: each seen task's score, and OP and BWT so far, in percent
    and points."""
    so_far = matrix.until(stage)
    scores = {f"acc/{name}": so_far[i, stage] for i, name in enumerate(so_far.tasks)}
    return {**scores, "op": so_far.overall(), "bwt": so_far.backward_transfer()}


def summarise(
    config: RunConfig,
    benchmark: Benchmark,
    matrix: PerformanceMatrix,
    steps: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    notes: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any],
) -> dict[str, Any]:
    """The result of a run.

    Args:
        steps, events: the lines of the journal.
        notes: one dict a stage: the method's findings and the number of truncated training rows.
        measured: sizes (`parameters`: trained, and stored from task to task), seconds by phase,
        peak memory.
    """
    updates = Counter(line["kind"] for line in steps)
    rows = Counter[str]()
    for line in steps:
        rows[line["kind"]] += line["rows"]
    return {
        "schema_version": SCHEMA_VERSION,
        "key": config.key(),
        "fingerprint": config.fingerprint(),
        "method": config.method.name,
        "seed": config.seed,
        "benchmark": benchmark.name,
        "order": benchmark.order,
        "tasks": list(matrix.tasks),
        "stages": list(matrix.stages),
        "metrics": {task.name: task.metric for task in benchmark.tasks},
        "data": {task.name: task.digest() for task in benchmark.tasks},
        "rows": {
            task.name: {"train": len(task.train), "test": len(task.test)}
            for task in benchmark.tasks
        },
        "matrix": matrix.rows(),
        "op": matrix.overall(),
        "bwt": matrix.backward_transfer(),
        "fwt": matrix.forward_transfer(),
        "forgetting": matrix.forgetting(),
        "notes": {name: dict(note) for name, note in zip(matrix.stages, notes, strict=True)},
        "events": {
            name: dict(Counter(event["kind"] for event in events if event["task"] == name))
            for name in matrix.stages
        },
        "updates": dict(updates),
        "rows_seen": dict(rows),
        "tokens": sum(line["tokens"] for line in steps),
        **measured,
    }
