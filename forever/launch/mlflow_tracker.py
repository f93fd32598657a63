"""MLflow while runs train, and `sync` for what was missed.

A server that is away costs a few seconds and no data.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
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
            wait, self._failed = _pause(begun), True
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
        runs = _runs(folder)
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
def mirrored_sweep(
    folder: Path, uri: str, say: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Show a sweep and its runs in MLflow during the block; if MLflow is away, `say` tells of it.

    One thread of this process sends everything, so that no trial loads MLflow or waits for it.
    Yields what to call when a run has ended, which is then sent at once.
    """
    over, news = Event(), Event()
    mirror = Thread(target=_follow, args=(folder, uri, say, over, news), daemon=True)
    mirror.start()
    try:
        yield news.set
    finally:
        over.set()
        news.set()
        mirror.join()


def _follow(folder: Path, uri: str, say: Callable[[str], None], over: Event, news: Event) -> None:
    """Send what is new now and then and when there are `news`, and the rest when it is `over`.

    A server that is away is left alone for a while, whatever news there are.
    """
    mirrors: dict[Path, Mirror | None] = {}
    failed = False
    while True:
        news.clear()
        begun, ending = time.monotonic(), over.is_set()
        try:
            if ending:
                close_sweep(folder, uri)
            else:
                push_sweep(folder, uri, mirrors)
            wait, failed = _EVERY_S, False
        except Exception as error:  # whatever a server or a client library comes up with
            if not failed:
                say(_AWAY.format(folder, first_line(error)))
            wait, failed = _pause(begun), True
            mirrors.clear()
        if ending:
            return
        (over if failed else news).wait(wait)


def push_sweep(folder: Path, uri: str, mirrors: dict[Path, Mirror | None]) -> None:
    """Send what is new of a sweep, once it is written down, and of its runs that have begun.

    `mirrors` are those of an earlier call, to which new ones are added; None for a run that cannot
    be read, which is named once.
    """
    if not (folder / MANIFEST).is_file():
        return
    if not mirrors:
        store = Store(uri)
        store.client.update_run(store.sweep(folder).info.run_id, "RUNNING")
    for path in _runs(folder):
        if path not in mirrors:
            if not RunDirectory(path).finished() and not in_progress(path):
                continue  # it was interrupted, or failed
            mirrors[path] = _mirror(path, uri, over=False)
        if mirror := mirrors[path]:
            mirror.push()


def _mirror(path: Path, uri: str, over: bool) -> Mirror | None:
    """The mirror of a run; None, and a line, for a directory that cannot be read."""
    try:
        return Mirror(path, uri, over)
    except (InputError, OSError) as error:
        print(f"{path} is not shown in MLflow: {error}", file=sys.stderr)
        return None


def _pause(begun: float) -> float:
    """Seconds until MLflow is tried again, after a failure that took the time since `begun`."""
    return max(60.0, 20 * (time.monotonic() - begun))


def close_sweep(folder: Path, uri: str) -> None:
    """Send what MLflow lacks of a sweep, and end its parent run and the runs that nobody trains."""
    for path in _runs(folder):
        # A killed worker lets go of its folder some seconds later.
        if mirror := _mirror(path, uri, over=not in_progress(path, _PATIENCE_S)):
            mirror.push()
    _end_parent(Store(uri), folder)


def _runs(folder: Path) -> list[Path]:
    return sorted(config.parent for config in folder.glob("*/config.yaml"))


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
