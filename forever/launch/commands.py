"""What `forever sweep`, `forever demo` and a search do behind the command line: run, then show what came of it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from forever.errors import InputError
from forever.launch.local import Placement, refused
from forever.search import Search, known
from forever.sweep import Sweep

# A pipe has no width of its own; 80 columns would fold every table.
console = Console() if sys.stdout.isatty() else Console(width=120)


@dataclass(frozen=True)
class Fleet:
    """How many runs are spread, and where they are told of: the options that all sweeps have.

    Attributes:
        concurrent: runs at once; None is as many as fit. workers: see `ray_tune.run_sweep`.
        mlflow: see `mlflow_uri`.
        retry_failed: also run what failed for good before.
    """

    out: Path
    concurrent: int | None = None
    workers: int | None = None
    placement: Placement = Placement()
    mlflow: str = "auto"
    retry_failed: bool = False

    def settings(self) -> dict[str, Any]:
        """What `run_sweep` and `run_search` are given of it."""
        return {
            "concurrent": self.concurrent,
            "workers": self.workers,
            "placement": self.placement,
            "mlflow": mlflow_uri(self.mlflow),
            "retry_failed": self.retry_failed,
        }


def sweep(what: Sweep, fleet: Fleet) -> bool:
    """Run a sweep, print its table and write its report.

    Returns:
        Whether all went well.

    Raises:
        InputError: see `run_sweep`.
    """
    refused(what.trials())  # Ray takes seconds to import: after the data has been checked
    from forever.launch.ray_tune import run_sweep

    folder, settings = (fleet.out / what.name).absolute(), fleet.settings()
    outcome = run_sweep(what, folder, **settings)
    if outcome.finished or outcome.skipped:
        show_report(folder)
    return _end(outcome.failed, settings["mlflow"])


def search(what: Search, trials: int, fleet: Fleet) -> bool:
    """Run a search, print its best runs and write its report.

    Returns:
        Whether all went well.

    Raises:
        InputError: see `run_search`.
    """
    from forever.console import front_table
    from forever.launch.local import check
    from forever.run_directory import RunDirectory

    folder, settings = (fleet.out / what.name).absolute(), fleet.settings()
    check(what.base, RunDirectory(folder / what.base.key()), resume=True)
    from forever.launch.ray_search import run_search

    outcome = run_search(what, folder, trials=trials, **settings)
    if outcome.finished or outcome.skipped:
        show_report(folder)
        console.print(front_table(known(what, folder)))
    return _end(outcome.failed, settings["mlflow"])


def _end(failed: Mapping[str, str], uri: str | None) -> bool:
    if uri is not None and uri.startswith("sqlite:"):
        console.print(
            f"MLflow  {Path(sys.executable).with_name('mlflow')} ui --backend-store-uri {uri}", soft_wrap=True
        )
    elif uri is not None and uri.startswith("http"):
        console.print(f"MLflow  {urlsplit(uri)._replace(netloc=urlsplit(uri).netloc.rpartition('@')[2]).geturl()}")
    for key, error in failed.items():
        console.print(f"failed  {key}: {error}", soft_wrap=True, markup=False, highlight=False)
    return not failed


def show_report(folder: Path) -> None:
    """Print the comparison of a folder's runs, and write its report if what draws pages is installed."""
    from experiments.tables import summary_table

    console.print(summary_table(folder))
    try:
        from experiments.report import write_report
    except ModuleNotFoundError as error:
        console.print(f"no report: {error.name} is not installed; pip install 'forever-cl\\[report]'")
    else:
        console.print(f"report  {write_report(folder)}", soft_wrap=True, highlight=False)


def mlflow_uri(choice: str) -> str | None:
    """The tracking URI to use, or None. `auto` without MLflow installed means no tracking, and is not an error.

    Raises:
        InputError: MLflow is asked for and not installed.
    """
    from importlib.util import find_spec

    if choice == "off":
        return None
    if find_spec("mlflow") is None:
        if choice != "auto":
            raise InputError("--mlflow: MLflow is not installed; pip install 'forever-cl[mlflow]', or --mlflow off")
        return None
    if choice != "auto":
        return choice
    from forever.launch.mlflow_tracker import tracking_uri

    return tracking_uri()


@contextmanager
def mirrored(folder: Path, uri: str | None) -> Iterator[list[Any]]:
    """The MLflow tracker of a run, if any; a run that is interrupted is marked so and does not stay RUNNING."""
    if uri is None:
        yield []
        return
    from forever.launch import mlflow_tracker

    try:
        yield [mlflow_tracker.MlflowTracker(uri)]
    except BaseException:
        with suppress(Exception):  # the reason why the run ended matters more than a server that is away
            mlflow_tracker.sync(folder, uri, patience_s=5.0)  # the last workers end some seconds later
        raise
