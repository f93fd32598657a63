"""What `forever sweep`, `forever demo` and a search do behind the command line: run, then show what
came of it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from forever.errors import InputError
from forever.launch.fleet import Fleet
from forever.launch.local import check, refused
from forever.runs.directory import RunDirectory
from forever.sweeps.search import Search, known
from forever.sweeps.sweep import Sweep

# A pipe has no width of its own; 80 columns would fold every table.
console = Console() if sys.stdout is not None and sys.stdout.isatty() else Console(width=120)


def sweep(what: Sweep, out: Path, fleet: Fleet) -> bool:
    """Run a sweep in a folder of `out`, print its table and write its report.

    Returns:
        Whether all went well.

    Raises:
        InputError: see `run_sweep`.
    """
    folder = (out / what.name).absolute()
    trials = what.trials()
    todo = [trial for trial in trials if RunDirectory(folder / trial.key).finished() is None]
    refused(todo, others=len(todo) < len(trials))  # before Ray is imported, which takes seconds
    from forever.launch.ray_tune import run_sweep

    outcome = run_sweep(what, folder, fleet)
    if outcome.finished or outcome.skipped:
        show_report(folder)
    return _end(outcome.failed, fleet.mlflow)


def search(what: Search, trials: int, out: Path, fleet: Fleet) -> bool:
    """Run a search in a folder of `out`, print its best runs and write its report.

    Returns:
        Whether all went well.

    Raises:
        InputError: see `run_search`.
    """
    from forever.runs.console import front_table

    folder = (out / what.name).absolute()
    check(what.base, RunDirectory(folder / what.base.key()), resume=True)
    from forever.launch.ray_search import run_search

    outcome = run_search(what, folder, trials, fleet)
    if outcome.finished or outcome.skipped:
        show_report(folder)
        console.print(front_table(known(what, folder)))
    return _end(outcome.failed, fleet.mlflow)


def _end(failed: Mapping[str, str], uri: str | None) -> bool:
    if uri is not None and uri.startswith("sqlite:"):
        console.print(
            f"MLflow  {Path(sys.executable).with_name('mlflow')} ui --backend-store-uri {uri}",
            soft_wrap=True,
        )
    elif uri is not None and uri.startswith("http"):
        console.print(
            f"MLflow  {urlsplit(uri)._replace(netloc=urlsplit(uri).netloc.rpartition('@')[2]).geturl()}"
        )
    for key, error in failed.items():
        console.print(f"failed  {key}: {error}", soft_wrap=True, markup=False, highlight=False)
    return not failed


def show_report(folder: Path) -> None:
    """Print the comparison of a folder's runs, and write its report if what draws pages is
    installed."""
    try:
        from forever.report.report import console_tables, write_report
        from forever.report.study import read_study
    except ModuleNotFoundError as error:
        console.print(
            f"no report: {error.name} is not installed; pip install 'forever-cl\\[report]'"
        )
        return
    study = read_study(folder)
    console.print(console_tables(study))
    console.print(f"report  {write_report(study)}", soft_wrap=True, highlight=False)


def mlflow_uri(choice: str) -> str | None:
    """The tracking URI to use, or None. `auto` without MLflow installed means no tracking, and is
    not an error.

    Raises:
        InputError: MLflow is asked for and not installed.
    """
    from importlib.util import find_spec

    if choice == "off":
        return None
    if find_spec("mlflow") is None:
        if choice != "auto":
            raise InputError(
                "--mlflow: MLflow is not installed; pip install 'forever-cl[mlflow]', or --mlflow off"
            )
        return None
    if choice != "auto":
        return choice
    from forever.launch.mlflow_tracker import tracking_uri

    return tracking_uri()


@contextmanager
def mirrored(folder: Path, uri: str | None) -> Iterator[list[Any]]:
    """The MLflow tracker of a run, if any; a run that is interrupted is marked so and does not stay
    RUNNING."""
    if uri is None:
        yield []
        return
    from forever.launch import mlflow_tracker

    try:
        yield [mlflow_tracker.MlflowTracker(uri)]
    except BaseException:
        # The reason why the run ended matters more than a server that is away.
        with suppress(Exception):
            # The last workers end some seconds later.
            mlflow_tracker.sync(folder, uri, patience_s=5.0)
        raise
