"""A run, a sweep or a search from the request to the outcome: the way that the command line and
the Python interface share. Nothing here prints; whoever calls says what is shown, and where."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

from rich.console import Console

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.checks import check_choice, check_finished, read_data, refused
from forever.launch.copies import download
from forever.launch.local import Prepared, choose_kernels, load_libraries, prepare, run_prepared
from forever.launch.resources import Resources, SweepOutcome, divide, require_ray
from forever.runs.console import ProgressLine
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.runs.tracking import Tracker
from forever.stopping import Stopped, listening
from forever.storage.store import uploading
from forever.sweeps.files import SweepFile
from forever.sweeps.rounds import Limits, first_round, rounds
from forever.sweeps.search import Search, SearchStudy, find_search
from forever.sweeps.sweep import Sweep, Trial
from forever.sweeps.table import SweepTable
from forever.text import complain

Say = Callable[[str], None]


def train(
    prepared: Prepared, resources: Resources, trackers: Sequence[Tracker] = ()
) -> dict[str, Any]:
    """Train one run, here or with `resources.workers`, and return its result."""
    choose_kernels([prepared.config])
    sent_to_mlflow: Any = nullcontext()
    if resources.mlflow is not None:
        from forever.launch.mlflow.tracker import mirrored_run

        sent_to_mlflow = mirrored_run(prepared.directory.path, resources.mlflow)
    with sent_to_mlflow as mirror:
        everyone = [*trackers, mirror] if mirror else trackers
        if resources.workers:
            require_ray()
            from forever.launch.train import run_workers

            return run_workers(prepared, resources, everyone)
        load_libraries()
        return run_prepared(prepared, resources.placement, everyone)


# ---- a sweep or a search


@dataclass(frozen=True)
class Request:
    """Which runs of a sweep's file are requested; what is None is as the file says.

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

    def folder(self, out: Path) -> Path:
        """The folder below `out` that holds its runs."""
        return (out / self.file.name).absolute()

    def search(self) -> Search:
        """The search of a file with a space; see `find_search`."""
        return find_search(self.file, self.base.override(self.changes), self.seeds)


def run_file(
    request: Request, out: Path, resources: Resources, say: Say, console: Console | None = None
) -> SweepOutcome:
    """Run the sweep or search of a file in its folder of `out`; see `Request.folder`.

    Args:
        say: gets a line on what is decided and what is open, once a round.
        console: where the progress is shown, unless `resources.show` is false; None: stdout.

    Raises:
        InputError, Stopped: as for `run_sweep` and `run_search`.
    """
    folder = request.folder(out)
    if request.file.is_search:
        return run_search(request.search(), folder, request.trials, resources, console)
    return run_sweep(request.sweep(), folder, resources, request.limits, say, console)


def run_sweep(
    sweep: Sweep,
    folder: Path,
    resources: Resources = Resources(),
    limits: Limits | None = None,
    say: Say = complain,
    console: Console | None = None,
) -> SweepOutcome:
    """Run all trials of a sweep that have no result yet and did not fail before.

    Args:
        folder: a trial's directory is `folder / trial.key`. On several machines it must be shared,
            or the scratch folder of an address (docs/storage.md).
        limits: up to which seeds are added, round by round; None: the sweep is run as it is.
        say, console: as for `run_file`.

    Raises:
        InputError: no trial can run (bad data, missing model), the data have changed since some
            were finished, or the cluster can never hold the request. All but the last is known
            before Ray is imported, which takes seconds.
        Stopped: Ctrl-C, SIGTERM or SIGHUP. Runs have saved, everything is closed; the same call
            resumes them.
    """
    folder = folder.absolute()
    if limits is None:
        return _run_trials(sweep, folder, resources, console)
    outcome = SweepOutcome()
    with ExitStack() as ray_of_later_rounds:

        def at_once(count: int) -> int:
            require_ray()
            from forever.launch.cluster import capacity, connected

            options = {"dashboard": bool(resources.workers), "logs": resources.ray_logs}
            ray_of_later_rounds.enter_context(connected(**options))
            return divide(*capacity(), count, resources).concurrent

        for part in rounds(first_round(sweep), folder, limits, at_once, say):
            outcome.add(_run_trials(part, folder, resources, console))
    return outcome


def _run_trials(
    sweep: Sweep, folder: Path, resources: Resources, console: Console | None
) -> SweepOutcome:
    """Check the trials of a sweep, and run those that have no result; see `run_sweep`."""
    trials, outcome = sweep.trials(), SweepOutcome()
    download(folder)

    # What is finished stays, and so does what failed, unless it is to be run again.
    data = read_data(trials)
    check_finished(trials, folder, data)
    todo: list[Trial] = []
    for trial in trials:
        directory = RunDirectory(folder / trial.key)
        end = directory.end_without_result() or {}
        if directory.finished() is not None:
            outcome.skipped.append(trial.key)
        elif end.get("state") == "failed" and not resources.retry_failed:
            outcome.failed[trial.key] = end["reason"]
        else:
            todo.append(trial)
    failed_before = len(outcome.failed)

    # Of the others, those that cannot run are refused, before anything is written.
    outcome.failed |= refused(todo, len(todo) < len(trials), data)
    todo = [trial for trial in todo if trial.key not in outcome.failed]

    with (
        locked(folder, patience_s=0),
        uploading(folder, is_sweep=True),
        SweepTable(trials, resources.show, console) as table,
    ):
        sweep.write_manifest(folder)
        _show_earlier(table, outcome, failed_before)
        if todo:
            choose_kernels(trial.config for trial in todo)
            require_ray()
            from forever.launch.tune import fan_out

            fan_out(todo, folder, resources, table, outcome, count=len(trials))
    return outcome


def run_search(
    search: Search,
    folder: Path,
    trials: int | None = None,
    resources: Resources = Resources(),
    console: Console | None = None,
) -> SweepOutcome:
    """Run points of a search until `trials` of them are in the folder, the base's own first.

    Optuna chooses runs while others run, and stops those that fall behind between tasks. Stopping
    trusts OP: a run that is cheap but low in OP may be given up, and the front is that of the runs
    that were allowed to finish.

    Args:
        folder: a run's directory is `folder / key`.
        trials: the number of runs in all; None is the search's own. Those of earlier calls count,
            whatever became of them; interrupted ones are resumed first.
        console: as for `run_file`.

    Raises:
        InputError, Stopped: as `run_sweep`; the base has fewer than two tasks.
    """
    folder, outcome = folder.absolute(), SweepOutcome()
    download(folder)
    base = prepare(search.base, folder / search.base.key(), resume=True)
    if len(base.benchmark.stages) < 2:
        raise InputError(f"search needs at least two tasks for BWT: {base.benchmark.name}")
    with locked(folder, patience_s=0), uploading(folder, is_sweep=True):
        # What earlier calls chose: interrupted runs are resumed, before failed ones are retried.
        study = SearchStudy(search, folder)
        before = study.known()
        again = [run for run in before if run.state == "interrupted"]
        if resources.retry_failed:
            again += [run for run in before if run.state == "failed"]
        total = max(trials or search.trials, len(before))
        study.begin(again)

        for run in before:
            if run in again:
                continue
            if run.state == "failed":
                outcome.failed[run.trial.key] = run.reason
            else:
                ended = outcome.skipped if run.state == "finished" else outcome.stopped
                ended.append(run.trial.key)

        shown = [run.trial for run in before]
        with SweepTable(shown, resources.show, console, total) as table:
            _show_earlier(table, outcome, len(outcome.failed))
            if todo := len(again) + total - len(before):
                choose_kernels([search.base])
                require_ray()
                from forever.launch.tune import fan_out

                chosen = islice(iter(study.ask, None), todo)
                fan_out(chosen, folder, resources, table, outcome, count=total, study=study)
    return outcome


def _show_earlier(table: SweepTable, outcome: SweepOutcome, failed_before: int) -> None:
    """Show what became of runs in earlier calls, and which of them cannot run."""
    for key in [*outcome.skipped, *outcome.stopped]:
        table.ended(key, "skipped")
    for key, reason in outcome.failed.items():
        table.ended(key, "failed", reason)
    table.say_failed_before(failed_before)


@contextmanager
def watched() -> Iterator[ProgressLine]:
    """Give a line of progress to write to; meanwhile runs save at a signal to stop."""
    # While it is loaded Ray asks notebooks for a package that nothing here needs.
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
    in_main_thread = threading.current_thread() is threading.main_thread()
    with closing(ProgressLine()) as line:
        try:
            with listening(may_end=False) if in_main_thread else nullcontext(), catch_warnings():
                # Of tqdm, which cannot draw its own bars in a notebook as it is.
                filterwarnings("ignore", "IProgress not found")
                yield line
        except Stopped as stopped:
            line.say("interrupted; the same call resumes from the last checkpoint")
            raise Stopped(stopped.number) from None  # where it was does not matter


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
