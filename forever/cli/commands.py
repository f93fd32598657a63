"""What the verbs share: a console, a sweep or search from start to report, and MLflow's address."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from forever.cli.options import Launch, Selection
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.fleet import Fleet, require_ray
from forever.launch.local import check, run_local
from forever.runs.console import ConsoleTracker
from forever.runs.directory import RunDirectory
from forever.sweeps.checks import refused
from forever.sweeps.lists import front_table
from forever.sweeps.search import Search
from forever.sweeps.sweep import Sweep

# A pipe has no width of its own; 80 columns would fold every table.
console = Console() if sys.stdout is not None and sys.stdout.isatty() else Console(width=120)


def print_lines(lines: Sequence[str]) -> None:
    """Print lines as they are, without markup and without folding them."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def train(
    config: RunConfig, path: Path, benchmark: Benchmark, launch: Launch, resume: bool, quiet: bool
) -> dict[str, Any]:
    """Train one run in the folder `path`, here or with workers, and return its result.

    Raises:
        InputError: see `run_local` and `run_workers`.
    """
    uri = mlflow_uri(launch.mlflow)
    with mirrored(path, uri) as mirror, closing(ConsoleTracker(Console(quiet=quiet))) as progress:
        if not launch.workers:
            return run_local(
                config,
                path,
                resume=resume,
                trackers=[progress, *mirror],
                placement=launch.placement,
                benchmark=benchmark,
            )
        require_ray()
        from forever.launch.ray_train import run_workers

        fleet = Fleet(workers=launch.workers, placement=launch.placement, mlflow=uri)
        return run_workers(config, path, fleet, resume, [progress])


def make_fleet(selection: Selection, launch: Launch) -> Fleet:
    """Say how the runs of a sweep are spread, as the options ask for it."""
    return Fleet(
        selection.concurrent,
        launch.workers,
        launch.placement,
        mlflow_uri(launch.mlflow),
        retry_failed=selection.retry_failed,
    )


def sweep(runs: Sweep, out: Path, fleet: Fleet) -> bool:
    """Run a sweep in a folder of `out`, print its table and write its report.

    Returns:
        Whether all went well.

    Raises:
        InputError: see `run_sweep`.
    """
    folder = (out / runs.name).absolute()
    trials = runs.trials()
    todo = [trial for trial in trials if RunDirectory(folder / trial.key).finished() is None]
    refused(todo, others=len(todo) < len(trials))  # before Ray is imported, which takes seconds
    require_ray()
    from forever.launch.ray_tune import run_sweep

    outcome = run_sweep(runs, folder, fleet)
    if outcome.finished or outcome.skipped:
        show_report(folder)
    return _end(outcome.failed, fleet.mlflow)


def search(runs: Search, trials: int | None, out: Path, fleet: Fleet) -> bool:
    """Run a search in a folder of `out`, print its best runs and write its report.

    Returns:
        Whether all went well.

    Raises:
        InputError: see `run_search`.
    """
    folder = (out / runs.name).absolute()
    check(runs.base, RunDirectory(folder / runs.base.key()), resume=True)
    require_ray()
    from forever.launch.ray_search import run_search

    outcome = run_search(runs, folder, trials, fleet)
    if outcome.finished or outcome.skipped:
        show_report(folder)
        console.print(front_table(runs, folder))
    return _end(outcome.failed, fleet.mlflow)


def _end(failed: Mapping[str, str], uri: str | None) -> bool:
    """Say where MLflow's pages are and which runs failed; returns whether none did."""
    if uri is not None and uri.startswith("sqlite:"):
        program = Path(sys.executable).with_name("mlflow")
        console.print(f"MLflow  {program} ui --backend-store-uri {uri}", soft_wrap=True)
    elif uri is not None and uri.startswith("http"):
        address = urlsplit(uri)
        host = address.netloc.rpartition("@")[2]
        console.print(f"MLflow  {address._replace(netloc=host).geturl()}")
    print_lines([f"failed  {key}: {error}" for key, error in failed.items()])
    return not failed


def show_report(folder: Path) -> None:
    """Print the comparison of a folder's runs, and write its report if that can be drawn."""
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
    """The tracking URI to use, or None for no tracking.

    `auto` without MLflow installed means no tracking and is not an error.

    Raises:
        InputError: MLflow is asked for and not installed.
    """
    if choice == "off":
        return None
    if find_spec("mlflow") is None:
        if choice == "auto":
            return None
        raise InputError(
            "--mlflow: MLflow is not installed; pip install 'forever-cl[mlflow]', or --mlflow off"
        )
    if choice != "auto":
        return choice
    from forever.launch.mlflow_store import tracking_uri

    return tracking_uri()


@contextmanager
def mirrored(folder: Path, uri: str | None) -> Iterator[list[Any]]:
    """Give the MLflow tracker of a run, if any; one that is interrupted does not stay RUNNING."""
    if uri is None:
        yield []
        return
    from forever.launch import mlflow_tracker

    try:
        yield [mlflow_tracker.MlflowTracker(uri)]
    except BaseException:
        # Why the run ended matters more than a server that is away. Its last workers end seconds
        # later, which is waited for.
        with suppress(Exception):
            mlflow_tracker.sync(folder, uri, patience_s=5.0)
        raise
