"""MLflow while runs train, and `sync` for what was missed.

A server that is away costs a few seconds and no data.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.mlflow_store import Mirror, Store, end_of, first_line, tracking_uri
from forever.runs.directory import RunDirectory
from forever.runs.environment import without_credentials
from forever.runs.lock import in_progress
from forever.runs.progress import is_run
from forever.runs.tracking import Tracker
from forever.sweeps.sweep import MANIFEST, read_manifest

_EVERY_S = 30.0
_PATIENCE_S = 5.0
_AWAY = "MLflow does not answer, `forever sync {}` sends it later ({})"


class MlflowTracker(Tracker):
    """Keeps the MLflow run of a run up to date while it trains.

    A server that fails is named once. It is tried again at the end, and before that so rarely that
    waiting for it takes less than a twentieth of the time.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.uri = uri
        self._mirror: Mirror | None = None
        self._next = 0.0
        self._failed = False

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        self._folder = directory.path
        self._push()

    def step(self, line: Mapping[str, Any]) -> None:
        if time.monotonic() >= self._next:
            self._push()

    def finished(self, result: Mapping[str, Any]) -> None:
        self._push()

    def _push(self) -> None:
        begun = time.monotonic()
        try:
            self._mirror = self._mirror or Mirror(self._folder, self.uri)
            self._mirror.push()
            wait, self._failed = _EVERY_S, False
        except Exception as error:  # whatever a server or a client library comes up with
            if not self._failed:
                print(_AWAY.format(self._folder, first_line(error)), file=sys.stderr)
            wait, self._failed = max(60.0, 20 * (time.monotonic() - begun)), True
            self._mirror = None
        self._next = time.monotonic() + wait


def sync(folder: Path, uri: str | None = None, patience_s: float = 0.0) -> int:
    """Send what MLflow lacks of a run or a sweep; returns how many runs were sent.

    Those that go on training for `patience_s` are left out.

    Raises:
        InputError: there is no run, or the server fails.
    """
    from mlflow.exceptions import MlflowException

    folder, uri = folder.absolute(), tracking_uri(uri)
    runs = [folder]
    if not is_run(folder):
        runs = sorted(path.parent for path in folder.glob("*/config.yaml"))
    if not runs:
        raise InputError(f"{folder} holds no run: there is no config.yaml in it or below")
    sent = 0
    try:
        for run in runs:
            if in_progress(run, patience_s):
                left_out = "is in progress and left out: it sends itself, or sync again after it"
                print(f"{run} {left_out}", file=sys.stderr)
            else:
                Mirror(run, uri, over=True).push()
                sent += 1
        if sent == len(runs) and (folder / MANIFEST).is_file():
            _end_parent(Store(uri), folder)
    except MlflowException as error:
        raise InputError(
            f"MLflow at {without_credentials(uri)} fails ({first_line(error)}); "
            "give another --mlflow, or try again when it answers"
        ) from None
    return sent


@contextmanager
def mirrored_sweep(folder: Path, uri: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold a sweep's MLflow run around the block; if MLflow is away, `say` tells of it."""

    def attempt(action: Callable[[Path, str], None]) -> None:
        try:
            action(folder, uri)
        except Exception as error:  # whatever a server or a client library comes up with
            say(_AWAY.format(folder, first_line(error)))

    attempt(open_sweep)
    try:
        yield
    finally:
        attempt(close_sweep)


def open_sweep(folder: Path, uri: str) -> None:
    """Make the parent run of a sweep, and the database, which processes at once could not make."""
    store = Store(uri)
    store.client.update_run(store.sweep(folder).info.run_id, "RUNNING")


def close_sweep(folder: Path, uri: str) -> None:
    """End the runs of a sweep that MLflow shows as running and nobody trains, and its parent run.

    A trial that fails or is killed ends without a word to MLflow.
    """
    store = Store(uri)
    parent = store.sweep(folder).info
    children = f"tags.`mlflow.parentRunId` = '{parent.run_id}' and attributes.status = 'RUNNING'"
    for run in store.client.search_runs([parent.experiment_id], children):
        path = folder / run.data.tags["forever.run_key"]
        # A killed worker lets go of its folder some seconds later.
        if is_run(path) and not in_progress(path, _PATIENCE_S):
            Mirror(path, uri, over=True).push()
    _end_parent(store, folder)


def _end_parent(store: Store, folder: Path) -> None:
    """End the parent run of a sweep: it failed with one of its trials, or was stopped early."""
    ends: set[str] = set()
    for trial in read_manifest(folder)["trials"]:
        ends.add(end_of(RunDirectory(folder / trial["key"])))
    status = "KILLED" if "interrupted" in ends else "FINISHED"
    if "failed" in ends:
        status = "FAILED"
    parent = store.sweep(folder).info.run_id
    store.client.log_artifact(parent, str(folder / MANIFEST))
    store.client.set_terminated(parent, status)
