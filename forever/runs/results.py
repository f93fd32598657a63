"""What a run measures: its answers, their scores, where the time went, and result.json."""

import resource
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.evaluation.metrics import PerformanceMatrix
from forever.runs.directory import RunDirectory, read_lines, write_lines

SCHEMA_VERSION = 1


class Result:
    """The measurements of one run as they come in.

    Attributes:
        matrix: the scores.
        notes: what was found out about each stage.
        seconds: the time that each phase took.
    """

    def __init__(self, benchmark: Benchmark, directory: RunDirectory) -> None:
        self.benchmark, self.directory = benchmark, directory
        self.matrix = PerformanceMatrix(
            tuple(task.name for task in benchmark.tasks),
            tuple(stage.name for stage in benchmark.stages),
        )
        self.notes: list[dict[str, Any]] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._clock = time.perf_counter()

    def spend(self, phase: str | None) -> None:
        """Count the time since the last call for a phase; None counts it for nothing."""
        now = time.perf_counter()
        if phase is not None:
            self.seconds[phase] += now - self._clock
        self._clock = now

    def read_answers(self, stage: int, task: int) -> bool:
        """Whether a task's answers are on disk; if so their scores are read into the matrix."""
        path = self.directory.predictions(stage, task)
        if (task, stage) not in self.matrix.items and path.is_file():
            self.matrix.items[task, stage] = [line["score"] for line in read_lines(path)]
        return (task, stage) in self.matrix.items

    def keep_answers(
        self, stage: int, task: int, answers: Sequence[Mapping[str, Any]], write: bool
    ) -> None:
        """Take the scores of a task's answers and, with `write`, put them on disk."""
        self.matrix.items[task, stage] = [answer["score"] for answer in answers]
        if write:
            write_lines(self.directory.predictions(stage, task), answers)

    def summary(self, config: RunConfig, measured: Mapping[str, Any]) -> dict[str, Any]:
        """The content of result.json.

        Args:
            measured: what the session measured of model and machine; it comes last.
        """
        steps = read_lines(self.directory.steps)
        events = read_lines(self.directory.events)
        benchmark, matrix = self.benchmark, self.matrix
        examples = Counter[str]()
        for line in steps:
            examples[line["kind"]] += line["rows"]
        rows: dict[str, dict[str, int]] = {}
        for task in benchmark.tasks:
            rows[task.name] = {"train": len(task.train), "test": len(task.test)}
        replays = {name: Counter[str]() for name in matrix.stages}
        for event in events:
            replays[event["task"]][event["kind"]] += 1
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
            "rows": rows,
            "matrix": matrix.rows(),
            "op": matrix.overall(),
            "bwt": matrix.backward_transfer(),
            "fwt": matrix.forward_transfer(),
            "forgetting": matrix.forgetting(),
            "notes": dict(zip(matrix.stages, self.notes, strict=True)),
            "events": {name: dict(counts) for name, counts in replays.items()},
            "updates": dict(Counter(line["kind"] for line in steps)),
            "rows_seen": dict(examples),
            "tokens": sum(line["tokens"] for line in steps),
            **measured,
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process held at once, on the device where it computes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
