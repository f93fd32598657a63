"""MLflow as a window on runs: a tracker for a run that trains, parent runs for sweeps, `sync` for
what was missed.

All of it sends what run directories hold and the server lacks (see mlflow_mirror), so a server that
is away costs a few seconds and no data.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.mlflow_mirror import Mirror, table
from forever.launch.mlflow_store import connect, sweep_run
from forever.runs.directory import RunDirectory
from forever.runs.environment import without_credentials
from forever.runs.lock import in_progress
from forever.runs.progress import is_run
from forever.runs.tracking import SilentTracker
from forever.sweeps.sweep import MANIFEST, read_manifest, slug

if TYPE_CHECKING:
    from mlflow import MlflowClient

_Trial = Mapping[str, Any]  # as the manifest lists it
_Result = Mapping[str, Any] | None
_EVERY_S = 30.0
_PATIENCE_S = 5.0
_SQLITE = "sqlite:///"


def tracking_uri(choice: str | None = None) -> str:
    """`choice`, MLFLOW_TRACKING_URI, or a database in the working folder: the first of them that is
    given.

    A database gets an absolute path, since Ray's processes work elsewhere.
    """
    uri = choice or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}mlflow.db"
    if uri.startswith(_SQLITE):
        return _SQLITE + str(Path(uri.removeprefix(_SQLITE)).absolute())
    return uri


class MlflowTracker(SilentTracker):
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
                what = _first_line(error)
                where = self._mirror.directory.path
                print(
                    f"MLflow does not answer, `forever sync {where}` sends it later ({what})",
                    file=sys.stderr,
                )
            wait, self._failed = max(60.0, 20 * (time.monotonic() - begun)), True
        self._next = time.monotonic() + wait


def sync(folder: Path, uri: str | None = None, patience_s: float = 0.0) -> int:
    """Send what MLflow lacks of a run directory, a sweep, or a folder of sweeps; not of runs that
    are training now.

    Args:
        patience_s: how long to wait for the end of a run that is training.

    Returns:
        How many runs were sent.

    Raises:
        InputError: there is no run, or the server fails.
    """
    try:
        return _sync(folder, uri, patience_s)
    except InputError:
        raise
    except Exception as error:
        from mlflow.exceptions import MlflowException

        if not isinstance(error, MlflowException):
            raise
        where = without_credentials(tracking_uri(uri))
        raise InputError(
            f"MLflow at {where} fails ({_first_line(error)}); "
            "give another --mlflow, or try again when it answers"
        ) from None


def _first_line(error: Exception) -> str:
    # Credentials go first: the cut could leave a password without the @ that gives it away.
    lines = without_credentials(str(error)).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _sync(folder: Path, uri: str | None, patience_s: float) -> int:
    folder, uri = folder.absolute(), tracking_uri(uri)
    # A sweep's runs, or those of all sweeps of an --out; no deeper, where copies of config.yaml are
    # MLflow's artifacts.
    below = [path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/config.yaml")]
    runs = [folder] if is_run(folder) else sorted(below)
    if not runs:
        raise InputError(f"{folder} holds no run: there is no config.yaml in it or below")
    sent: list[Path] = []
    for run in runs:
        if in_progress(run, patience_s):
            print(
                f"{run} is in progress and left out: it sends itself, or sync again after it",
                file=sys.stderr,
            )
        else:
            Mirror(run, uri).push(unfinished="KILLED")
            sent.append(run)
    sweeps = {run.parent for run in runs if run != folder and (run.parent / MANIFEST).is_file()}
    for sweep in sweeps - {run.parent for run in runs if run not in sent}:
        _end_parent(connect(uri), sweep, None)
    return len(sent)


def open_sweep(folder: Path, uri: str) -> None:
    """Make the parent run of a sweep, and with it the database: processes that all make it at once
    would fail."""
    client = connect(uri)
    run = sweep_run(client, folder)
    client.update_run(run.info.run_id, "RUNNING")


def close_sweep(folder: Path, uri: str, status: str) -> None:
    """Bring all runs of a sweep up to date, end those left open that nobody trains, and end the
    parent run.

    Trials that are killed end without a word, so their runs would show as running for ever.

    Args:
        status: of the parent: FINISHED, FAILED, or KILLED if the sweep was stopped, and then in
        seconds: only what is
            open gets closed.
    """
    client = connect(uri)
    parent = sweep_run(client, folder)
    mine = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    open_runs = client.search_runs(
        [parent.info.experiment_id], f"{mine} and attributes.status = 'RUNNING'"
    )
    trials = read_manifest(folder)["trials"]
    keys = [run.data.tags["forever.run_key"] for run in open_runs]
    if status != "KILLED":
        keys += [trial["key"] for trial in trials if trial["key"] not in keys]
    stopped = _stopped(folder, trials)
    # A killed worker lets go of its folder some seconds later.
    deadline = time.monotonic() + _PATIENCE_S
    for key in keys:
        left_s = max(deadline - time.monotonic(), 0.0)
        # Or it is another process that trains it.
        if is_run(folder / key) and not in_progress(folder / key, left_s):
            Mirror(folder / key, uri).push(
                unfinished="KILLED" if status == "KILLED" or key in stopped else "FAILED"
            )
    _end_parent(client, folder, status)


def _end_parent(client: "MlflowClient", folder: Path, status: str | None) -> None:
    """Give the parent run of a sweep what is known of its trials, and end it.

    Args:
        status: None is what it ended with, FINISHED if all trials have a result by now, KILLED if
        it never ended.
    """
    from mlflow.entities import Metric

    parent, trials = sweep_run(client, folder), read_manifest(folder)["trials"]
    results = {trial["key"]: RunDirectory(folder / trial["key"]).finished() for trial in trials}
    done, stopped = (
        sum(result is not None for result in results.values()),
        len(_stopped(folder, trials)),
    )
    if status is None:
        ended = "KILLED" if parent.info.status == "RUNNING" else parent.info.status
        status = "FINISHED" if done + stopped == len(trials) else ended
    metrics = {**_means(trials, results), "trials/done": done}
    if status != "KILLED":  # otherwise some of those without a result have not been tried
        metrics["trials/failed"] = len(trials) - done - stopped
        metrics |= {"trials/stopped": stopped} if stopped else {}
    now, known = int(time.time() * 1000), parent.data.metrics
    fresh = [
        Metric(key, value, now, done) for key, value in metrics.items() if known.get(key) != value
    ]
    client.log_batch(parent.info.run_id, metrics=fresh)
    client.log_text(parent.info.run_id, _summary(trials, results), "summary.csv")
    client.log_artifact(parent.info.run_id, str(folder / MANIFEST))
    client.set_terminated(parent.info.run_id, status)


def _stopped(folder: Path, trials: Sequence[_Trial]) -> set[str]:
    """The trials that a search gave up early, which is no failure."""
    ends = {
        trial["key"]: RunDirectory(folder / trial["key"]).end_without_result() for trial in trials
    }
    return {key for key, end in ends.items() if end and end["state"] == "stopped"}


def _means(trials: Sequence[_Trial], results: Mapping[str, _Result]) -> dict[str, float]:
    """OP and BWT of each variant, means over its finished trials."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for trial in trials:
        for score in ("op", "bwt"):
            value = (results[trial["key"]] or {}).get(score)
            if value is not None:
                found[f"{score}/{slug(trial['variant'])}"].append(value)
    return {key: fmean(values) for key, values in found.items()}


def _summary(trials: Sequence[_Trial], results: Mapping[str, _Result]) -> str:
    scores = ("op", "bwt", "forgetting")
    rows: list[list[Any]] = [["variant", "order", "seed", "key", *scores]]
    for trial in trials:
        result = results[trial["key"]] or {}
        rows.append(
            [
                trial["variant"],
                trial["order"],
                trial["seed"],
                trial["key"],
                *(result.get(s) for s in scores),
            ]
        )
    return table(rows)
