"""MLflow while runs train, and `sync` for what was missed.

One thread of the process does all of it, loading MLflow included. Training never waits for it, and
the end of a run for five seconds at most: whatever a server does, it costs no data.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.files import check_within
from forever.launch.mlflow.mirror import end_of, load_figures, push_run
from forever.launch.mlflow.store import Store, first_line, tracking_uri
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress
from forever.runs.progress import is_run
from forever.runs.tracking import Tracker
from forever.sweeps.sweep import MANIFEST, read_manifest
from forever.text import complain, without_credentials

Mark = tuple[Path, str]  # a run, and how it ended
_EVERY_S = 30.0
# A server that failed is left alone for so long, and for so many times what the failure took.
_AGAIN_S, _SHARE = 60.0, 20.0
_PATIENCE_S = 5.0  # for all that is left to send at the end of a run
_SWEEP_PATIENCE_S = 30.0  # and of a sweep
_LETS_GO_S = 2.0  # a killed worker lets go of its folder some seconds later
_SYNC_S = 120.0  # the longest that `sync` waits for one run
_AWAY = "MLflow does not answer, `forever sync {}` sends it later ({})"


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
    folder: Path, uri: str, say: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Show a sweep and its runs in MLflow during the block; if MLflow is away, `say` tells of it.

    One thread of this process sends everything, so that no trial loads MLflow or waits for it.
    Yields what to call when a run has ended, which is then sent at once.
    """
    sent: set[Mark] = set()

    def send(over: bool) -> None:
        if over:
            close_sweep(folder, uri, sent)
        else:
            push_sweep(folder, uri, sent)

    with _sending(folder, send, say, _SWEEP_PATIENCE_S) as news:
        yield news.set


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
                self._fail(first_line(error))
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
            self._fail(f"not all was sent {patience_s:g} s after the end")
            self._left = True

    def _fail(self, problem: str) -> None:
        if not (self._failed or self._left):
            self._say(_AWAY.format(self._folder, problem))
        self._failed = True


def sync(folder: Path, uri: str | None = None) -> int:
    """Send what MLflow lacks of a run or a sweep; returns how many runs were sent.

    A run that is in progress is left out, and one that cannot be read; both are named.

    Raises:
        InputError: there is no run, one of them cannot be read, or the server fails.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    folder, uri = folder.absolute(), tracking_uri(uri)
    runs = [folder] if is_run(folder) else _runs(folder)
    if not runs:
        raise InputError(f"{folder} holds no run: there is no config.yaml in it or below")
    sent, unreadable = 0, 0
    try:
        _within(_SYNC_S, lambda: Store(uri))
        for run in runs:
            if in_progress(run):
                left_out = "is in progress and left out: it sends itself, or sync again after it"
                complain(f"{run} {left_out}")
                continue
            try:
                check_within(folder, run)
                _within(_SYNC_S, lambda run=run: push_run(run, uri, over=True))
                sent += 1
            except InputError as error:
                if len(runs) == 1:
                    raise
                complain(f"{run} is left out: {error}")
                unreadable += 1
        if sent == len(runs) and (folder / MANIFEST).is_file():
            _within(_SYNC_S, lambda: _end_parent(Store(uri), folder))
    except (MlflowException, SQLAlchemyError, TimeoutError) as error:
        raise InputError(
            f"MLflow at {without_credentials(uri)} fails ({first_line(error)}); "
            "give another --mlflow, or try again when it answers"
        ) from None
    if unreadable:
        raise InputError(
            f"{unreadable} of {len(runs)} runs in {folder} could not be sent, see above"
        )
    return sent


def _within(seconds: float, work: Callable[[], object]) -> None:
    """Do some work in a thread, which is left alone when its time is over.

    Raises:
        TimeoutError: it is over.
    """
    outcome = Future[object]()

    def do() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=do, daemon=True).start()
    try:
        outcome.result(seconds)
    except TimeoutError:
        if outcome.done():
            raise
        raise TimeoutError(f"no end after {seconds:g} s") from None


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
    for path in _runs(folder):
        ended = _mark(path)[1]
        if ended or in_progress(path):  # else it was interrupted
            _push(path, uri, sent, over=bool(ended))


def close_sweep(folder: Path, uri: str, sent: set[Mark]) -> None:
    """Send what MLflow lacks of a sweep, and end its parent run and the runs that nobody trains."""
    for path in _runs(folder):
        _push(path, uri, sent, over=not in_progress(path, _LETS_GO_S))
    _end_parent(Store(uri), folder)


def _push(path: Path, uri: str, sent: set[Mark], over: bool) -> None:
    """Send what is new of a run of a sweep; one that cannot be read is named once."""
    mark = _mark(path)
    if mark in sent:
        return
    try:
        push_run(path, uri, over)
    except (InputError, OSError) as error:
        complain(f"{path} is not shown in MLflow: {error}")
        sent.add(mark)
    if mark[1]:
        sent.add(mark)


def _mark(path: Path) -> Mark:
    """A run and how it ended, which is nothing if it goes on: a failed one may be tried again."""
    directory = RunDirectory(path)
    if directory.result.is_file():
        return path, "finished"
    return path, str((directory.end_without_result() or {}).get("time", ""))


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
