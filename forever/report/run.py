"""A run of a study, read from its directory. Each of its files is read at most once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from forever.config.methods import config_class, has_method
from forever.config.orders import ORDERS
from forever.config.overrides import flatten
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix
from forever.report.format import setting
from forever.runs.directory import RunDirectory
from forever.stats.bootstrap import Unit
from forever.sweeps import published as paper
from forever.sweeps.named_runs import SCALES, has_papers_sizes, named_run

# A variant runs with many seeds, on many orders, which may be of several benchmarks, anywhere.
_NO_DIFFERENCE = ("seed", "data.benchmark", "data.order", "data.root")
# What the paper's tables vary.
_FREE = ("method.", "memory.fraction", "model.name", "model.tuning")


@dataclass(eq=False)
class Run:
    """A run that was planned, under the names that a report has for it."""

    directory: RunDirectory
    variant: str
    benchmark: str
    order: str
    seed: int
    reference: str | None = None  # the variant that it is compared with; a reference has itself
    paper_variant: str = ""  # the paper's name of the variant
    source: str = ""  # the name of the folder, where several are compared
    # In a sweep of two factors, the level of each by the factor's name.
    levels: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.directory.path.name

    @property
    def place_in_sweep(self) -> tuple[str, str, str, int]:
        """What one run of a sweep has for itself, unless it was edited in between."""
        return self.variant, self.benchmark, self.order, self.seed

    @property
    def place(self) -> str:
        """Where it lies, for people."""
        return f"{self.source}/{self.key}" if self.source else self.key

    @cached_property
    def damage(self) -> str | None:
        """What is wrong with one of its files, if something is: then nothing of it counts.

        All is read that a report rests on, and what can be said without a result.
        """
        try:
            finished = self._finished  # first, since its manifest names a damaged file
            self.directory.end_without_result()
            if self.directory.config.is_file():
                self.directory.read_fork()
                _ = self.environments
                _ = [self.settings[key] for key in ("model.name", "method.name", "model.tuning")]
            if finished is not None:
                _ = self._answers
        except InputError as error:
            return str(error)
        except (KeyError, TypeError, AttributeError) as error:
            return f"{self.directory.path} has a file with missing or unexpected fields ({error})"
        return None

    @property
    def has_begun(self) -> bool:
        """Whether it has a configuration, and nothing of it is damaged."""
        return self.directory.config.is_file() and not self.damage

    @cached_property
    def _finished(self) -> Mapping[str, Any] | None:
        return self.directory.verify()

    @cached_property
    def result(self) -> Mapping[str, Any] | None:
        """The content of result.json; None until it is over, and if it is damaged."""
        return None if self.damage else self._finished

    @property
    def outcome(self) -> Mapping[str, Any]:
        """The result of a run that is over."""
        assert self.result is not None, f"{self.key} is not over"
        return self.result

    @property
    def state(self) -> str:
        if self.damage:
            return "damaged"
        if self.result is not None:
            return "finished"
        if ended := self.directory.end_without_result():
            return "stopped early" if ended["state"] == "stopped" else f"failed: {ended['reason']}"
        return "unfinished" if self.directory.config.is_file() else "not started"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration under dotted keys, without what differs between runs of one variant.

        A field that the run's version did not have yet has its default, which does what that
        version did."""
        name, values = self.config["method"]["name"], flatten(self.config)
        defaults = RunConfig().model_dump(mode="json") | {"method": method_defaults(name)}
        known = {section: defaults.get(section, {}) for section in self.config}
        values = flatten(known) | values
        return {key: value for key, value in values.items() if key not in _NO_DIFFERENCE}

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The configuration as plain data, which may be of an earlier version."""
        return self.directory.read_settings()

    @cached_property
    def environments(self) -> Sequence[Mapping[str, Any]]:
        """Where it was trained: more than one if it was resumed elsewhere or with other code."""
        return self.directory.read_lives() if self.directory.environment.is_file() else []

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        return self.directory.read_steps()

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return self.directory.read_events()

    @cached_property
    def matrix(self) -> PerformanceMatrix:
        """The performance matrix with the score of every item, from predictions/."""
        return self._answers[0]

    def identity(self) -> dict[str, Any]:
        """What identifies a run of a sweep."""
        about = ("variant", "benchmark", "order", "seed", "key")
        return {name: getattr(self, name) for name in about}

    def summary(self) -> dict[str, Any]:
        """The run in a row; what is not measured is missing."""
        row = {**self.identity(), "state": self.state, "folder": str(self.directory.path)}
        if self.result is None:
            return row
        scores = {name: self.outcome.get(name) for name in ("op", "bwt", "fwt", "forgetting")}
        replays = {kind: self.events_of(kind) for kind in ("replay", "consolidation")}
        updates = sum(self.outcome["updates"].values())
        costs = {"replayed_rows": self.examples_of("replayed"), "updates": updates}
        return {**row, **scores, **replays, **costs, "seconds": self.seconds}

    def cells(self) -> list[dict[str, Any]]:
        """The scores that were measured, in percent: on a task, after a stage (also its number)."""
        cells: list[dict[str, Any]] = []
        for task, row in zip(self.outcome["tasks"], self.outcome["matrix"], strict=True):
            for after, score in enumerate(row, 1):
                stage = self.outcome["stages"][after - 1]
                if score is not None:
                    cells.append({"task": task, "stage": stage, "after": after, "score": score})
        return cells

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
        assert self._finished is not None
        stages = self._finished["stages"]
        mixed = tuple(self.directory.mixed_tests())
        matrix = PerformanceMatrix(tuple(self._finished["tasks"]), tuple(stages), mixed=mixed)
        questions: list[tuple[str, str]] = []
        for (i, stage), score in np.ndenumerate(np.array(self._finished["matrix"], dtype=object)):
            if score is None:
                matrix.missing |= {(i, stage)} if stage >= i else set()
                continue
            path = self.directory.predictions(stage, i)
            lines = self.directory.read_answers(stage, i)
            matrix.items[i, stage] = [float(line["score"]) for line in lines]
            tests = self._finished["rows"][matrix.tasks[i]]["test"]
            if len(lines) != tests or abs((matrix[i, stage] or 0.0) - score) > 1e-6:
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

    def examples_of(self, kind: str) -> float | None:
        """Training examples that were, for instance, "replayed", each time that they were."""
        return (self.outcome.get("examples") or {}).get(kind)

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


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `other` that `base` has not; of another method's own fields, those that are
    not its defaults."""
    changed: dict[str, Any] = {}
    expected = dict(base)
    if base["method.name"] != other["method.name"]:
        name = other["method.name"]
        expected |= flatten({"method": method_defaults(name)})
        expected["method.name"] = base["method.name"]
    for key, value in other.items():
        if key not in expected or expected[key] != value:
            changed[key] = value
    return changed


def method_defaults(name: str) -> dict[str, Any]:
    """Return the fields of a method at their defaults; none of a method that is not installed."""
    if not has_method(name):
        return {}
    return config_class(name).model_validate({"name": name}).model_dump(mode="json")


def pairs(settings: Mapping[str, Any]) -> list[str]:
    """Settings as a person would write them: "optim.lr=0.01"."""
    return [f"{key}={setting(value)}" for key, value in settings.items()]
