"""What a folder of runs holds: which runs there are, which are missing, and what is known of each
variant.

Reads run directories (forever/runs/directory.py) and `sweep.json` (forever/sweeps/sweep.py), and
nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import yaml

from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix
from forever.report.bootstrap import Unit
from forever.report.reading import read_mapping
from forever.report.rows import Row, Run
from forever.report.settings import differences, show
from forever.report.statistics import Comparison, compare
from forever.runs.directory import RunDirectory
from forever.sweeps.published import Published, published
from forever.sweeps.sweep import MANIFEST, read_manifest

# Fine-tuning does nothing against forgetting and joint training has nothing to forget: what methods
# are seen between.
BOUNDS = ("finetune", "mtl")
# What a report reads of result.json.
_FIELDS = {
    "tasks",
    "stages",
    "matrix",
    "op",
    "bwt",
    "forgetting",
    "events",
    "rows_seen",
    "updates",
    "seconds",
}
_FIELDS |= {"benchmark", "order", "seed", "method", "rows", "notes"}


@dataclass(frozen=True)
class Study:
    """Runs that belong together.

    Attributes:
        reference: the variant that the others are compared with, if there is one.
        references: of variants that are compared with another one, or, if with themselves, with
        none.
        paper: the paper's names of variants that have others here.
        several: whether this is a part of a study of several benchmarks.
    """

    name: str
    folder: Path
    runs: tuple[Run, ...]
    reference: str | None
    paper: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)
    several: bool = False

    @property
    def others(self) -> dict[str, str]:
        """Variants that are compared with another than `reference`, and with which."""
        own = {run.variant for run in self.runs}
        return {
            name: to
            for name, to in self.references.items()
            if name in own and to not in (name, self.reference)
        }

    @property
    def parts(self) -> list[Study]:
        """The study benchmark by benchmark: scores on different tasks have no common mean.

        A benchmark of which nothing is finished yet has a part, too.
        """
        names = dict.fromkeys(run.benchmark for run in self.runs if run.benchmark)
        return [
            replace(
                self,
                runs=tuple(run for run in self.runs if run.benchmark == name),
                several=len(names) > 1,
            )
            for name in names
        ]

    @property
    def benchmark(self) -> str:
        """Of a part."""
        return self.runs[0].benchmark

    @property
    def missing(self) -> list[Run]:
        return [run for run in self.runs if run.result is None and run.state != "stopped early"]

    @property
    def stopped(self) -> list[Run]:
        """Runs that a search gave up."""
        return [run for run in self.runs if run.state == "stopped early"]

    @cached_property
    def rows(self) -> list[Row]:
        """All variants in the order of the sweep, bounds last."""
        finished: dict[str, list[Run]] = {run.variant: [] for run in self.runs}
        for run in self.runs:
            if run.result is not None:
                finished[run.variant].append(run)
        bounds = [
            name for name, runs in finished.items() if name != self.reference and _is_bound(runs)
        ]
        if len(bounds) == len(finished):
            bounds = []  # nothing lies between them
        matrices = {name: _matrices(runs) for name, runs in finished.items()}
        compared = compare(matrices, self.reference, outside=bounds, references=self.references)
        plain = next(
            (
                compared[name]
                for name, runs in finished.items()
                if runs and _method(runs) == "finetune"
            ),
            None,
        )
        rows: list[Row] = []
        for name, runs in finished.items():
            own = [run for run in self.runs if run.variant == name]
            stopped = sum(run.state == "stopped early" for run in own)
            reference = self.references.get(name, self.reference)
            papers = [self._published(name), self._published(reference)]
            comparison = compared.get(name)
            idle = (
                bool(runs)
                and _method(runs) != "finetune"
                and comparison is not None
                and _same(comparison, plain)
            )
            rows.append(
                Row(
                    name,
                    name in bounds,
                    runs,
                    len(own),
                    comparison,
                    stopped,
                    reference,
                    *papers,
                    idle=idle,
                )
            )
        return sorted(rows, key=lambda row: row.bound)

    def _published(self, variant: str | None) -> Published | None:
        return (
            published(self.name, self.benchmark, self.paper.get(variant, variant))
            if variant
            else None
        )

    @property
    def example(self) -> Run | None:
        """A finished run to show settings of: the reference's first, or else the first."""
        finished = [run for run in self.runs if run.result is not None]
        return next(
            (run for run in finished if run.variant == self.reference), next(iter(finished), None)
        )


def _method(runs: Sequence[Run]) -> str:
    """Of a variant with finished runs."""
    assert runs[0].result is not None
    return runs[0].result["method"]


def _same(one: Comparison, other: Comparison | None) -> bool:
    return other is not None and (one.op, one.bwt) == (other.op, other.bwt)


def _matrices(runs: Sequence[Run]) -> dict[Unit, PerformanceMatrix]:
    found: dict[Unit, Run] = {}
    for run in runs:
        twin = found.setdefault(unit(run), run)
        if twin is not run:
            raise InputError(
                f"{twin.directory.path} and {run.directory.path} hold the same run; keep one of them"
            )
    return {key: run.matrix() for key, run in found.items()}


def unit(run: Run) -> Unit:
    """What a run of one variant and a run of another must share to be compared with each other.

    The digests of the tasks in result.json cover training rows as well, in which a variant may well
    differ.
    """
    assert run.result is not None
    return (run.result["benchmark"], run.result["order"], run.questions()), run.seed


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
        raise InputError(
            f"{folder} holds a file with missing or strange fields ({error})"
        ) from None


def _find(folder: Path) -> Study:
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        listed = [
            _run(folder / t["key"], t["variant"], t["benchmark"], t["order"], t["seed"])
            for t in manifest["trials"]
        ]
        runs = tuple(_name_variants(listed))
        references = _references(listed, runs, manifest["references"], manifest["reference"])
        return Study(
            manifest["name"], folder, runs, manifest["reference"], manifest["paper"], references
        )
    if (folder / "config.yaml").is_file():
        run = _run(folder)
        return Study(run.key, folder, (run,), None)
    paths = sorted(path.parent for path in folder.glob("*/config.yaml"))
    if not paths:
        raise InputError(
            f"{folder} holds no runs: neither it nor a folder in it has a config.yaml, nor is it a sweep"
        )
    runs = list(_name_variants([_run(path) for path in paths]))
    return Study(
        folder.name,
        folder,
        tuple(runs),
        "forever" if any(r.variant == "forever" for r in runs) else None,
    )


def _run(path: Path, variant: str = "", benchmark: str = "", order: str = "", seed: int = 0) -> Run:
    """A run directory; without a sweep that says so, its configuration tells variant, order and
    seed."""
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
        variant, order, seed = (
            config["method"]["name"],
            order if isinstance(order, str) else "custom",
            config["seed"],
        )
        if directory.fork.is_file():  # what it learned before, it learned in another way
            origin = read_mapping(directory.fork, json.loads)
            variant = f"{variant} from {origin['run']}@{origin['stage']}"
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


def _references(
    listed: Sequence[Run], runs: Sequence[Run], references: Mapping[str, str], reference: str
) -> dict[str, str]:
    """With whom a variant is compared, under the names that `_name_variants` gave: a run of other
    settings with the reference of the same settings, or else with none."""
    names = {run.variant for run in runs}
    found: dict[str, str] = {}
    for before, run in zip(listed, runs, strict=True):
        suffix = run.variant.removeprefix(before.variant)
        other = references.get(before.variant, reference) + suffix
        if suffix or before.variant in references:
            found[run.variant] = other if other in names or not suffix else run.variant
    return found


def _is_bound(runs: Sequence[Run]) -> bool:
    return bool(runs) and all(
        run.result is not None and run.result["method"] in BOUNDS for run in runs
    )
