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
from forever.launch.local import check_models, check_unchanged, load_prompt
from forever.models import location
from forever.runs.directory import RunDirectory
from forever.sweeps.files import SweepFile, sweep_or_none
from forever.sweeps.named_runs import load_run
from forever.sweeps.search import find_search
from forever.sweeps.sweep import Trial, check_count


def check_choice(
    name: str,
    file: SweepFile | None,
    seeds: Sequence[int] | None,
    only: Sequence[str],
    trials: int | None,
) -> None:
    """Refuse, by an InputError, what a sweep, a search or a single run (no file) does not have."""
    is_search = file is not None and file.is_search
    if seeds is not None and (not seeds or min(seeds) < 0 or len({*seeds}) < len(seeds)):
        raise InputError(f"seeds {[*seeds]}: give some that are different and not negative")
    if trials is not None and not is_search:
        rule = "only a search has a number of runs; leave it out"
        raise InputError(f"{trials} trials: {name} is not a search, and {rule}")
    if only and (file is None or is_search):
        raise InputError(f"only {only[0]!r}: {name} has no variants by name")


def read_data(trials: Iterable[Trial]) -> dict[str, Benchmark | InputError]:
    """Read the benchmark of each run, by its key, and once for all that share it; an error stands
    for a bad one."""
    known: dict[str, Benchmark | InputError] = {}
    data: dict[str, Benchmark | InputError] = {}
    for trial in trials:
        settings = trial.config.data.model_dump_json()
        if trial.config.data.prompt == "chat":
            settings += trial.config.model.name
        if settings not in known:
            try:
                prompt = load_prompt(trial.config)
                known[settings] = load_benchmark(trial.config.data, prompt)
            except InputError as error:
                known[settings] = error
        data[trial.key] = known[settings]
    return data


def check_finished(
    trials: Sequence[Trial], folder: Path, data: Mapping[str, Benchmark | InputError] | None = None
) -> None:
    """Refuse a sweep that has finished runs on other examples or of another model than are there
    now, or beside finished runs of another version of its benchmark.

    Data that are no longer there say nothing.

    Args:
        data: what `read_data` returned, if the caller has called it.
    """
    finished = sorted(folder.glob("*/result.json"))
    if not finished:
        return
    tasks: dict[tuple[str, str], list[str]] = {}
    data = read_data(trials) if data is None else data
    for trial in trials:
        benchmark = data[trial.key]
        if isinstance(benchmark, Benchmark):
            check_unchanged(RunDirectory(folder / trial.key), trial.config, benchmark)
            tasks[benchmark.name, benchmark.order] = [task.name for task in benchmark.tasks]

    # No report could show runs that had other tasks under the name and order of a benchmark.
    for path in finished:
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
    data: Mapping[str, Benchmark | InputError] | None = None,
) -> dict[str, str]:
    """What is wrong with trials, by key.

    Args:
        others: whether the sweep has finished trials, too, and so something to show in any case.
        data: as for `check_finished`.

    Raises:
        InputError: something is wrong with every one.
    """
    problems: dict[str, str] = {}
    data = read_data(trials) if data is None else data
    for trial in trials:
        benchmark = data[trial.key]
        try:
            location.check(trial.config.model.name)
            if isinstance(benchmark, InputError):
                raise benchmark
            check_models(trial.config, benchmark)
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

    A search counts as N runs of its base: its points are known only when it runs.

    Raises:
        InputError: unknown name, bad data, or too many runs.
    """
    check_count(name, max(trials or 0, len(seeds or ())))
    file = sweep_or_none(name)
    check_choice(name, file, seeds, only, trials)
    if file is None:
        run = load_run(name).override(changes)
        configs = [run.override({"seed": seed}) for seed in seeds or (run.seed,)]
        planned = [Trial(config.key(), name, "", config.seed, config) for config in configs]
    elif file.is_search:
        search, out = find_search(file, load_run(base).override(changes), seeds), out / file.name
        one = Trial("base", name, "", search.base.seed, search.base)
        planned = [one] * (trials or search.trials)
    else:
        sweep, out = file.expand(load_run(base), seeds, changes, only), out / file.name
        planned = sweep.trials()
    several = len({trial.order for trial in planned}) > 1
    runs: list[PlannedRun] = []
    data = read_data(planned)
    for trial in planned:
        benchmark = data[trial.key]
        if isinstance(benchmark, InputError):
            raise benchmark
        label = f"{trial.variant} o{trial.order}" if several else trial.variant
        runs.append(PlannedRun(label, trial.config, benchmark, RunDirectory(out / trial.key)))
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
