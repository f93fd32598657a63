"""A process in which nothing happens any more is ended: it would be waited for in vain for ever."""

import faulthandler
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from forever.text import complain

_LOOKS = 20
_TO_WRITE_S = 20.0


class Watchdog:
    """A thread that ends a process which for `limit_s` did not say `moved`.

    The limit is counted in looks and not by a clock: a process that was stopped for an hour, as by
    Ctrl-Z, does not hang. With a limit of 0 it never ends anything.
    """

    def __init__(self, limit_s: float, stacks: Path, leave: Callable[[int], None] = os._exit):
        self.limit_s, self.stacks, self._leave = limit_s, stacks, leave
        self._moved, self._over = False, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        if self.limit_s:
            self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def moved(self) -> None:
        """Hear that something was done."""
        self._moved = True

    def _watch(self) -> None:
        still = 0
        while not self._over.wait(min(self.limit_s / _LOOKS, threading.TIMEOUT_MAX)):
            still = 0 if self._moved else still + 1
            self._moved = False
            if still == _LOOKS:
                self._end()
                return

    def _end(self) -> None:
        """Write what every thread is doing, and leave: a thread that hangs cannot be raised in."""
        # The folder itself may be what hangs. This timer needs no Python any more.
        faulthandler.dump_traceback_later(_TO_WRITE_S, exit=True)
        reason = f"nothing was done for {self.limit_s:g} s"
        with suppress(OSError), self.stacks.open("w", encoding="utf-8") as file:
            file.write(f"{reason}; this is what process {os.getpid()} was doing\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        with suppress(OSError, ValueError):
            told = f"{reason}, so the run is ended: {self.stacks} says where it hung"
            complain(f"{told}; --resume goes on, --hang-after 0 waits for ever")
        faulthandler.cancel_dump_traceback_later()
        self._leave(1)
