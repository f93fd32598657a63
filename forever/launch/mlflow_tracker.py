"""MLflow as a window on runs.

There is a tracker for a run that trains, parent runs for sweeps, and `sync` for what was missed.

All of it sends what run directories hold and the server lacks, so a server that is away costs a few
seconds and no data.
"""

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.format import as_csv
from forever.launch.mlflow_store import SQLITE, Mirror, Store, first_line, sweep_run
from forever.runs.directory import RunDirectory
from forever.runs.environment import without_credentials
from forever.runs.lock import in_progress
from forever.runs.progress import is_run
from forever.runs.tracking import Tracker
from forever.sweeps.sweep import MANIFEST, read_manifest, slug

_EVERY_S = 30.0
_PATIENCE_S = 5.0
_AWAY = "MLflow does not answer, `forever sync {}` sends it later ({})"


def tracking_uri(choice: str | None = None) -> str:
    """Return `choice`, MLFLOW_TRACKING_URI, or a database in the working folder.

    The first of them that is given counts.

    A database gets an absolute path, since Ray's processes work elsewhere.
    """
    uri = choice or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}mlflow.db"
    if uri.startswith(SQLITE):
        return SQLITE + str(Path(uri.removeprefix(SQLITE)).absolute())
    return uri


class MlflowTracker(Tracker):
    """Keeps the MLflow run of a run up to date while it trains.

    A server that fails is named once. It is tried again at the end, and before that so rarely that
    waiting for it takes less than a twentieth of the time.

    Args:
        uri: of the store; see `tracking_uri`.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.uri = tracking_uri(uri)
        self._mirror: Mirror | None = None
        self._next = 0.0
        self._failed = False

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        self._mirror = Mirror(directory.path, self.uri)
        self._push()

    def step(self, line: Mapping[str, Any]) -> None:
        if time.monotonic() >= self._next:
            self._push()

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        if not self._failed or time.monotonic() >= self._next:
            self._push()

    def finished(self, result: Mapping[str, Any]) -> None:
        self._push()

    def _push(self) -> None:
        assert self._mirror is not None
        begun = time.monotonic()
        try:
            self._mirror.push()
            wait, self._failed = _EVERY_S, False
        except Exception as error:  # whatever a server or a client library comes up with
            if not self._failed:
                folder = self._mirror.directory.path
                print(_AWAY.format(folder, first_line(error)), file=sys.stderr)
            wait, self._failed = max(60.0, 20 * (time.monotonic() - begun)), True
        self._next = time.monotonic() + wait


def sync(folder: Path, uri: str | None = None, patience_s: float = 0.0) -> int:
    """Send what MLflow lacks of a run directory, a sweep, or a folder of sweeps.

    Runs that are training now are left out.

    Args:
        patience_s: how long to wait for the end of a run that is training.

    Returns:
        How many runs were sent.

    Raises:
        InputError: there is no run, or the server fails.
    """
    folder, uri = folder.absolute(), tracking_uri(uri)
    # A sweep's runs, or those of all sweeps of an --out. Copies of config.yaml that lie deeper are
    # MLflow's artifacts.
    below = [*folder.glob("*/config.yaml"), *folder.glob("*/*/config.yaml")]
    runs = [folder] if is_run(folder) else sorted(path.parent for path in below)
    if not runs:
        raise InputError(f"{folder} holds no run: there is no config.yaml in it or below")
    training = [run for run in runs if in_progress(run, patience_s)]
    for run in training:
        left_out = "is in progress and left out: it sends itself, or sync again after it"
        print(f"{run} {left_out}", file=sys.stderr)
    try:
        for run in runs:
            if run not in training:
                Mirror(run, uri).push(unfinished="KILLED")
        for sweep in {run.parent for run in runs} - {run.parent for run in training}:
            if sweep != folder.parent and (sweep / MANIFEST).is_file():
                _end_parent(Store(uri), sweep, None)
    except Exception as error:
        from mlflow.exceptions import MlflowException

        if not isinstance(error, MlflowException):
            raise
        raise InputError(
            f"MLflow at {without_credentials(uri)} fails ({first_line(error)}); "
            "give another --mlflow, or try again when it answers"
        ) from None
    return len(runs) - len(training)


# ---- sweeps


def open_sweep(folder: Path, uri: str) -> None:
    """Make the parent run of a sweep, and with it the database.

    Processes that all make it at once would fail.
    """
    store = Store(tracking_uri(uri))
    store.client.update_run(sweep_run(store, folder)[1], "RUNNING")


def close_sweep(folder: Path, uri: str, status: str) -> None:
    """Bring all runs of a sweep up to date, and end its parent run.

    Trials that are killed end without a word. So runs that nobody trains are ended here; they would
    show as running for ever.

    Args:
        status: the parent's: FINISHED, FAILED, or KILLED if the sweep was stopped. Then it takes
            seconds, since only what is open gets closed.
    """
    store = Store(tracking_uri(uri))
    experiment, parent = sweep_run(store, folder)
    children = f"tags.`mlflow.parentRunId` = '{parent}' and attributes.status = 'RUNNING'"
    running = store.client.search_runs([experiment], children)
    keys = [run.data.tags["forever.run_key"] for run in running]
    if status != "KILLED":
        keys += [trial["key"] for trial in read_manifest(folder)["trials"]]
    # A killed worker lets go of its folder some seconds later.
    deadline = time.monotonic() + _PATIENCE_S
    for key in dict.fromkeys(keys):
        left_s = max(deadline - time.monotonic(), 0.0)
        # If it is in progress, another process trains it.
        if is_run(folder / key) and not in_progress(folder / key, left_s):
            mirror = Mirror(folder / key, uri)
            killed = status == "KILLED" or _unfinished(mirror.directory) == "stopped"
            mirror.push(unfinished="KILLED" if killed else "FAILED")
    _end_parent(store, folder, status)


def _end_parent(store: Store, folder: Path, status: str | None) -> None:
    """Give the parent run of a sweep what is known of its trials, and end it.

    Args:
        status: None is what it ended with, FINISHED if all trials have a result by now, KILLED if
            it never ended.
    """
    parent = sweep_run(store, folder)[1]
    states = Counter({"done": 0, "failed": 0})
    scores: defaultdict[str, list[float]] = defaultdict(list)
    rows: list[list[Any]] = []
    for trial in read_manifest(folder)["trials"]:
        directory = RunDirectory(folder / trial["key"])
        result = directory.finished() or {}
        states["done" if result else _unfinished(directory)] += 1
        values = [result.get(score) for score in ("op", "bwt", "forgetting")]
        rows.append([trial["variant"], trial["order"], trial["seed"], trial["key"], *values])
        for score in ("op", "bwt"):
            if result.get(score) is not None:
                scores[f"{score}/{slug(trial['variant'])}"].append(result[score])
    if status is None:
        ended = store.client.get_run(parent).info.status
        status = "KILLED" if ended == "RUNNING" else ended
        status = status if states["failed"] else "FINISHED"
    if status == "KILLED":
        del states["failed"]  # some of those without a result have not been tried
    metrics: dict[str, float] = {key: fmean(values) for key, values in scores.items()}
    metrics |= {f"trials/{state}": count for state, count in states.items()}
    present = store.client.get_run(parent).data.metrics
    step = states["done"]
    fresh = [(key, value, step) for key, value in metrics.items() if present.get(key) != value]
    store.send(parent, fresh, dict.fromkeys(metrics, -1))
    header = ["variant", "order", "seed", "key", "op", "bwt", "forgetting"]
    store.client.log_text(parent, as_csv(header, rows), "summary.csv")
    store.client.log_artifact(parent, str(folder / MANIFEST))
    store.client.set_terminated(parent, status)


def _unfinished(directory: RunDirectory) -> str:
    """Return what became of a run without a result: "stopped" or "failed".

    A run is stopped when a search gave it up early, which is no failure.
    """
    end = directory.end_without_result() or {}
    return "stopped" if end.get("state") == "stopped" else "failed"


@contextmanager
def mirrored_sweep(
    folder: Path, uri: str, say: Callable[[str], None], failed: Mapping[str, str]
) -> Iterator[None]:
    """Hold the MLflow run of the sweep in `folder` around the block.

    If MLflow is away the sweep goes on, and `say` tells of it.

    Args:
        failed: has an entry for each trial that failed, when the block is over.
    """

    def attempt(action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever a server or a client library comes up with
            say(_AWAY.format(folder, first_line(error)))

    attempt(lambda: open_sweep(folder, uri))
    try:
        yield
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        attempt(lambda: close_sweep(folder, uri, status))
        raise
    attempt(lambda: close_sweep(folder, uri, "FAILED" if failed else "FINISHED"))
