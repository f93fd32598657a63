"""What the verbs share: a console, a sweep or search from start to report, and MLflow's address."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
from rich.console import Console

from forever.cli.options import Launch
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.fleet import Fleet, SweepOutcome, divide, require_ray
from forever.launch.local import check, choose_kernels, load_libraries, run_local
from forever.planning.rounds import Limits, first_round, rounds
from forever.runs.console import ConsoleTracker
from forever.runs.directory import RunDirectory
from forever.runs.tracking import Tracker
from forever.sweeps.checks import refused
from forever.sweeps.lists import front_table
from forever.sweeps.search import Search
from forever.sweeps.sweep import Sweep
from forever.text import PlainTable, terminal, without_credentials

# A pipe has no width of its own; 80 columns would fold every table.
console = Console() if sys.stdout is not None and sys.stdout.isatty() else Console(width=120)


def print_lines(lines: Sequence[str]) -> None:
    """Print lines as they are, without markup and without folding them."""
    for line in lines:
        console.print(terminal(line), soft_wrap=True)


def train(
    config: RunConfig,
    path: Path,
    benchmark: Benchmark,
    launch: Launch,
    resume: bool,
    quiet: bool,
    trackers: Sequence[Tracker] = (),
) -> dict[str, Any]:
    """Train one run in the folder `path`, here or with workers, and return its result."""
    choose_kernels([config])
    uri, place = mlflow_uri(launch.mlflow), launch.placement
    with mirrored(path, uri) as mirror, closing(ConsoleTracker(Console(quiet=quiet))) as progress:
        told = [progress, *mirror, *trackers]
        if launch.workers:
            require_ray()
            from forever.launch.ray_train import run_workers

            fleet = Fleet(workers=launch.workers, placement=place)
            return run_workers(config, path, fleet, resume, told)
        load_libraries()
        return run_local(
            config, path, resume=resume, trackers=told, placement=place, benchmark=benchmark
        )


def profilers(launch: Launch, goes_on: bool) -> list[Tracker]:
    """The tracker that `--profile` asks for; it sees this process alone, from its beginning."""
    if launch.workers:
        raise InputError("--profile traces a run in its own process; leave out --workers")
    if goes_on:
        raise InputError("--profile traces a run from its beginning; leave out --resume and --fork")
    from forever.launch.profiler import Profiler

    return [Profiler()]


def sweep(runs: Sweep, out: Path, fleet: Fleet, limits: Limits | None = None) -> None:
    """Run a sweep in a folder of `out`, print its table and write its report.

    Args:
        limits: up to which seeds are added in rounds; None: no seeds are added.
    """
    folder = (out / runs.name).absolute()
    if limits is not None:
        runs = first_round(runs)
    trials = runs.trials()
    todo = [trial for trial in trials if RunDirectory(folder / trial.key).finished() is None]
    refused(todo, others=len(todo) < len(trials))  # before Ray is imported, which takes seconds
    choose_kernels(trial.config for trial in trials)
    require_ray()
    from forever.launch.ray_tune import run_sweep

    if limits is None:
        outcome = run_sweep(runs, folder, fleet)
    else:
        outcome = _run_rounds(runs, folder, fleet, limits)
    _end(outcome, folder, fleet.mlflow)


def _run_rounds(runs: Sweep, folder: Path, fleet: Fleet, limits: Limits) -> SweepOutcome:
    """Run a sweep in rounds, all on one Ray, whose start takes seconds."""
    from forever.launch.ray_cluster import capacity, cluster
    from forever.launch.ray_tune import run_sweep

    outcome = SweepOutcome()
    with cluster(dashboard=bool(fleet.workers)):
        total, machines = capacity()
        device = fleet.placement.device

        def at_once(count: int) -> int:
            share = divide(total, machines, count, fleet.concurrent, fleet.workers, device)
            return share.concurrent

        for part in rounds(runs, folder, limits, at_once, lambda line: print_lines([line])):
            outcome.add(run_sweep(part, folder, fleet))
    return outcome


def search(runs: Search, trials: int | None, out: Path, fleet: Fleet) -> None:
    """Run a search in a folder of `out`, print its best runs and write its report."""
    folder = (out / runs.name).absolute()
    check(runs.base, RunDirectory(folder / runs.base.key()), resume=True)
    choose_kernels([runs.base])
    require_ray()
    from forever.launch.ray_search import run_search

    _end(run_search(runs, folder, trials, fleet), folder, fleet.mlflow, runs)


def _end(
    outcome: SweepOutcome, folder: Path, uri: str | None, searched: Search | None = None
) -> None:
    """Show what came out and where MLflow's pages are; exit with 1 if a run failed."""
    if outcome.finished or outcome.skipped:
        show_report(folder)
        if searched is not None:
            console.print(front_table(searched, folder))
    if uri is not None and uri.startswith("sqlite:"):
        program = Path(sys.executable).with_name("mlflow")
        print_lines([f"MLflow  {program} ui --backend-store-uri {uri}"])
    elif uri is not None and uri.startswith("http"):
        address = urlsplit(uri)
        host = address.netloc.rpartition("@")[2]  # without a password
        print_lines([f"MLflow  {without_credentials(address._replace(netloc=host).geturl())}"])
    print_lines([f"failed  {key}: {error}" for key, error in outcome.failed.items()])
    if outcome.failed:
        raise typer.Exit(1)


def show_report(folder: Path) -> None:
    """Print the comparison of a folder's runs, and write its report if that can be drawn."""
    try:
        from forever.report.report import console_tables, write_report
        from forever.report.study import read_study
    except ModuleNotFoundError as error:
        print_lines([f"no report: {error.name} is missing; pip install 'forever-cl[report]'"])
        return
    study = read_study(folder)
    console.print(console_tables(study))
    print_lines([f"report  {write_report(study)}"])


def detection(runs: Sweep, out: Path, points: float, asked: str) -> PlainTable:
    """The seeds and hours in which a sweep shows a difference of so many points; `asked` is what
    was typed for it."""
    try:
        from forever.planning.power import detection_table
    except ModuleNotFoundError as error:
        raise InputError(f"--detect needs {error.name}; pip install 'forever-cl[report]'") from None
    return detection_table(runs, (out / runs.name).absolute(), points, asked)


def mlflow_uri(choice: str) -> str | None:
    """The tracking URI to use; None for no tracking, as for `auto` without MLflow installed."""
    installed = find_spec("mlflow") is not None
    if choice == "off" or (choice == "auto" and not installed):
        return None
    if not installed:
        raise InputError(
            "--mlflow: MLflow is not installed; pip install 'forever-cl[mlflow]', or --mlflow off"
        )
    if choice != "auto":
        return choice
    from forever.launch.mlflow.store import tracking_uri

    return tracking_uri()


@contextmanager
def mirrored(folder: Path, uri: str | None) -> Iterator[list[Any]]:
    """Give the tracker by which MLflow hears of a run, if it does."""
    if uri is None:
        yield []
        return
    from forever.launch.mlflow.tracker import mirrored_run

    with mirrored_run(folder, uri) as tracker:
        yield [tracker]
