"""A run of a study, and what the runs of one variant tell together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from forever.config.overrides import flatten
from forever.data.orders import ORDERS
from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix
from forever.report.reading import read_mapping, read_records
from forever.report.statistics import Comparison
from forever.runs.directory import RunDirectory, read_json
from forever.sweeps.named_runs import SCALES, named_run
from forever.sweeps.published import BACKBONES, BENCHMARKS, Published, agreement

# A variant runs with many seeds, on many orders, which may be of several benchmarks, anywhere.
_NO_DIFFERENCE = ("seed", "data.benchmark", "data.order", "data.root")


@dataclass(frozen=True)
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
    def state(self) -> str:
        if self.result is not None:
            return "finished"
        if ended := self.directory.end_without_result():
            return "stopped early" if ended["state"] == "stopped" else f"failed: {ended['reason']}"
        return "unfinished" if self.directory.config.is_file() else "not started"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration under dotted keys, without what differs between runs of one variant."""
        values = flatten(read_mapping(self.directory.config, yaml.safe_load))
        return {key: value for key, value in values.items() if key not in _NO_DIFFERENCE}

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        path = self.directory.environment
        return read_json(path) if path.is_file() else {}

    @property
    def environments(self) -> list[Mapping[str, Any]]:
        """Where it was trained: once, or more often if it went on elsewhere or with other code."""
        return [self.environment, *self.environment.get("resumed", [])] if self.environment else []

    def questions(self) -> str:
        """A digest that changes with any test row: its place and its right answer, from
        predictions/."""
        assert self.result is not None
        last = len(self.result["stages"]) - 1
        lines = [
            line
            for i in range(len(self.result["tasks"]))
            for line in read_records(self.directory.predictions(last, i))
        ]
        return hashlib.sha256(
            json.dumps([(line["id"], line["reference"]) for line in lines]).encode()
        ).hexdigest()

    def matrix(self) -> PerformanceMatrix:
        """The performance matrix with the score of every item, from predictions/.

        Raises:
            InputError: predictions are missing, or are not those that the result was computed from.
        """
        assert self.result is not None
        matrix = PerformanceMatrix(tuple(self.result["tasks"]), tuple(self.result["stages"]))
        for i, row in enumerate(self.result["matrix"]):
            for j, score in enumerate(row):
                if score is None:
                    continue
                path = self.directory.predictions(j, i)
                matrix.items[i, j] = [float(line["score"]) for line in read_records(path)]
                if not matrix.items[i, j] or abs((matrix[i, j] or 0.0) - score) > 1e-6:
                    raise InputError(
                        f"{path} does not hold the answers that {self.directory.result} was computed from"
                    )
        return matrix


@dataclass(frozen=True)
class Row:
    """What is known of one variant. Means are over its finished runs; None where nothing was
    measured.

    Attributes:
        bound: whether it is a bound for the others rather than one of them.
        runs: finished ones. planned: how many there should be. stopped: early, by a search.
        reference: the variant that it is compared with; a reference has itself.
        paper: the row of the paper's table, if there is one. paper_reference: that of its
        reference.
        idle: it ends as fine-tuning does, to the last digit: a method that did nothing of its own,
        such as SSR when it
            writes no usable row.
    """

    variant: str
    bound: bool
    runs: Sequence[Run]
    planned: int
    comparison: Comparison | None
    stopped: int = 0
    reference: str | None = None
    paper: Published | None = None
    paper_reference: Published | None = None
    idle: bool = False

    @property
    def results(self) -> list[Mapping[str, Any]]:
        return [run.result for run in self.runs if run.result is not None]

    @property
    def paper_difference(self) -> float | None:
        """OP less the reference's, as published."""
        if self.paper is None or self.paper_reference is None or self.reference == self.variant:
            return None
        return self.paper.op - self.paper_reference.op

    @property
    def paper_bwt_difference(self) -> float | None:
        """BWT less the reference's, as published."""
        bwt, base = (row.bwt if row else None for row in (self.paper, self.paper_reference))
        return None if bwt is None or base is None or self.reference == self.variant else bwt - base

    @property
    def agreement(self) -> str:
        """Whether the verdict agrees with the published difference; "" if there is nothing to
        compare."""
        difference = self.comparison.difference if self.comparison else None
        if self.comparison is None or difference is None or self.idle:
            return ""
        return agreement(
            self.paper_difference, self.comparison.verdict, difference.low, difference.high
        )

    @property
    def forgetting(self) -> float | None:
        return _mean([result["forgetting"] for result in self.results])

    def events(self, kind: str) -> float | None:
        """Events of a kind a run."""
        return _mean(
            [
                sum(task.get(kind, 0) for task in result["events"].values())
                for result in self.results
            ]
        )

    @property
    def replayed_rows(self) -> float | None:
        """Rows of memory a run, repetitions counted: in batches of their own, and mixed into those
        of a task."""
        return _mean([_replayed(run) for run in self.runs])

    @property
    def updates(self) -> float | None:
        return _mean([sum(result["updates"].values()) for result in self.results])

    @property
    def seconds(self) -> float | None:
        return _mean([sum(result["seconds"].values()) for result in self.results])

    @property
    def same_setting(self) -> bool:
        """Whether the runs are the paper's but for what its tables vary: its backbones, orders,
        rows and training."""
        return all(_as_in_the_paper(run) for run in self.runs)

    @property
    def gpu_hours(self) -> float | None:
        """Hours of GPUs a run; None on CPUs."""
        if not all(run.environment.get("gpus") for run in self.runs):
            return None
        return _mean(
            [sum(r["seconds"].values()) * r.get("world_size", 1) / 3600 for r in self.results]
        )


def _replayed(run: Run) -> float | None:
    assert run.result is not None
    if run.settings.get("method.variant") == "mix":
        # With several views a pass over the mixed rows may end early, after we do not know which.
        return None
    seen = run.result["rows_seen"]
    own = run.settings["optim.epochs"] * sum(
        count["train"] for count in run.result["rows"].values()
    )
    # Less than none in a fork, which has not seen all rows itself.
    mixed = max(seen.get("task", 0) - own, 0)
    return seen.get("replay", 0) + seen.get("consolidation", 0) + mixed


def _as_in_the_paper(run: Run) -> bool:
    if run.order not in ORDERS.get(run.benchmark, {}) or run.benchmark not in BENCHMARKS:
        return False
    if Path(run.settings["model.name"]).name not in BACKBONES:
        return False
    free = ("method.", "memory.fraction", "model.name", "model.tuning")  # what its tables vary
    if run.settings["model.tuning"] == "full":
        free += ("optim.lr",)  # which it does not give
    paper = flatten(named_run(SCALES["paper"]).model_dump(mode="json"))
    return all(run.settings.get(key, value) == value for key, value in paper.items()
               if key not in _NO_DIFFERENCE and not key.startswith(free))  # fmt: skip


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None
