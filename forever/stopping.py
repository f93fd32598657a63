"""SIGINT (Ctrl-C), SIGTERM and SIGHUP mean: save and leave.

While a run trains, the first of them is only noted: the run looks at `asked` between two steps,
saves and leaves. At any other time it is raised where it falls. A second Ctrl-C is raised at once,
and a third one ends the process. A checkpoint is whole or not there, so no way to leave loses more
than the work since the last one.
"""

import faulthandler
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_heard: list[int] = []
_looking = 0  # how many runs in this process look at `asked` by themselves
_may_end = True  # whether a third Ctrl-C ends the process


class Stopped(KeyboardInterrupt):
    """The process was told to stop, by the signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def asked() -> int:
    """The number of the first signal that was heard; 0 if there was none."""
    return _heard[0] if _heard else 0


@contextmanager
def listening(may_end: bool = True) -> Iterator[None]:
    """Hear the signals during the block, in the main thread.

    What this process was started deaf to, as by nohup, it stays deaf to.

    Args:
        may_end: whether a third Ctrl-C ends the process, which may be somebody's notebook.
    """
    global _may_end
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    outermost = _hear not in before.values()
    if outermost:
        _may_end = may_end
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if outermost:
            _heard.clear()


@contextmanager
def looking() -> Iterator[None]:
    """Say that the block looks at `asked` often, so that a first signal need not be raised."""
    global _looking
    _looking += 1
    try:
        yield
    finally:
        _looking -= 1


def _hear(number: int, frame: FrameType | None) -> None:
    # A shell repeats SIGHUP, and who sends SIGTERM kills later. Ctrl-C is repeated on purpose.
    if _heard and number != signal.SIGINT:
        return
    _heard.append(number)
    if len(_heard) > 2 and _may_end:
        os._exit(128 + _heard[0])
    if _looking and len(_heard) == 1:
        with suppress(OSError):  # print could be in the middle of a line
            os.write(2, b"saving a checkpoint and leaving; Ctrl-C leaves at once\n")
        return
    raise Stopped(_heard[0])


@contextmanager
def overhearing() -> Iterator[None]:
    """Note SIGTERM during the block, in any thread: that of Ray's processes is not the main one.

    `signal.signal` needs the main thread, and there Ray ends the process at once. faulthandler sets
    a handler from everywhere: it writes where the process is into a pipe, and that is the news.
    """
    reader, writer = os.pipe()
    faulthandler.register(signal.SIGTERM, writer, all_threads=False, chain=False)
    listener = threading.Thread(target=_note, args=(reader,), daemon=True)
    listener.start()
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGTERM)
        os.close(writer)  # which ends the listener
        listener.join()
        os.close(reader)
        _heard.clear()


def _note(reader: int) -> None:
    while os.read(reader, 4096):
        if not _heard:
            _heard.append(signal.SIGTERM)
