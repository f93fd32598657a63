"""MLflow while runs train; `sync` (sync.py) is for what was missed.

One thread of the process does all of it, loading MLflow included. Training never waits for it, and
the end of a run for five seconds at most: whatever a server does, it costs no data.
"""

import atexit
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from forever.data.tasks import Benchmark
from forever.launch.mlflow.mirror import load_figures, push_run
from forever.launch.mlflow.store import first_line
from forever.launch.mlflow.sweep import (
    RELEASE_S,
    Mark,
    close_sweep,
    push_overview,
    push_sweep,
    push_variants,
)  # fmt: skip
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress
from forever.runs.progress import is_run
from forever.runs.tracking import Tracker
from forever.text import complain

_EVERY_S = 30.0
# A server that failed is left alone for so long, and for so many times what the failure took.
_AGAIN_S, _SHARE = 60.0, 20.0
_PATIENCE_S = 5.0  # for all that is left to send at the end of a run
_SWEEP_PATIENCE_S = 30.0  # and of a sweep
_AT_EXIT_S = 30.0  # more, at the end of a script
_TABLE_EVERY_S = 600.0  # of a sweep in progress: the table reads all its runs
_AWAY = "MLflow does not answer, `forever sync {}` sends it later ({})"
_LATE = "MLflow has not got all of it yet, {:g} s after the end; `forever sync {}` sends the rest"


class _News(Tracker):
    """Wakes the thread that sends a run when that begins."""

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
            push_run(folder, uri, over and not in_progress(folder, RELEASE_S))
        if not over:
            load_figures()  # which takes a second or two, and would at the end

    with _sending(folder, send, complain, _PATIENCE_S) as news:
        yield _News(news)


@contextmanager
def mirrored_sweep(
    folder: Path, uri: str, say: Callable[[str], None], failed: Collection[str] = ()
) -> Iterator[Callable[[], None]]:
    """Show a sweep and its runs in MLflow during the block; `say` reports an MLflow that is away.

    One thread of this process sends everything, so that no trial loads MLflow or waits for it.
    Yields what to call when a run has ended, which is then sent at once.

    Args:
        failed: the runs that will have failed by the end of the block, of which some may have no
            folder.
    """
    sent: set[Mark] = set()
    next_table = time.monotonic() + _TABLE_EVERY_S

    def send(over: bool) -> None:
        nonlocal next_table
        if over:
            close_sweep(folder, uri, sent, failed)
            return
        push_sweep(folder, uri, sent)
        if time.monotonic() > next_table:
            push_variants(folder, uri)
            next_table = time.monotonic() + _TABLE_EVERY_S

    with _sending(folder, send, say, _SWEEP_PATIENCE_S) as news:
        yield news.set


def show_sweep(folder: Path, uri: str, study: Any, say: Callable[[str], None]) -> None:
    """Send the table and the report of a sweep that has ended; `say` reports a failure.

    Args:
        study: what was read of the folder (forever/report/study.py).
    """
    try:
        within(_SWEEP_PATIENCE_S, lambda: push_overview(folder, uri, study))
    except Exception as error:  # whatever a server or a client library raises
        say(_AWAY.format(folder, first_line(error)))


@contextmanager
def _sending(
    folder: Path, send: Callable[[bool], None], say: Callable[[str], None], patience_s: float
) -> Iterator[Event]:
    """Let a thread `send` during the block now and then and at each event, and the rest at its end.

    A server that fails is named once. It is tried again at the end, and before that so rarely that
    waiting for it takes less than a twentieth of the time. At the end the thread has `patience_s`;
    then it is left alone, and ends with the process. Yields the event.
    """
    news, over = Event(), Event()
    failed = left = False

    def fail(line: str) -> None:
        nonlocal failed
        if not (failed or left):
            say(line)
        failed = True

    def work() -> None:
        nonlocal failed
        ending = False
        while not ending:
            news.clear()
            begun, ending = time.monotonic(), over.is_set()
            try:
                send(ending)
                wait, failed = _EVERY_S, False
            except Exception as error:  # whatever a server or a client library raises
                fail(_AWAY.format(folder, first_line(error)))
                wait = max(_AGAIN_S, _SHARE * (time.monotonic() - begun))
            if not ending:
                (over if failed else news).wait(wait)

    sender = Thread(target=work, name="mlflow", daemon=True)
    sender.start()
    try:
        yield news
    finally:
        over.set()
        news.set()
        sender.join(patience_s)
        if sender.is_alive():
            fail(_LATE.format(patience_s, folder))
            left = True
            # The command line ends without it (cli/start.py). At the end of a script the
            # interpreter would unwind it, which aborts the process while it is in C++.
            atexit.register(sender.join, _AT_EXIT_S)


def within(seconds: float, work: Callable[[], object]) -> None:
    """Do some work in a thread, which is left alone after `seconds`.

    Raises:
        TimeoutError: it has not ended by then.
    """
    outcome = Future[object]()

    def do() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=do, name="mlflow", daemon=True).start()
    try:
        outcome.result(seconds)
    except TimeoutError:
        if outcome.done():
            raise
        raise TimeoutError(f"no end after {seconds:g} s") from None
