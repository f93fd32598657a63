"""MLflow while runs train; `sync` (sync.py) is for what was missed.

One thread of the process does all of it, loading MLflow included. Training never waits for it, and
the end of a run for five seconds at most: whatever a server does, it costs no data.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.mlflow.mirror import end_of, ended_ms, load_figures, push_run
from forever.launch.mlflow.overview import push_overview, push_table
from forever.launch.mlflow.store import Store, first_line
from forever.launch.mlflow.waiting import within
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress
from forever.runs.progress import is_run
from forever.runs.tracking import Tracker
from forever.sweeps.sweep import MANIFEST, read_manifest
from forever.text import complain

Mark = tuple[Path, str]  # a run, and how it ended
_EVERY_S = 30.0
# A server that failed is left alone for so long, and for so many times what the failure took.
_AGAIN_S, _SHARE = 60.0, 20.0
_PATIENCE_S = 5.0  # for all that is left to send at the end of a run
_SWEEP_PATIENCE_S = 30.0  # and of a sweep
_LETS_GO_S = 2.0  # a killed worker lets go of its folder some seconds later
# How often the table of a sweep that goes on is made anew, which reads all its runs.
_TABLE_EVERY_S = 600.0
_AWAY = "MLflow does not answer, `forever sync {}` sends it later ({})"
_LATE = "MLflow has not got all of it yet, {:g} s after the end; `forever sync {}` sends the rest"


class News(Tracker):
    """Wakes the thread that sends a run when that begins, which is the first it hears of it."""

    def __init__(self, news: Event) -> None:
        self._news = news

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        self._news.set()


@contextmanager
def mirrored_run(folder: Path, uri: str | None) -> Iterator[Tracker]:
    """Show a run in MLflow during the block, and at its end say there how it ended.

    Yields the tracker that the run needs for that.
    """

    def send(over: bool) -> None:
        if is_run(folder):
            push_run(folder, uri, over and not in_progress(folder, _LETS_GO_S))
        if not over:
            load_figures()  # which takes a second or two, and would at the end

    with _sending(folder, send, complain, _PATIENCE_S) as news:
        yield News(news)


@contextmanager
def mirrored_sweep(
    folder: Path, uri: str, say: Callable[[str], None], failed: Collection[str] = ()
) -> Iterator[Callable[[], None]]:
    """Show a sweep and its runs in MLflow during the block; if MLflow is away, `say` tells of it.

    One thread of this process sends everything, so that no trial loads MLflow or waits for it.
    Yields what to call when a run has ended, which is then sent at once.

    Args:
        failed: the runs that will have failed by the end of the block, of which some may have no
            folder.
    """
    sent: set[Mark] = set()
    table_at, in_table = time.monotonic(), 0

    def send(over: bool) -> None:
        nonlocal table_at, in_table
        if over:
            close_sweep(folder, uri, sent, failed)
            return
        push_sweep(folder, uri, sent)
        if len(sent) > in_table and time.monotonic() > table_at + _TABLE_EVERY_S:
            push_table(folder, uri)
            table_at, in_table = time.monotonic(), len(sent)

    with _sending(folder, send, say, _SWEEP_PATIENCE_S) as news:
        yield news.set


def show_sweep(folder: Path, uri: str, study: Any, say: Callable[[str], None]) -> None:
    """Send the table and the report of a sweep that has ended; if MLflow is away, `say` it.

    Args:
        study: what was read of the folder (forever/report/study.py).
    """
    try:
        within(_SWEEP_PATIENCE_S, lambda: push_overview(folder, uri, study))
    except Exception as error:  # whatever a server or a client library comes up with
        say(_AWAY.format(folder, first_line(error)))


@contextmanager
def _sending(
    folder: Path, send: Callable[[bool], None], say: Callable[[str], None], patience_s: float
) -> Iterator[Event]:
    """Let a thread `send` during the block, and wait for its end for `patience_s` in all.

    Yields what tells it that there is news.
    """
    sender = _Sender(folder, send, say)
    sender.start()
    try:
        yield sender.news
    finally:
        sender.end(patience_s)


class _Sender(Thread):
    """Sends now and then and when there is `news`, and the rest at the end.

    A server that fails is named once. It is tried again at the end, and before that so rarely that
    waiting for it takes less than a twentieth of the time, whatever news there is.
    """

    def __init__(
        self, folder: Path, send: Callable[[bool], None], say: Callable[[str], None]
    ) -> None:
        super().__init__(daemon=True)  # it may hang on a server that answers a byte at a time
        self.news = Event()
        self._over = Event()
        self._folder, self._send, self._say = folder, send, say
        self._failed = self._left = False

    def run(self) -> None:
        while True:
            self.news.clear()
            begun, ending = time.monotonic(), self._over.is_set()
            try:
                self._send(ending)
                wait, self._failed = _EVERY_S, False
            except Exception as error:  # whatever a server or a client library comes up with
                self._fail(_AWAY.format(self._folder, first_line(error)))
                wait = max(_AGAIN_S, _SHARE * (time.monotonic() - begun))
            if ending:
                return
            (self._over if self._failed else self.news).wait(wait)

    def end(self, patience_s: float) -> None:
        """Let it send the rest; after `patience_s` it is left alone, and ends with the process."""
        self._over.set()
        self.news.set()
        self.join(patience_s)
        if self.is_alive():
            self._fail(_LATE.format(patience_s, self._folder))
            self._left = True

    def _fail(self, line: str) -> None:
        if not (self._failed or self._left):
            self._say(line)
        self._failed = True


def push_sweep(folder: Path, uri: str, sent: set[Mark]) -> None:
    """Send what is new of a sweep, once it is written down, and of its runs that go on or ended.

    `sent` are the ends of runs of which there is no more to send; it grows.
    """
    if not (folder / MANIFEST).is_file():
        return
    store = Store(uri)
    parent = store.sweep(folder).info
    if parent.status != "RUNNING":
        store.client.update_run(parent.run_id, "RUNNING")
    for path in runs_in(folder):
        ended = _mark(path)[1]
        if ended or in_progress(path):  # else it was interrupted
            _push(path, uri, sent, over=bool(ended))


def close_sweep(folder: Path, uri: str, sent: set[Mark], failed: Collection[str] = ()) -> None:
    """Send what MLflow lacks of a sweep, and end its parent run and the runs that nobody trains."""
    for path in runs_in(folder):
        _push(path, uri, sent, over=not in_progress(path, _LETS_GO_S))
    end_parent(Store(uri), folder, failed)


def _push(path: Path, uri: str, sent: set[Mark], over: bool) -> None:
    """Send what is new of a run of a sweep; one that cannot be read is named once.

    Raises:
        OSError: the server failed, which says nothing of the run.
    """
    mark = _mark(path)
    if mark in sent:
        return
    try:
        push_run(path, uri, over)
    except (InputError, OSError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise  # not the disk's but a server's: what sends over HTTP fails with OSErrors as well
        complain(f"{path} is not shown in MLflow: {error}")
        sent.add(mark)
    if mark[1]:
        sent.add(mark)


def _mark(path: Path) -> Mark:
    """A run and how it ended, which is nothing if it goes on: a failed one may be tried again."""
    directory = RunDirectory(path)
    if directory.result.is_file():
        return path, "finished"
    ended = directory.ended
    return path, str(ended.stat().st_mtime_ns) if ended.is_file() else ""


def runs_in(folder: Path) -> list[Path]:
    """The runs of a folder that have begun."""
    return sorted(config.parent for config in folder.glob("*/config.yaml"))


def end_parent(store: Store, folder: Path, failed: Collection[str] = ()) -> None:
    """End the parent run of a sweep: it failed with one of its trials, or was stopped early.

    Args:
        failed: trials of which the sweep knows that they failed, and their folders may not.
    """
    ends: set[str] = set()
    info = store.sweep(folder).info
    time_ms = info.start_time
    for trial in read_manifest(folder)["trials"]:
        directory = RunDirectory(folder / trial["key"])
        ends.add(_readable_end(directory))
        if directory.result.is_file():
            time_ms = ended_ms(directory, time_ms)
    status = "KILLED" if "interrupted" in ends else "FINISHED"
    if failed or "failed" in ends:
        status = "FAILED"
    store.client.log_artifact(info.run_id, str(folder / MANIFEST))
    store.client.set_terminated(info.run_id, status, time_ms)


def _readable_end(directory: RunDirectory) -> str:
    """How a run is over; one that cannot be read has failed."""
    try:
        return end_of(directory)
    except InputError:
        return "failed"
