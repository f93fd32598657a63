"""What can be wrong with the trials of a sweep, found before anything starts."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.local import check_examples, check_method, check_model, digests
from forever.models import location
from forever.runs.directory import RunDirectory
from forever.sweeps.sweep import Trial


def read_data(runs: Iterable[RunConfig]) -> list[Benchmark | InputError]:
    """The benchmark of each run or what is wrong with it, read once for all that share it."""
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
