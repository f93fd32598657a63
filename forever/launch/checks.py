"""Which runs a command would do, and what is wrong with them, found before anything starts.

Torch is not loaded, so a wrong argument is refused at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.local import check_examples, check_method, check_model, digests
from forever.models import location
from forever.runs.directory import RunDirectory
from forever.sweeps.files import sweep_or_none
from forever.sweeps.named_runs import load_run
from forever.sweeps.search import find_search
from forever.sweeps.sweep import Trial, check_count


def read_data(runs: Iterable[RunConfig]) -> list[Benchmark | InputError]:
    """Read the benchmark of each run, once for all that share it; an error stands for a bad one."""
    known: dict[str, Benchmark | InputError] = {}
    benchmarks: list[Benchmark | InputError] = []
    for run in runs:
        data = run.data.model_dump_json()
        if data not in known:
            try:
                known[data] = load_benchmark(run.data)
            except InputError as error:
                known[data] = error
        benchmarks.append(known[data])
    return benchmarks


def check_finished(
    trials: Sequence[Trial], folder: Path, data: Sequence[Benchmark | InputError] | None = None
) -> None:
    """Refuse a sweep that has finished runs on other examples or of another model than are there
    now, or beside finished runs of another version of its benchmark.

    Data that are no longer there say nothing.

    Args:
        data: what `read_data` returned, if the caller has called it.
    """
    if not any(folder.glob("*/result.json")):
        return
    tasks: dict[tuple[str, str], list[str]] = {}
    data = read_data(trial.config for trial in trials) if data is None else data
    for trial, benchmark in zip(trials, data, strict=True):
        if isinstance(benchmark, Benchmark):
            directory = RunDirectory(folder / trial.key)
            check_examples(directory, digests(benchmark))
            check_model(directory, trial.config)
            tasks[benchmark.name, benchmark.order] = [task.name for task in benchmark.tasks]
    _check_versions(tasks, folder)


def _check_versions(tasks: Mapping[tuple[str, str], list[str]], folder: Path) -> None:
    """Refuse finished runs that had other tasks under the name and order of a benchmark: no report
    could show both."""
    for path in sorted(folder.glob("*/result.json")):
        result = RunDirectory(path.parent).finished() or {}
        now = tasks.get((result.get("benchmark", ""), result.get("order", "")))
        if now is not None and result["tasks"] != now:
            raise InputError(
                f"{path.parent} is of another version of the benchmark {result['benchmark']!r}, "
                f"with the tasks {', '.join(result['tasks'])}; give another --out, or move the "
                "runs of that version to a folder of their own"
            )


def refused(
    trials: Sequence[Trial],
    others: bool = False,
    data: Sequence[Benchmark | InputError] | None = None,
) -> dict[str, str]:
    """What is wrong with trials, by key.

    Args:
        others: whether the sweep has finished trials, too, and so something to show in any case.
        data: as for `check_finished`.

    Raises:
        InputError: something is wrong with every one.
    """
    problems: dict[str, str] = {}
    data = read_data(trial.config for trial in trials) if data is None else data
    for trial, benchmark in zip(trials, data, strict=True):
        try:
            location.check(trial.config.model.name)
            if isinstance(benchmark, InputError):
                raise benchmark
            check_method(trial.config, len(benchmark.tasks))
        except InputError as error:
            problems[trial.key] = str(error)
    if trials and len(problems) == len(trials) and not others:
        raise InputError(next(iter(problems.values())))
    return problems


# ---- the runs of a plan


class PlannedRun(NamedTuple):
    """A run that a command would do; `label` is its variant, with its order where needed."""

    label: str
    config: RunConfig
    benchmark: Benchmark
    directory: RunDirectory


def planned_runs(
    name: str,
    base: str,
    changes: Mapping[str, Any],
    seeds: tuple[int, ...] | None,
    out: Path,
    only: Sequence[str] = (),
    trials: int | None = None,
) -> list[PlannedRun]:
    """List the runs that `forever run NAME` or `forever sweep NAME` would do, with finished ones.

    A search counts as so many runs of its base: its points are known only when it runs.

    Raises:
        InputError: unknown name, bad data, or too many runs.
    """
    check_count(name, max(trials or 0, len(seeds or ())))
    file = sweep_or_none(name)
    if file is None:
        run = load_run(name).override(changes)
        configs = [run.override({"seed": seed}) for seed in seeds or (run.seed,)]
        found = [(name, config, out / config.key()) for config in configs]
    elif file.is_search:
        search = find_search(file, load_run(base).override(changes), seeds)
        found = [(name, search.base, out / search.name / "base")] * (trials or search.trials)
    else:
        sweep = file.expand(load_run(base), seeds, changes, only)
        found = []
        for trial in sweep.trials():
            label = f"{trial.variant} o{trial.order}" if len(sweep.orders) > 1 else trial.variant
            found.append((label, trial.config, out / sweep.name / trial.key))
    runs: list[PlannedRun] = []
    data = read_data(config for _, config, _ in found)
    for (label, config, path), benchmark in zip(found, data, strict=True):
        if isinstance(benchmark, InputError):
            raise benchmark
        runs.append(PlannedRun(label, config, benchmark, RunDirectory(path)))
    return runs


def without_failed(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs that did not fail for good in an earlier call, which a sweep leaves out.

    Raises:
        InputError: no run is left.
    """
    kept: list[PlannedRun] = []
    for run in runs:
        if (run.directory.end_without_result() or {}).get("state") != "failed":
            kept.append(run)
    if not kept:
        raise InputError("all these runs failed before; --retry-failed plans them again")
    return kept
