"""One life of a run, from its first step to its end.

Between two steps it says that it lives, and hears that it shall stop: by a signal to its process,
or by a file in its folder, with which another process asks.
"""

import signal
import time
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path

from forever.stopping import Stopped, asked, looking
from forever.watchdog import Watchdog

_REQUEST = ".stop"
_LOOK_EVERY_S = 0.5
_current: ContextVar["Attempt | None"] = ContextVar("attempt", default=None)


class Attempt:
    """One process's part in the life of the run in `folder`; it ends if it hangs for `hang_s`.

    Of several ranks only the leading one stops by itself, once it has saved; that ends the others.
    """

    def __init__(self, folder: Path, rank: int, hang_s: float) -> None:
        self.request, self.leads = folder / _REQUEST, rank == 0
        name = "stacks.txt" if self.leads else f"stacks-{rank}.txt"
        self.watchdog = Watchdog(hang_s, folder / name)
        self._life = ExitStack()
        self._told, self._looked = 0, float("-inf")

    def begin(self) -> None:
        """Begin to watch and to listen; what was asked of an earlier life is forgotten."""
        if self.leads:
            self.request.unlink(missing_ok=True)
        self.watchdog.start()
        self._life.callback(self.watchdog.stop)
        self._life.enter_context(looking())
        token = _current.set(self)
        self._life.callback(_current.reset, token)

    def end(self) -> None:
        """Stop watching and listening."""
        self._life.close()

    def told_to_stop(self) -> int:
        """The signal by which this rank shall stop now, 0 for none."""
        if not self.leads:
            if asked():
                ask_to_stop(self.request.parent)
            return 0
        self._told = self._told or asked()
        if not self._told and time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._looked = time.monotonic()
            if self.request.is_file():
                self._told = signal.SIGTERM
        return self._told

    def moved(self, told: int) -> None:
        """A step is over, and this rank was `told_to_stop` or not.

        Raises:
            Stopped: it was.
        """
        self.watchdog.moved()
        if told:
            raise Stopped(told)

    def pulse(self) -> None:
        """See `pulse`."""
        self.moved(self.told_to_stop())


def pulse() -> None:
    """Say that a step of something long is over.

    Raises:
        Stopped: the run shall end here; what it did since the last checkpoint is done again.
    """
    attempt = _current.get()
    if attempt is not None:
        attempt.pulse()


def ask_to_stop(folder: Path) -> None:
    """Ask the run that another process trains in `folder` to save and leave."""
    (folder / _REQUEST).touch()
