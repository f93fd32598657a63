"""A run, a sweep or a search from what was asked to what came out: the way that the command line
and the Python interface share. Nothing here prints; whoever calls says what is shown, and where."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

from rich.console import Console

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.copies import bring
from forever.launch.fleet import Fleet, SweepOutcome, divide, require_ray
from forever.launch.local import check, choose_kernels, load_libraries, run_local
from forever.runs.console import ProgressLine
from forever.runs.directory import RunDirectory
from forever.runs.tracking import Tracker
from forever.stopping import Stopped, listening
from forever.sweeps.checks import refused
from forever.sweeps.files import SweepFile
from forever.sweeps.rounds import Limits, first_round, rounds
from forever.sweeps.search import Search, find_search
from forever.sweeps.sweep import Sweep
from forever.text import complain

Say = Callable[[str], None]


def train(
    config: RunConfig,
    path: Path,
    benchmark: Benchmark,
    fleet: Fleet,
    resume: bool,
    trackers: Sequence[Tracker] = (),
) -> dict[str, Any]:
    """Train one run in the folder `path`, here or with `fleet.workers`, and return its result.

    Args:
        benchmark: what `check` returned, which is called before.
    """
    choose_kernels([config])
    with mirrored(path, fleet.mlflow) as mirror:
        told = [*trackers, *mirror]
        if fleet.workers:
            require_ray()
            from forever.launch.ray_train import run_workers

            return run_workers(config, path, fleet, resume, told)
        load_libraries()
        return run_local(
            config,
            path,
            resume=resume,
            trackers=told,
            placement=fleet.placement,
            benchmark=benchmark,
        )


@dataclass(frozen=True)
class Asked:
    """What is asked for of a sweep's file; what is None is as the file says.

    Raises:
        InputError: the sweep or the search does not have that.
    """

    file: SweepFile
    base: RunConfig  # from which the variants differ, before the changes
    changes: Mapping[str, Any]  # of all runs, by dotted keys
    seeds: Sequence[int] | None = None
    only: Sequence[str] = ()  # variants; none of them means all
    trials: int | None = None  # of a search
    limits: Limits | None = None  # up to which seeds are added in rounds; None: none are

    def __post_init__(self) -> None:
        check_choice(self.file.name, self.file, self.seeds, self.only, self.trials)
        if self.limits and self.file.is_search:
            name = self.file.name
            raise InputError(f"until and budget: {name} is a search and compares no variants")

    def sweep(self) -> Sweep:
        """The runs of a file with variants; see `SweepFile.expand`."""
        return self.file.expand(self.base, self.seeds, self.changes, self.only)

    def search(self) -> Search:
        """The search of a file with a space; see `find_search`."""
        return find_search(self.file, self.base.override(self.changes), self.seeds)


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
        raise InputError(f"{trials} trials: {name} is no search, and {rule}")
    if only and (file is None or is_search):
        raise InputError(f"only {only[0]!r}: {name} has no variants by name")


@dataclass(frozen=True)
class Ended:
    """What became of a sweep or a search."""

    folder: Path
    outcome: SweepOutcome
    search: Search | None = None


def run_file(
    asked: Asked, out: Path, fleet: Fleet, say: Say, console: Console | None = None
) -> Ended:
    """Run the sweep or search of a file in its folder of `out`.

    Args:
        say: told once a round what is decided and what is open.
        console: where the progress is shown, unless `fleet.show` is false; None: stdout.

    Raises:
        InputError: something of it cannot be, which is known before Ray is started.
    """
    folder = (out / asked.file.name).absolute()
    if asked.file.is_search:
        search = asked.search()
        return Ended(folder, run_search(search, asked.trials, folder, fleet, console), search)
    return Ended(folder, run_sweep(asked.sweep(), folder, fleet, say, asked.limits, console))


def run_sweep(
    sweep: Sweep,
    folder: Path,
    fleet: Fleet,
    say: Say,
    limits: Limits | None = None,
    console: Console | None = None,
) -> SweepOutcome:
    """Run a sweep in its folder; with limits in rounds, to which seeds are added."""
    bring(folder)
    if limits is not None:
        sweep = first_round(sweep)
    trials = sweep.trials()
    todo = [trial for trial in trials if RunDirectory(folder / trial.key).finished() is None]
    refused(todo, others=len(todo) < len(trials))  # before Ray is imported, which takes seconds
    choose_kernels(trial.config for trial in trials)
    require_ray()
    from forever.launch import ray_tune

    if limits is None:
        return ray_tune.run_sweep(sweep, folder, fleet, console)
    return _run_rounds(sweep, folder, fleet, limits, say, console)


def _run_rounds(
    sweep: Sweep, folder: Path, fleet: Fleet, limits: Limits, say: Say, console: Console | None
) -> SweepOutcome:
    """Run a sweep in rounds, all on one Ray, whose start takes seconds."""
    from forever.launch import ray_tune
    from forever.launch.ray_cluster import capacity, cluster

    outcome = SweepOutcome()
    with cluster(dashboard=bool(fleet.workers), logs=fleet.ray_logs):
        total, machines = capacity()

        def at_once(count: int) -> int:
            return divide(total, machines, count, fleet).concurrent

        for part in rounds(sweep, folder, limits, at_once, say):
            outcome.add(ray_tune.run_sweep(part, folder, fleet, console))
    return outcome


def run_search(
    search: Search, trials: int | None, folder: Path, fleet: Fleet, console: Console | None = None
) -> SweepOutcome:
    """Run a search in its folder until it has so many runs; None: as many as its file says."""
    bring(folder)
    check(search.base, RunDirectory(folder / search.base.key()), resume=True)
    choose_kernels([search.base])
    require_ray()
    from forever.launch import ray_search

    return ray_search.run_search(search, folder, trials, fleet, console)


@contextmanager
def watched() -> Iterator[ProgressLine]:
    """Give a line of progress to write to; meanwhile runs save when they are told to stop."""
    # While it is loaded Ray asks notebooks for a package that nothing here needs.
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
    in_main_thread = threading.current_thread() is threading.main_thread()
    with closing(ProgressLine()) as line:
        try:
            with listening(may_end=False) if in_main_thread else nullcontext(), catch_warnings():
                # Of tqdm, which cannot draw its own bars in a notebook as it is.
                filterwarnings("ignore", "IProgress not found")
                yield line
        except Stopped as told:
            line.say("interrupted; the same call goes on from the last checkpoint")
            raise Stopped(told.number) from None  # where it was does not matter


# ---- MLflow


def mlflow_uri(choice: str | None) -> str | None:
    """The tracking URI to use; None for no tracking, as for `auto` without MLflow installed."""
    installed = find_spec("mlflow") is not None
    if choice in (None, "off") or (choice == "auto" and not installed):
        return None
    if not installed:
        raise InputError(
            "--mlflow: MLflow is not installed; pip install 'forever-cl[mlflow]', or --mlflow off"
        )
    from forever.launch.mlflow.store import tracking_uri

    return tracking_uri(None if choice == "auto" else choice)


@contextmanager
def mirrored(folder: Path, uri: str | None) -> Iterator[list[Any]]:
    """Give the tracker by which MLflow hears of a run, if it does."""
    if uri is None:
        yield []
        return
    from forever.launch.mlflow.tracker import mirrored_run

    with mirrored_run(folder, uri) as tracker:
        yield [tracker]


def send_report(folder: Path, uri: str | None, study: Any) -> None:
    """Show the table and the report of a sweep that is over in MLflow, if that hears of it.

    Args:
        study: what was read of the folder (forever/report/study.py).
    """
    if uri is None:
        return
    from forever.launch.mlflow.tracker import show_sweep

    show_sweep(folder, uri, study, complain)
