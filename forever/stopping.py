"""How a run hears that it must stop, and how a process that hangs is ended.

SIGINT (Ctrl-C), SIGTERM and SIGHUP mean: save and leave. While a run trains, the first of them only
sets a flag: the run reads `received` between two steps, saves a checkpoint and leaves. At any other
time it is raised where it falls. A second Ctrl-C is raised at once, and a third one ends the
process. A checkpoint is whole or absent, so no way to leave loses more than the work since the last
one.
"""

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

from forever.text import complain

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REQUEST = ".stop"  # the file with which another process asks a run to stop
_POLL_EVERY_S = 0.5  # between two checks for that file
_ARM_EVERY_S = 1.0  # between two settings of the watchdog
_LONGEST_S = 1e9  # that faulthandler's timer takes
_received: list[int] = []
_polling = 0  # how many runs in this process read `received` by themselves
_may_end = True  # whether a third Ctrl-C ends the process


class Stopped(KeyboardInterrupt):
    """The process must stop, because of the signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def received() -> int:
    """Return the number of the first signal that was received; 0 if none was."""
    return _received[0] if _received else 0


@contextmanager
def listening(may_end: bool = True) -> Iterator[None]:
    """Handle the signals during the block, in the main thread.

    Signals that this process was started to ignore, as by nohup, stay ignored.

    Args:
        may_end: whether a third Ctrl-C ends the process, which may be a user's notebook.
    """
    global _may_end
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    outermost = _receive not in before.values()
    if outermost:
        _may_end = may_end
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if outermost:
            _received.clear()


@contextmanager
def polling() -> Iterator[None]:
    """Declare that the block reads `received` often, so that a first signal need not be raised."""
    global _polling
    _polling += 1
    try:
        yield
    finally:
        _polling -= 1


def _receive(number: int, frame: FrameType | None) -> None:
    # A shell repeats SIGHUP, and SIGKILL follows SIGTERM. Only Ctrl-C is repeated on purpose.
    if _received and number != signal.SIGINT:
        return
    _received.append(number)
    if len(_received) > 2 and _may_end:
        os._exit(128 + _received[0])
    if _polling and len(_received) == 1:
        with suppress(OSError):  # print could be in the middle of a line
            os.write(2, b"saving a checkpoint and leaving; Ctrl-C leaves at once\n")
        return
    raise Stopped(_received[0])


@contextmanager
def overhearing() -> Iterator[None]:
    """Note SIGTERM during the block, in any thread: Ray trains outside of the main thread.

    `signal.signal` needs the main thread, where Ray ends the process at once. faulthandler can set
    a handler from any thread: it writes a traceback into a pipe, which a second thread reads.
    """
    reader, writer = os.pipe()

    def note() -> None:
        while os.read(reader, 4096):
            if not _received:
                _received.append(signal.SIGTERM)

    faulthandler.register(signal.SIGTERM, writer, all_threads=False, chain=False)
    listener = threading.Thread(target=note, daemon=True)
    listener.start()
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGTERM)
        os.close(writer)  # which ends the listener
        listener.join()
        os.close(reader)
        _received.clear()


class Attempt:
    """One process's part in the life of the run in `folder`; it ends if it hangs for `hang_s`.

    Of several ranks only the leading one stops by itself, once it has saved; that ends the others.
    """

    def __init__(self, folder: Path, rank: int, hang_s: float) -> None:
        self.folder, self.leads = folder, rank == 0
        self.hang_s = min(hang_s, _LONGEST_S)
        self._stacks = folder / ("stacks.txt" if self.leads else f"stacks-{rank}.txt")
        self._life = ExitStack()
        self._signal = 0
        self._polled = self._armed = float("-inf")

    def begin(self) -> None:
        """Begin to listen and to watch; requests to earlier processes of the run are void."""
        if self.leads:
            (self.folder / _REQUEST).unlink(missing_ok=True)
        if self._stacks.is_file() and self._stacks.stat().st_size:
            complain(f"an earlier process of this run hung and was ended: see {self._stacks}")
        self._life.enter_context(polling())
        token = _current.set(self)
        self._life.callback(_current.reset, token)
        if self.hang_s:
            self._life.callback(self._drop_empty)
            # The file stays open, since a hanging process cannot open one.
            self._file = self._life.enter_context(self._stacks.open("a", encoding="utf-8"))
            self._life.callback(faulthandler.cancel_dump_traceback_later)
            self._watch()

    def _watch(self) -> None:
        """Set the watchdog anew: unless it is called again, the process writes what each thread
        does and ends with code 1."""
        now = time.monotonic()
        if self.hang_s and now - self._armed >= min(_ARM_EVERY_S, self.hang_s / 4):
            self._armed = now
            faulthandler.dump_traceback_later(self.hang_s, exit=True, file=self._file)

    def _drop_empty(self) -> None:
        if not self._stacks.stat().st_size:
            self._stacks.unlink()

    def end(self) -> None:
        """Stop listening and watching."""
        self._life.close()

    def stop_signal(self) -> int:
        """Return the signal because of which this rank must stop now, 0 for none."""
        if not self.leads:
            if received():
                ask_to_stop(self.folder)
            return 0
        self._signal = self._signal or received()
        if not self._signal and time.monotonic() - self._polled >= _POLL_EVERY_S:
            self._polled = time.monotonic()
            if (self.folder / _REQUEST).is_file():
                self._signal = signal.SIGTERM
        return self._signal

    def pulse(self, number: int | None = None) -> None:
        """Note that a step is over.

        Args:
            number: what `stop_signal` returned, if the caller has called it to save before.

        Raises:
            Stopped: this rank must stop.
        """
        self._watch()
        number = self.stop_signal() if number is None else number
        if number:
            raise Stopped(number)


_current: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


def pulse() -> None:
    """Note that a step of something long is over.

    Raises:
        Stopped: the run must end here; its work since the last checkpoint is repeated later.
    """
    attempt = _current.get()
    if attempt is not None:
        attempt.pulse()


def ask_to_stop(folder: Path) -> None:
    """Ask the run that another process trains in `folder` to save and leave."""
    (folder / _REQUEST).touch()
