"""What a folder of runs holds: which runs there are, which are missing, and which belong together.

Reads run directories (forever/runs/directory.py) and `sweep.json` (forever/sweeps/sweep.py), and
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from forever.errors import InputError, reading, shown
from forever.report.row import Row, rows_of
from forever.report.run import Run, differences, pairs
from forever.runs.directory import RunDirectory
from forever.sweeps import published as paper
from forever.sweeps.files import SweepFile, sweep_of
from forever.sweeps.rounds import read_stopping
from forever.sweeps.sweep import MANIFEST, read_manifest
from forever.text import complain


@dataclass(frozen=True)
class Study:
    """Runs that belong together."""

    name: str
    folder: Path
    runs: Sequence[Run]
    reference: str | None = None  # the variant that the others are compared with, if there is one
    paper_names: Mapping[str, str] = field(default_factory=dict)  # of variants with another name
    # With whom a variant is compared, if not with `reference`; with itself: with none.
    references: Mapping[str, str] = field(default_factory=dict)
    file: SweepFile | None = None  # what the sweep's file says, if there is one
    # By which rule a sweep in rounds decides (forever/sweeps/rounds.py).
    stopping: Mapping[str, Any] | None = None
    folders: Sequence[str] = ()  # names of those that are compared, if it is more than one

    @cached_property
    def parts(self) -> list[Part]:
        """The study benchmark by benchmark, those of which nothing is finished yet included."""
        shared = {item.name: getattr(self, item.name) for item in fields(self)}
        by_benchmark: dict[str, list[Run]] = {}
        for run in self.runs:
            if run.benchmark:
                by_benchmark.setdefault(run.benchmark, []).append(run)
        parts: list[Part] = []
        for benchmark, runs in by_benchmark.items():
            place = {"runs": runs, "benchmark": benchmark, "several": len(by_benchmark) > 1}
            parts.append(Part(**{**shared, **place}))
        return parts

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of all parts."""
        return [row for part in self.parts for row in part.rows]

    @property
    def others(self) -> dict[str, str]:
        """The variants that are compared with another than `reference`, and with which."""
        others: dict[str, str] = {}
        for run in self.runs:
            other = self.references.get(run.variant, run.variant)
            if other not in (run.variant, self.reference):
                others[run.variant] = other
        return others

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.result is not None]

    @property
    def stopped(self) -> list[Run]:
        """Those that a search gave up."""
        return [run for run in self.runs if run.state == "stopped early"]

    @property
    def missing(self) -> list[Run]:
        return [run for run in self.runs if run.state not in ("finished", "stopped early")]

    @property
    def example(self) -> Run:
        """A finished run to show settings of: the reference's first, or else the first."""
        return min(self.finished, key=lambda run: run.variant != self.reference)

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.finished})


@dataclass(frozen=True)
class Part(Study):
    """The runs of a study on one benchmark: scores on different tasks have no common mean."""

    benchmark: str = ""
    several: bool = False  # whether the study has other parts, too

    @cached_property
    def rows(self) -> list[Row]:
        """All variants in the order of the sweep, bounds last."""
        planned: dict[str, list[Run]] = {}
        for run in self.runs:
            planned.setdefault(run.variant, []).append(run)
        return rows_of(
            planned,
            self.reference,
            self.references,
            self.paper_names,
            lambda name: paper.published(self.file or self.name, self.benchmark, name),
            self.stopping,
        )

    @property
    def in_rounds(self) -> bool:
        """Whether the rule of a sweep in rounds is what judges here."""
        return any(row.decided for row in self.rows)

    @property
    def refused(self) -> list[str]:
        """Those that could have a verdict if they replayed as much as their reference, and by how
        much they do not."""
        unequal = [row for row in self.measured if not row.footing.comparable]
        return [f"{row.variant} ({row.footing.words()})" for row in unequal]

    def compares_with(self, variant: str) -> bool:
        """Whether it is the reference here."""
        others = (row.reference for row in self.rows if row.variant != variant)
        return variant == self.reference or variant in others

    @cached_property
    def measured(self) -> list[Row]:
        """The variants of which a run is finished."""
        return [row for row in self.rows if row.runs]

    @property
    def most_runs(self) -> int:
        """The largest number of runs that a variant has; those of joint training in several orders
        are one."""
        return max((row.compared("op").runs for row in self.measured), default=0)


def read_study(folder: Path) -> Study:
    """The runs of a sweep folder, of one run directory, or of a folder of run directories.

    Damaged runs are named and left out.

    Raises:
        InputError: there are no finished runs in the folder, or the sweep's own file is damaged.
    """
    folder = Path(folder).absolute()
    with reading(folder):
        study = _find(folder)
        damage = [run.damage for run in study.runs if run.damage]
        if damage and not study.finished:
            raise InputError(damage[0])
        for problem in damage:
            complain(f"left out of the report: {problem}")
        refuse_versions(study.finished)
        refuse_method_versions(study.finished)
        if not (study.finished and study.rows):  # which reads all results and answers
            raise InputError(
                f"{folder}: no run in it is finished yet; wait, or resume it with "
                "`forever run ... --resume`, a sweep with its own command"
            )
        return study


def refuse_versions(runs: Sequence[Run]) -> None:
    """Refuse runs of one order, by name, that had other tasks: their benchmark has changed."""
    first: dict[tuple[str, str], Run] = {}
    for run in runs:
        known = first.setdefault((run.outcome["benchmark"], run.outcome["order"]), run)
        if known.outcome["tasks"] != run.outcome["tasks"]:
            raise InputError(
                f"{known.key} and {run.key} are of different versions of the benchmark "
                f"{run.benchmark!r}: order {shown(run.outcome['order'])} had the tasks "
                f"{', '.join(known.outcome['tasks'])}, then {', '.join(run.outcome['tasks'])}; "
                "move the runs of one of them to a folder of their own"
            )


def refuse_method_versions(runs: Sequence[Run]) -> None:
    """Refuse runs of one method that two versions of its package trained."""
    first: dict[str, Run] = {}
    for run in runs:
        known = first.setdefault(run.outcome["method"], run)
        packages = [each.outcome.get("method_package") for each in (known, run)]
        if packages[0] != packages[1]:
            versions = [" ".join(package.values()) if package else "none" for package in packages]
            raise InputError(
                f"{known.key} and {run.key}: method {run.outcome['method']} is of the packages "
                f"{versions[0]} and {versions[1]}; move the runs of one of them to a folder of "
                "their own",
                key="method.name",
            )


def _find(folder: Path) -> Study:
    if (folder / MANIFEST).is_file():
        return _sweep(folder)
    if (folder / "config.yaml").is_file():
        return Study(folder.name, folder, [plain_run(folder)])
    runs = [plain_run(path.parent) for path in sorted(folder.glob("*/config.yaml"))]
    if not runs:
        raise InputError(
            f"{folder} holds no runs: neither it nor a folder in it has a config.yaml, nor is it "
            "a sweep"
        )
    for run, suffix in _other_settings(runs).items():
        run.variant += suffix
    _tell_tasks_apart(runs)
    has_forever = any(run.variant == "forever" for run in runs)
    return Study(folder.name, folder, runs, "forever" if has_forever else None)


def _sweep(folder: Path) -> Study:
    manifest = read_manifest(folder)
    runs: list[Run] = []
    for trial in manifest["trials"]:
        about = trial["variant"], trial["benchmark"], trial["order"], trial["seed"]
        runs.append(Run(RunDirectory(folder / trial["key"]), *about))
    name, reference = manifest["name"], manifest["reference"]
    suffixes = _other_settings(runs)
    names = {run.variant + suffixes.get(run, "") for run in runs}
    references: dict[str, str] = {}
    for run in runs:
        # Runs of other settings are compared with the reference of the same settings, or with none.
        suffix = suffixes.get(run, "")
        other = manifest["references"].get(run.variant, reference) + suffix
        run.variant += suffix
        references[run.variant] = run.variant if suffix and other not in names else other
    file = sweep_of(folder, name)
    paper_names, stopping = manifest["paper"], read_stopping(folder)
    return Study(name, folder, runs, reference, paper_names, references, file, stopping)


def plain_run(path: Path) -> Run:
    """A run without a sweep, of which its configuration tells variant, order and seed."""
    run = Run(RunDirectory(path), path.name, "", "", 0)
    if not run.has_begun:
        return run
    data = run.config["data"]
    run.benchmark, run.seed = data["benchmark"], run.config["seed"]
    run.order = data["order"] if isinstance(data["order"], str) else "custom"
    run.variant = run.config["method"]["name"]
    if origin := run.directory.read_fork():  # what it learned before, it learned in another way
        run.variant += f" from {origin['run']}@{origin['stage']}"
    return run


def _other_settings(runs: Sequence[Run]) -> dict[Run, str]:
    """For runs whose settings differ from those of their variant's first run on their benchmark,
    the difference as it is added to the variant's name.

    A sweep can hold such runs: its folder may have been used again with another base.
    """
    first: dict[tuple[str, str], Run] = {}
    suffixes: dict[Run, str] = {}
    for run in runs:
        if run.has_begun:
            base = first.setdefault((run.benchmark, run.variant), run)
            changes = differences(base.settings, run.settings)
            if changes:
                suffixes[run] = f" ({', '.join(pairs(changes))})"
    return suffixes


def _tell_tasks_apart(runs: Sequence[Run]) -> None:
    """Give runs that learned other tasks than the first run of their variant, in whatever order,
    the difference into their names: no sweep says that its orders are repetitions of one another.
    """
    first: dict[tuple[str, str], Sequence[str]] = {}
    for run in runs:
        if run.result is not None:
            tasks: Sequence[str] = run.outcome["tasks"]
            base = first.setdefault((run.benchmark, run.variant), tasks)
            changes = [f"with {task}" for task in tasks if task not in base]
            changes += [f"without {task}" for task in base if task not in tasks]
            if changes:
                run.variant += f" ({', '.join(changes)})"
