"""A run of a study, as its directory tells of it. Each of its files is read at most once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
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
from forever.sweeps.named_runs import SCALES, named_run

# Fine-tuning does nothing against forgetting and joint training has nothing to forget: what methods
# are seen between.
BOUNDS = ("finetune", "mtl")
# A variant runs with many seeds, on many orders, which may be of several benchmarks, anywhere.
_NO_DIFFERENCE = ("seed", "data.benchmark", "data.order", "data.root")
# What the paper's tables vary.
_FREE = ("method.", "memory.fraction", "model.name", "model.tuning")


@dataclass(eq=False)
class Run:
    """A run that was planned. `result`, the content of result.json, is None as long as it is not
    over."""

    key: str
    variant: str
    benchmark: str
    order: str
    seed: int
    directory: RunDirectory
    result: Mapping[str, Any] | None

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
    def config(self) -> Mapping[str, Any]:
        return read_config(self.directory.config)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration under dotted keys, without what differs between runs of one variant."""
        values = flatten(self.config)
        return {key: value for key, value in values.items() if key not in _NO_DIFFERENCE}

    @cached_property
    def environments(self) -> list[Mapping[str, Any]]:
        """Where it was trained: once, or more often if it went on elsewhere or with other code."""
        if not self.directory.environment.is_file():
            return []
        first = read_json(self.directory.environment)
        return [first, *first.get("resumed", [])]

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        return read_records(self.directory.steps)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return read_records(self.directory.events)

    @cached_property
    def matrix(self) -> PerformanceMatrix:
        """The performance matrix with the score of every item, from predictions/."""
        return self._answers[0]

    @cached_property
    def unit(self) -> Unit:
        """What a run of one variant and a run of another must share to be compared.

        That is benchmark, order and the test rows themselves: the digests of the tasks in
        result.json cover training rows as well, in which a variant may well differ.
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
            lines = read_records(path)
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
        """The last part of its name, with which tables are headed."""
        return str(self.settings["model.name"]).rsplit("/", 1)[-1]

    @property
    def title(self) -> str:
        return f"{self.variant}, order {self.order}, seed {self.seed}"

    @property
    def seconds(self) -> float:
        return sum(self.outcome["seconds"].values())

    def events_of(self, kind: str) -> int:
        """How many events of a kind it has."""
        return sum(task.get(kind, 0) for task in self.outcome["events"].values())

    @property
    def replayed_rows(self) -> float | None:
        """Rows of memory, repetitions counted: in batches of their own, and mixed into those of a
        task. None for views, of which nothing says after which row a pass over them ended."""
        if self.settings.get("method.variant") == "mix":
            return None
        seen = self.outcome["rows_seen"]
        rows_of_tasks = sum(count["train"] for count in self.outcome["rows"].values())
        planned = self.settings["optim.epochs"] * rows_of_tasks
        # Less than none in a fork, which has not seen all rows itself.
        mixed = max(seen.get("task", 0) - planned, 0)
        return seen.get("replay", 0) + seen.get("consolidation", 0) + mixed

    @property
    def as_in_the_paper(self) -> bool:
        """Whether it is the paper's run but for what its tables vary: its backbones, orders, rows
        and training."""
        is_order = self.benchmark in paper.BENCHMARKS and self.order in ORDERS[self.benchmark]
        if not is_order or Path(self.settings["model.name"]).name not in paper.BACKBONES:
            return False
        free = _FREE
        if self.settings["model.tuning"] == "full":
            free += ("optim.lr",)  # which the paper does not give
        published = flatten(named_run(SCALES["paper"]).model_dump(mode="json"))
        for key, value in published.items():
            is_fixed = key not in _NO_DIFFERENCE and not key.startswith(free)
            if is_fixed and self.settings.get(key, value) != value:
                return False
        return True


def read_config(path: Path) -> Mapping[str, Any]:
    """A run's configuration as plain data.

    Raises:
        InputError: it cannot be read or is not what its name says.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise InputError(f"{path} cannot be read: it holds {kind}, not named fields")
    return content


def read_records(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; none if it does not exist.

    Raises:
        InputError: it is damaged.
    """
    try:
        return read_lines(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
