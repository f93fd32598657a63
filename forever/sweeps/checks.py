"""What can be wrong with the trials of a sweep, found before anything starts."""

from collections.abc import Sequence
from pathlib import Path

from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
from forever.launch.local import check_examples, check_method, digests
from forever.models import location
from forever.runs.directory import RunDirectory
from forever.sweeps.sweep import Trial


def check_finished(trials: Sequence[Trial], folder: Path) -> None:
    """What a sweep has finished was learned from the examples that the rest of it will learn from.

    Raises:
        InputError: a task of a finished trial has changed. Data that are no longer there say
            nothing.
    """
    known: dict[str, dict[str, str]] = {}  # trials share their data
    for trial in trials:
        directory, data = RunDirectory(folder / trial.key), trial.config.data.model_dump_json()
        if directory.finished() is None:
            continue
        if data not in known:
            try:
                known[data] = digests(load_benchmark(trial.config.data))
            except InputError:
                known[data] = {}
        check_examples(directory, known[data])


def refused(trials: Sequence[Trial], others: bool = False) -> dict[str, str]:
    """What is wrong with trials, by key.

    Args:
        others: whether the sweep has other trials, which are finished: then it has something to
            show in any case.

    Raises:
        InputError: something is wrong with every one.
    """
    problems: dict[str, str] = {}
    # The number of tasks, or what is wrong; trials share it with data and backbone.
    known: dict[str, int | InputError] = {}
    for trial in trials:
        shared = f"{trial.config.data.model_dump_json()} {trial.config.model.name}"
        try:
            if shared not in known:
                location.check(trial.config.model.name)
                known[shared] = len(load_benchmark(trial.config.data).tasks)
            tasks = known[shared]
            if isinstance(tasks, InputError):
                raise tasks
            check_method(trial.config, tasks)
        except InputError as error:
            known.setdefault(shared, error)
            problems[trial.key] = str(error)
    if trials and len(problems) == len(trials) and not others:
        raise InputError(next(iter(problems.values())))
    return problems
