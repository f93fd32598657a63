"""A run of a study, as its directory tells of it. Each of its files is read at most once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from forever.config.overrides import flatten
from forever.data.orders import ORDERS
from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix
from forever.report.bootstrap import Unit
from forever.runs.directory import RunDirectory, read_json, read_lines
from forever.sweeps import published as paper
from forever.sweeps.named_runs import SCALES, has_papers_sizes, named_run

# What a report reads of result.json.
_FIELDS = {
    "tasks", "stages", "matrix", "op", "bwt", "forgetting", "events", "rows_seen", "updates",
    "seconds", "benchmark", "order", "seed", "method", "rows", "notes",
}  # fmt: skip
# A variant runs with many seeds, on many orders, which may be of several benchmarks, anywhere.
_NO_DIFFERENCE = ("seed", "data.benchmark", "data.order", "data.root")
# What the paper's tables vary.
_FREE = ("method.", "memory.fraction", "model.name", "model.tuning")


@dataclass(eq=False)
class Run:
    """A run that was planned."""

    directory: RunDirectory
    variant: str
    benchmark: str
    order: str
    seed: int

    @property
    def key(self) -> str:
        return self.directory.path.name

    @cached_property
    def result(self) -> Mapping[str, Any] | None:
        """The content of result.json; None until it is over."""
        result = self.directory.finished()
        if result is not None and (lacking := _FIELDS - result.keys()):
            raise InputError(
                f"{self.directory.result} has no field {min(lacking)!r}; was it written by this "
                "version?"
            )
        return result

    @property
    def outcome(self) -> Mapping[str, Any]:
        """The result of a run that is over."""
        assert self.result is not None, f"{self.key} is not over"
        return self.result

    @property
    def state(self) -> str:
        if self.result is not None:
            return "finished"
        if ended := self.directory.end_without_result():
            return "stopped early" if ended["state"] == "stopped" else f"failed: {ended['reason']}"
        return "unfinished" if self.directory.config.is_file() else "not started"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration under dotted keys, without what differs between runs of one variant."""
        values = flatten(self.config)
        return {key: value for key, value in values.items() if key not in _NO_DIFFERENCE}

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return read_config(self.directory)

    @cached_property
    def first_task_by(self) -> str | None:
        """The run of the sweep that trained its first task, if another one did."""
        shared = self.directory.shared
        return read_json(shared)["run"] if shared.is_file() else None

    @cached_property
    def environments(self) -> list[Mapping[str, Any]]:
        """Where it was trained: more than one if it went on elsewhere or with other code."""
        if not self.directory.environment.is_file():
            return []
        first = read_json(self.directory.environment)
        return [first, *first.get("resumed", [])]

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        return _read(self.directory.steps, read_lines)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return _read(self.directory.events, read_lines)

    @cached_property
    def matrix(self) -> PerformanceMatrix:
        """The performance matrix with the score of every item, from predictions/."""
        return self._answers[0]

    @cached_property
    def unit(self) -> Unit:
        """What runs of two variants must share to be compared: benchmark, order, test rows, seed.

        The digests in result.json cover training rows as well, in which a variant may differ.
        """
        return (self.outcome["benchmark"], self.outcome["order"], self._answers[1]), self.seed

    @cached_property
    def _answers(self) -> tuple[PerformanceMatrix, str]:
        """The matrix, and a digest of each test row's place and right answer.

        Raises:
            InputError: predictions are missing, or are not those that the result was computed from.
        """
        stages = self.outcome["stages"]
        matrix = PerformanceMatrix(tuple(self.outcome["tasks"]), tuple(stages))
        questions: list[tuple[str, str]] = []
        for (i, stage), score in np.ndenumerate(np.array(self.outcome["matrix"], dtype=object)):
            if score is None:
                continue
            path = self.directory.predictions(stage, i)
            lines = _read(path, read_lines)
            matrix.items[i, stage] = [float(line["score"]) for line in lines]
            if not lines or abs((matrix[i, stage] or 0.0) - score) > 1e-6:
                raise InputError(
                    f"{path} does not hold the answers that {self.directory.result} was "
                    "computed from"
                )
            if stage == len(stages) - 1:
                questions += [(line["id"], line["reference"]) for line in lines]
        return matrix, hashlib.sha256(json.dumps(questions).encode()).hexdigest()

    @property
    def backbone(self) -> str:
        """The last part of the model's name."""
        return str(self.settings["model.name"]).rsplit("/", 1)[-1]

    @property
    def title(self) -> str:
        return f"{self.variant}, order {self.order}, seed {self.seed}"

    @property
    def seconds(self) -> float:
        return sum(self.outcome["seconds"].values())

    @property
    def gpu_hours(self) -> float | None:
        """Hours of GPUs; None on CPUs."""
        if not (self.environments and self.environments[0].get("gpus")):
            return None
        return self.seconds * self.outcome.get("world_size", 1) / 3600

    def events_of(self, kind: str) -> int:
        return sum(task.get(kind, 0) for task in self.outcome["events"].values())

    @property
    def padded_rows(self) -> float | None:
        """Examples of the current task in the place of replayed ones; None if there are none."""
        return self.outcome.get("examples", {}).get("padded") or None

    @property
    def replayed_rows(self) -> float | None:
        """Examples of memory, repetitions and views counted: in batches of their own, and mixed
        into those of a task.

        Runs of earlier versions did not count; there it follows from the rows of all updates, less
        those of the tasks. None for mixed views, of which nothing says where a pass ended.
        """
        if counted := self.outcome.get("examples"):
            return counted["replayed"]
        if self.settings.get("method.variant") == "mix":
            return None
        seen = self.outcome["rows_seen"]
        rows_of_tasks = sum(count["train"] for count in self.outcome["rows"].values())
        planned = self.settings["optim.epochs"] * rows_of_tasks
        # Less than none in a fork, which has not seen all rows itself.
        mixed = max(seen.get("task", 0) - planned, 0)
        views = self.settings.get("method.views", 1)
        return views * (seen.get("replay", 0) + seen.get("consolidation", 0)) + mixed

    @property
    def as_in_the_paper(self) -> bool:
        """Whether it has the paper's backbones, orders, rows and training."""
        is_order = self.benchmark in paper.BENCHMARKS and self.order in ORDERS[self.benchmark]
        free = (*_NO_DIFFERENCE, *_FREE)
        if self.settings["model.tuning"] == "full":
            free += ("optim.lr",)  # which the paper does not give
        same = is_order and self.backbone in paper.BACKBONES
        if self.result is not None:
            free += ("data.train_rows", "data.test_rows")
            same = same and has_papers_sizes(self.result["rows"])
        for key, value in flatten(named_run(SCALES["paper"]).model_dump(mode="json")).items():
            if not key.startswith(free):
                same = same and self.settings.get(key, value) == value
        return same


def read_config(directory: RunDirectory) -> Mapping[str, Any]:
    """The configuration as plain data, which may be of an earlier version."""
    path = directory.config
    content = _read(path, lambda path: yaml.safe_load(path.read_text(encoding="utf-8")))
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise InputError(f"{path} cannot be read: it holds {kind}, not named fields")
    return content


def _read(path: Path, parse: Callable[[Path], Any]) -> Any:
    """The content of a file; an InputError names a damaged one."""
    try:
        return parse(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
