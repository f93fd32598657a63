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

from forever.errors import InputError
from forever.report.format import setting
from forever.report.frame import frame_of
from forever.report.row import Row, build_rows
from forever.report.run import Run, read_config
from forever.runs.directory import RunDirectory, read_json
from forever.sweeps import published as paper
from forever.sweeps.files import SweepFile, sweep_of
from forever.sweeps.parts import Published
from forever.sweeps.sweep import MANIFEST, read_manifest

# What a report reads of result.json.
_FIELDS = {
    "tasks", "stages", "matrix", "op", "bwt", "forgetting", "events", "rows_seen", "updates",
    "seconds", "benchmark", "order", "seed", "method", "rows", "notes",
}  # fmt: skip


@dataclass(frozen=True)
class Study:
    """Runs that belong together.

    Attributes:
        reference: the variant that the others are compared with, if there is one.
        paper_names: for variants that have another name in the paper, that name.
        references: for each variant that is compared with another one, its name; for one that is
            compared with none, its own.
        file: what the sweep's file says, if there is one.
    """

    name: str
    folder: Path
    runs: Sequence[Run]
    reference: str | None
    paper_names: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)
    file: SweepFile | None = None

    @cached_property
    def parts(self) -> list[Part]:
        """The study benchmark by benchmark, those of which nothing is finished yet included."""
        by_benchmark: dict[str, list[Run]] = {}
        for run in self.runs:
            if run.benchmark:
                by_benchmark.setdefault(run.benchmark, []).append(run)
        parts: list[Part] = []
        for benchmark, runs in by_benchmark.items():
            shared = {item.name: getattr(self, item.name) for item in fields(self)}
            place = {"benchmark": benchmark, "several": len(by_benchmark) > 1}
            parts.append(Part(**{**shared, **place, "runs": runs}))
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
        """The runs that a search gave up."""
        return [run for run in self.runs if run.state == "stopped early"]

    @property
    def missing(self) -> list[Run]:
        return [run for run in self.runs if run.state not in ("finished", "stopped early")]

    @property
    def example(self) -> Run | None:
        """A finished run to show settings of: the reference's first, or else the first."""
        return min(self.finished, key=lambda run: run.variant != self.reference, default=None)


@dataclass(frozen=True)
class Part(Study):
    """The runs of a study on one benchmark: scores on different tasks have no common mean.

    Attributes:
        several: whether the study has other parts, too.
    """

    benchmark: str = ""
    several: bool = False

    @cached_property
    def rows(self) -> list[Row]:
        """All variants in the order of the sweep, bounds last."""

        def published(variant: str) -> Published | None:
            name = self.paper_names.get(variant, variant)
            return paper.published(self.file or self.name, self.benchmark, name)

        return build_rows(self.runs, self.reference, self.references, self.paper_names, published)

    @cached_property
    def measured(self) -> list[Row]:
        """The variants of which a run is finished."""
        return [row for row in self.rows if row.runs]

    @property
    def most_runs(self) -> int:
        """The largest number of runs that a variant has; those of joint training in several orders
        are one."""
        return max((row.compared("op").runs for row in self.measured), default=0)

    @cached_property
    def frame(self) -> Any:
        """The rows as a data frame, of which every table of a report is made."""
        return frame_of(self.rows)


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `other` that `base` has not. Another method's own fields are left out: its
    name says it all."""
    changed = {key: value for key, value in other.items() if key not in base or base[key] != value}
    if "method.name" not in changed:
        return changed
    known_by_name = {key for key in changed if key.startswith("method.")} - {"method.name"}
    return {key: value for key, value in changed.items() if key not in known_by_name}


def read_study(folder: Path) -> Study:
    """The runs of a sweep folder, of one run directory, or of a folder of run directories.

    Raises:
        InputError: there are no finished runs in the folder, or a file in it is damaged.
    """
    folder = Path(folder).absolute()
    try:
        study = _find(folder)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder} holds a file with missing or strange fields ({error})"
        ) from None
    if not study.finished:
        raise InputError(f"{folder}: none of its {len(study.runs)} runs is finished yet")
    return study


def _find(folder: Path) -> Study:
    if (folder / MANIFEST).is_file():
        return _sweep(folder)
    if (folder / "config.yaml").is_file():
        return Study(folder.name, folder, [_plain_run(folder)], None)
    runs = [_plain_run(path.parent) for path in sorted(folder.glob("*/config.yaml"))]
    if not runs:
        raise InputError(
            f"{folder} holds no runs: neither it nor a folder in it has a config.yaml, nor is it "
            "a sweep"
        )
    _tell_settings_apart(runs)
    has_forever = any(run.variant == "forever" for run in runs)
    return Study(folder.name, folder, runs, "forever" if has_forever else None)


def _sweep(folder: Path) -> Study:
    manifest = read_manifest(folder)
    runs: list[Run] = []
    for trial in manifest["trials"]:
        directory = RunDirectory(folder / trial["key"])
        benchmark = trial["benchmark"]
        if not benchmark and directory.config.is_file():  # the manifest of an earlier version
            benchmark = read_config(directory.config)["data"]["benchmark"]
        runs.append(_run(directory, trial["variant"], benchmark, trial["order"], trial["seed"]))
    name, reference = manifest["name"], manifest["reference"]
    references = _references(runs, _tell_settings_apart(runs), manifest["references"], reference)
    file = sweep_of(folder, name)
    return Study(name, folder, runs, reference, manifest["paper"], references, file)


def _plain_run(path: Path) -> Run:
    """A run without a sweep, of which its configuration tells variant, order and seed."""
    directory = RunDirectory(path)
    config = read_config(directory.config)
    data = config["data"]
    order = data["order"] if isinstance(data["order"], str) else "custom"
    variant = config["method"]["name"]
    if directory.fork.is_file():  # what it learned before, it learned in another way
        origin = read_json(directory.fork)
        variant = f"{variant} from {origin['run']}@{origin['stage']}"
    return _run(directory, variant, data["benchmark"], order, config["seed"])


def _run(directory: RunDirectory, variant: str, benchmark: str, order: str, seed: int) -> Run:
    result = directory.finished()
    if result is not None and (lacking := _FIELDS - set(result)):
        raise InputError(
            f"{directory.result} has no field {min(lacking)!r}; was it written by this version?"
        )
    return Run(directory.path.name, variant, benchmark, order, seed, directory, result)


def _tell_settings_apart(runs: Sequence[Run]) -> dict[Run, str]:
    """Give runs of one variant whose settings differ from its first run's the difference into
    their names, and return what was added.

    A sweep can hold such runs: its folder may have been used again with another base.
    """
    first: dict[str, Run] = {}
    suffixes: dict[Run, str] = {}
    for run in runs:
        if run.directory.config.is_file():
            changes = differences(first.setdefault(run.variant, run).settings, run.settings)
            pairs = [f"{key}={setting(value)}" for key, value in changes.items()]
            if pairs:
                suffixes[run] = f" ({', '.join(pairs)})"
    for run, suffix in suffixes.items():
        run.variant += suffix
    return suffixes


def _references(
    runs: Sequence[Run], suffixes: Mapping[Run, str], references: Mapping[str, str], reference: str
) -> dict[str, str]:
    """With whom a variant is compared: a run of other settings with the reference of the same
    settings, or else with none."""
    names = {run.variant for run in runs}
    compared: dict[str, str] = {}
    for run in runs:
        suffix = suffixes.get(run, "")
        variant = run.variant.removesuffix(suffix)
        other = references.get(variant, reference) + suffix
        if suffix and other not in names:
            compared[run.variant] = run.variant
        elif suffix or variant in references:
            compared[run.variant] = other
    return compared
