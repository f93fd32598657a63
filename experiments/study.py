"""What a folder of runs holds: which runs there are, which are missing, and what is known of each variant.

Reads run directories (forever/run_directory.py) and `sweep.json` (forever/sweep.py), and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from experiments.paper import BACKBONES, BENCHMARKS, Published, published
from experiments.reading import read_mapping, read_records
from experiments.settings import differences, flatten, show
from forever.errors import InputError
from forever.metrics import PerformanceMatrix
from forever.run_directory import RunDirectory
from forever.statistics import Comparison, compare
from forever.sweep import MANIFEST, read_manifest

# Fine-tuning does nothing against forgetting and joint training has nothing to forget: what methods are seen between.
BOUNDS = ("finetune", "mtl")
# A variant runs with many seeds, on many orders, which may be of several benchmarks, anywhere.
_NO_DIFFERENCE = ("seed", "data.benchmark", "data.order", "data.root")
# What a report reads of result.json.
_FIELDS = {"tasks", "stages", "matrix", "op", "bwt", "forgetting", "events", "rows_seen", "updates", "seconds"}
_FIELDS |= {"benchmark", "order", "seed", "method", "rows", "notes"}


@dataclass(frozen=True)
class Run:
    """A run that was planned. `result`, the content of result.json, is None as long as it is not over."""

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
        return "unfinished" if self.directory.config.is_file() else "not started"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration under dotted keys, without what differs between runs of one variant."""
        values = flatten(read_mapping(self.directory.config, yaml.safe_load))
        return {key: value for key, value in values.items() if key not in _NO_DIFFERENCE}

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        path = self.directory.path / "environment.json"
        return read_mapping(path, json.loads) if path.is_file() else {}

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
                    raise InputError(f"{path} does not hold the answers that {self.directory.result} was computed from")
        return matrix


@dataclass(frozen=True)
class Row:
    """What is known of one variant. Means are over its finished runs; None where nothing was measured.

    Attributes:
        bound: whether it is a bound for the others rather than one of them.
        runs: finished ones. planned: how many there should be.
        paper: the row of the paper's table, if there is one. paper_difference: its OP less the reference's.
    """

    variant: str
    bound: bool
    runs: Sequence[Run]
    planned: int
    comparison: Comparison | None
    paper: Published | None = None
    paper_difference: float | None = None

    @property
    def results(self) -> list[Mapping[str, Any]]:
        return [run.result for run in self.runs if run.result is not None]

    @property
    def forgetting(self) -> float | None:
        return _mean([result["forgetting"] for result in self.results])

    def events(self, kind: str) -> float | None:
        """Events of a kind a run."""
        return _mean([sum(task.get(kind, 0) for task in result["events"].values()) for result in self.results])

    @property
    def replayed_rows(self) -> float | None:
        seen = [result["rows_seen"] for result in self.results]
        return _mean([rows.get("replay", 0) + rows.get("consolidation", 0) for rows in seen])

    @property
    def updates(self) -> float | None:
        return _mean([sum(result["updates"].values()) for result in self.results])

    @property
    def seconds(self) -> float | None:
        return _mean([sum(result["seconds"].values()) for result in self.results])

    @property
    def same_setting(self) -> bool:
        """Whether the runs are of the paper's size: its backbones, all rows."""
        limits = ("data.train_rows", "data.test_rows")
        return all(
            run.benchmark in BENCHMARKS
            and Path(run.settings["model.name"]).name in BACKBONES
            and all(run.settings[key] is None for key in limits)
            for run in self.runs
        )

    @property
    def gpu_hours(self) -> float | None:
        """Hours of GPUs a run; None on CPUs."""
        if not all(run.environment.get("gpus") for run in self.runs):
            return None
        return _mean([sum(r["seconds"].values()) * r.get("world_size", 1) / 3600 for r in self.results])


@dataclass(frozen=True)
class Study:
    """Runs that belong together.

    Attributes:
        reference: the variant that the others are compared with, if there is one.
        paper: the paper's names of variants that have others here.
        several: whether this is a part of a study of several benchmarks.
    """

    name: str
    folder: Path
    runs: tuple[Run, ...]
    reference: str | None
    paper: Mapping[str, str] = field(default_factory=dict)
    several: bool = False

    @property
    def parts(self) -> list[Study]:
        """The study benchmark by benchmark: scores on different tasks have no common mean."""
        names = dict.fromkeys(run.benchmark for run in self.runs if run.result is not None)
        return [
            replace(self, runs=tuple(run for run in self.runs if run.benchmark == name), several=len(names) > 1)
            for name in names
        ]

    @property
    def benchmark(self) -> str:
        """Of a part."""
        return self.runs[0].benchmark

    @property
    def missing(self) -> list[Run]:
        return [run for run in self.runs if run.result is None]

    @cached_property
    def rows(self) -> list[Row]:
        """All variants in the order of the sweep, bounds last."""
        finished: dict[str, list[Run]] = {run.variant: [] for run in self.runs}
        for run in self.runs:
            if run.result is not None:
                finished[run.variant].append(run)
        bounds = [name for name, runs in finished.items() if name != self.reference and _is_bound(runs)]
        if len(bounds) == len(finished):
            bounds = []  # nothing lies between them
        compared = compare({name: _matrices(runs) for name, runs in finished.items()}, self.reference, outside=bounds)
        rows: list[Row] = []
        for name, runs in finished.items():
            planned = sum(run.variant == name for run in self.runs)
            paper, difference = self._published(name)
            rows.append(Row(name, name in bounds, runs, planned, compared.get(name), paper, difference))
        return sorted(rows, key=lambda row: row.bound)

    def _published(self, variant: str) -> tuple[Published | None, float | None]:
        """The paper's row, and its difference to the row of the reference."""
        row, base = (
            published(self.name, self.benchmark, self.paper.get(name, name)) if name else None
            for name in (variant, self.reference)
        )
        return row, row.op - base.op if row and base and row is not base else None

    @property
    def example(self) -> Run:
        """A finished run to show settings of: the reference's first, or else the first."""
        finished = [run for run in self.runs if run.result is not None]
        return next((run for run in finished if run.variant == self.reference), finished[0])


def _matrices(runs: Sequence[Run]) -> dict[tuple[Any, ...], PerformanceMatrix]:
    found: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        twin = found.setdefault(unit(run), run)
        if twin is not run:
            raise InputError(f"{twin.directory.path} and {run.directory.path} hold the same run; keep one of them")
    return {key: run.matrix() for key, run in found.items()}


def unit(run: Run) -> tuple[Any, ...]:
    """What a run of one variant and a run of another must share to be compared with each other."""
    assert run.result is not None
    rows = tuple(run.result["rows"][task]["test"] for task in run.result["tasks"])
    return (run.result["benchmark"], run.result["order"], rows, run.seed)


def read_study(folder: Path) -> Study:
    """The runs of a sweep folder, of one run directory, or of a folder of run directories.

    Raises:
        InputError: there are no finished runs in the folder, or a file in it is damaged.
    """
    folder = Path(folder).absolute()
    try:
        study = _find(folder)
        if all(run.result is None for run in study.runs):
            raise InputError(f"{folder}: none of its {len(study.runs)} runs is finished yet")
        return study
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder} holds a file with missing or strange fields ({error})") from None


def _find(folder: Path) -> Study:
    if (folder / MANIFEST).is_file():
        manifest = read_mapping(folder / MANIFEST, lambda _: read_manifest(folder))
        runs = [
            _run(folder / t["key"], t["variant"], t["benchmark"], t["order"], t["seed"]) for t in manifest["trials"]
        ]
        return Study(manifest["name"], folder, tuple(_name_variants(runs)), manifest["reference"], manifest["paper"])
    if (folder / "config.yaml").is_file():
        run = _run(folder)
        return Study(run.key, folder, (run,), None)
    paths = sorted(path.parent for path in folder.glob("*/config.yaml"))
    if not paths:
        raise InputError(f"{folder} holds no runs: neither it nor a folder in it has a config.yaml, nor is it a sweep")
    runs = list(_name_variants([_run(path) for path in paths]))
    return Study(folder.name, folder, tuple(runs), "forever" if any(r.variant == "forever" for r in runs) else None)


def _run(path: Path, variant: str = "", benchmark: str = "", order: str = "", seed: int = 0) -> Run:
    """A run directory; without a sweep that says so, its configuration tells variant, order and seed."""
    directory = RunDirectory(path)
    result = read_mapping(directory.result, json.loads) if directory.result.is_file() else None
    if result is not None and not _FIELDS.issubset(result):
        raise InputError(
            f"{directory.result} has no field {min(_FIELDS - set(result))!r}; was it written by this version?"
        )
    if not benchmark and directory.config.is_file():  # the manifest of an earlier version
        benchmark = read_mapping(directory.config, yaml.safe_load)["data"]["benchmark"]
    if not variant:
        config = read_mapping(directory.config, yaml.safe_load)
        order = config["data"]["order"]
        variant, order, seed = config["method"]["name"], order if isinstance(order, str) else "custom", config["seed"]
    return Run(path.name, variant, benchmark, order, seed, directory, result)


def _name_variants(runs: Sequence[Run]) -> Iterator[Run]:
    """Runs of one variant have equal settings; others get what differs into their name.

    A sweep can hold both: its folder may have been used again with another base.
    """
    first: dict[str, Run] = {}
    for run in runs:
        if not run.directory.config.is_file():
            yield run
            continue
        changes = differences(first.setdefault(run.variant, run).settings, run.settings)
        suffix = ", ".join(f"{key}={show(value)}" for key, value in changes.items())
        yield replace(run, variant=f"{run.variant} ({suffix})") if changes else run


def _is_bound(runs: Sequence[Run]) -> bool:
    return bool(runs) and all(run.result is not None and run.result["method"] in BOUNDS for run in runs)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None
