"""What a folder of runs holds: which runs there are, which are missing, and which belong together.

Reads run directories (forever/runs/directory.py) and `sweep.json` (forever/sweeps/sweep.py), and
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from forever.errors import InputError, reading, shown
from forever.report.row import Row, finished, rows_of
from forever.report.run import Run, differences, pairs
from forever.runs.directory import RunDirectory
from forever.sweeps import published as paper
from forever.sweeps.files import SweepFile, sweep_of
from forever.sweeps.rounds import read_stopping
from forever.sweeps.sweep import MANIFEST, read_manifest
from forever.text import complain


@dataclass(frozen=True)
class Study:
    """Runs that belong together. Each of them says what it is compared with."""

    name: str
    folder: Path
    runs: Sequence[Run]
    reference: str | None = None  # what most variants are compared with, if there is one
    file: SweepFile | None = None  # what the sweep's file says, if there is one
    # By which rule a sweep in rounds decides (forever/sweeps/rounds.py).
    stopping: Mapping[str, Any] | None = None
    folders: Sequence[str] = ()  # names of those that are compared, if it is more than one

    @cached_property
    def parts(self) -> list[Part]:
        """The study benchmark by benchmark, those of which nothing is finished yet included."""
        by_benchmark: dict[str, list[Run]] = {}
        for run in self.runs:
            if run.benchmark:
                by_benchmark.setdefault(run.benchmark, []).append(run)
        about = self.reference, self.file, self.stopping, self.folders
        parts: list[Part] = []
        for benchmark, runs in by_benchmark.items():
            several = len(by_benchmark) > 1
            parts.append(Part(self.name, self.folder, runs, *about, benchmark, several))
        return parts

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of all parts."""
        return [row for part in self.parts for row in part.rows]

    @property
    def others(self) -> dict[str, str]:
        """The variants that are compared with another than `reference`, and with which."""
        own = (None, self.reference)
        compared = [run for run in self.runs if run.reference not in (*own, run.variant)]
        return {run.variant: run.reference or "" for run in compared}

    @property
    def finished(self) -> list[Run]:
        return finished(self.runs)

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
        where = self.file or self.name, self.benchmark
        published = partial(paper.published, *where)
        return rows_of(self.runs, self.reference, published, self.stopping)

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
        if not (study.finished and study.rows):  # which reads all results and answers
            raise InputError(
                f"{folder}: no run in it is finished yet; wait, or resume it with "
                "`forever run ... --resume`, a sweep with its own command"
            )
        return study


def refuse_versions(runs: Sequence[Run]) -> None:
    """Refuse runs that are not of one version: of a benchmark, by the tasks of an order; of the
    package that a method is from; and, in one folder, of the data and the models that have one
    name in their settings. Digests that a result lacks are not compared."""
    first: dict[tuple[str, ...], tuple[Run, Any]] = {}
    for run in runs:
        for key, what, scope, field, value in _versions(run):
            known, version = first.setdefault((what, scope, field), (run, value))
            if value != version:
                raise InputError(
                    f"{known.key} and {run.key} are of different versions of {what}: {field} is "
                    f"{version}, then {value}; move the runs of one of them to a folder of their "
                    "own",
                    key=key,
                )


def _versions(run: Run) -> Iterator[tuple[str, str, str, str, Any]]:
    """Yield what runs that are compared have in common: by which setting, of what, within which
    scope, under which name, and its value."""
    result, folder = run.outcome, str(run.directory.path.parent)
    order, method = shown(result["order"]), result["method"]
    yield "data.benchmark", f"{run.benchmark}, order {order}", "", "tasks", result["tasks"]
    package = result.get("method_package")
    yield "method.name", f"method {method}", "", "method_package", package
    settings = {key: value for key, value in run.settings.items() if key.startswith("data.")}
    for task, digest in result.get("data", {}).items():
        what = f"the data of {run.benchmark}"
        yield "data.root", what, f"{folder} {settings}", f"digest of {task}", digest
    for part, digest in result.get("model", {}).items():
        # "weights" are those of model.name, "encoder weights" those of method.encoder.
        setting = part.rpartition(" ")[0]
        what = f"model {run.settings[f'method.{setting}' if setting else 'model.name']}"
        yield "model.name", what, folder, f"digest of {part}", digest


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
    _name_by_differences(runs)
    reference = next((run.variant for run in runs if run.variant == "forever"), None)
    for run in runs:
        run.reference = reference
    return Study(folder.name, folder, runs, reference)


def _sweep(folder: Path) -> Study:
    manifest = read_manifest(folder)
    name, reference = manifest["name"], manifest["reference"]
    runs: list[Run] = []
    for trial in manifest["trials"]:
        variant = trial["variant"]
        about = variant, trial["benchmark"], trial["order"], trial["seed"]
        other = manifest["references"].get(variant, reference)
        in_paper = manifest["paper"].get(variant, variant)
        run = Run(RunDirectory(folder / trial["key"]), *about, other, in_paper)
        for factor, levels in manifest.get("factors", {}).items():
            if variant in levels:
                run.levels[factor] = levels[variant]
        runs.append(run)
    # What was edited since, the newest invocation runs again in the place of older runs.
    newest = manifest.get("newest", ())
    places = {run.place_in_sweep for run in runs if run.key in newest}
    older = [run for run in runs if run.key not in newest]
    stale = [run for run in older if run.place_in_sweep in places]
    # Unless others of the older ones are compared with them, as after another base.
    if {run.variant for run in stale} & {run.reference for run in older if run not in stale}:
        stale = []
    for run in stale:
        run.levels.clear()  # another run is its cell of the design
    _name_by_differences(runs, stale, orders_are_repetitions=True)
    return Study(name, folder, runs, reference, sweep_of(folder, name), read_stopping(folder))


def plain_run(path: Path) -> Run:
    """A run without a sweep: its variant, order and seed are those of its configuration."""
    run = Run(RunDirectory(path), path.name, "", "", 0)
    if not run.has_begun:
        return run
    data = run.config["data"]
    run.benchmark, run.seed = data["benchmark"], run.config["seed"]
    run.order = data["order"] if isinstance(data["order"], str) else "custom"
    run.variant = run.config["method"]["name"]
    if origin := run.directory.read_fork():  # what it learned before, it learned in another way
        run.variant += f" from {origin['run']}@{origin['stage']}"
    run.paper_variant = run.variant
    return run


def _name_by_differences(
    runs: Sequence[Run], stale: Sequence[Run] = (), orders_are_repetitions: bool = False
) -> None:
    """Add to the variant of runs in what their settings differ from those of its first run on the
    benchmark; and, unless a sweep says that its orders are repetitions, their tasks.

    A sweep can hold such runs: its folder may have been used again with another base, or after a
    variant was edited. They are compared with the reference of the same settings, or with none.

    Args:
        stale: runs whose place another one has taken, and with it the name of the variant.
    """
    first: dict[tuple[str, str], Run] = {}
    changed: dict[Run, str] = {}
    for run in sorted(runs, key=lambda run: (run in stale, run.result is None)):
        if not run.has_begun:
            continue
        if run in stale and (run.benchmark, run.variant) not in first:
            changed[run] = " (earlier)"  # than one that has not begun
            continue
        base = first.setdefault((run.benchmark, run.variant), run)
        changes = pairs(differences(base.settings, run.settings))
        if not orders_are_repetitions and run.result is not None:
            tasks, others = run.outcome["tasks"], base.outcome["tasks"]
            changes += [f"with {task}" for task in tasks if task not in others]
            changes += [f"without {task}" for task in others if task not in tasks]
        if changes:
            changed[run] = f" ({', '.join(changes)})"
    names = {run.variant + changed.get(run, "") for run in runs}
    for run, suffix in changed.items():
        run.variant = run.paper_variant = run.variant + suffix
        reference = (run.reference or "") + suffix
        run.reference = reference if reference in names else run.variant
