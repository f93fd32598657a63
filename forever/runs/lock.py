"""One writer a run directory, also when a killed sweep's last processes outlive it for some
seconds."""

import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from forever.errors import InputError

_PATIENCE_S = 120.0
_POLL_S = 0.2
_FILE = ".lock"


@contextmanager
def locked(folder: Path, needed: bool = True) -> Iterator[None]:
    """Hold a run directory. The lock goes away with its process, however that ends.

    Whoever must wait says so at once; what is in the folder may be different after that.

    Args:
        needed: False does nothing: of several workers only the leader writes.

    Raises:
        InputError: another process still trains this run after two minutes.
    """
    if not needed:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _FILE).open(
        "a+", encoding="utf-8"
    ) as file:  # not "w": who waits must not wipe out the holder's name
        _wait(file, folder)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def in_progress(folder: Path, patience_s: float = 0.0) -> bool:
    """Whether another process trains this run, and goes on with it for `patience_s`. Writes
    nothing."""
    path, give_up = folder / _FILE, time.monotonic() + patience_s
    if not path.is_file():
        return False
    with path.open(encoding="utf-8") as file:
        while not _take(file, fcntl.LOCK_SH):
            if time.monotonic() >= give_up:
                return True
            time.sleep(_POLL_S)
    return False


def _wait(file: IO[str], folder: Path) -> None:
    give_up, told = time.monotonic() + _PATIENCE_S, False
    while not _take(file, fcntl.LOCK_EX):
        file.seek(0)
        holder = file.read() or "another process"
        if time.monotonic() >= give_up:
            raise InputError(
                f"{folder} is being trained by {holder}; a run has one writer: stop that one or wait for its end"
            )
        if not told:
            print(f"waiting for {holder}, which trains {folder}", file=sys.stderr, flush=True)
            told = True
        time.sleep(_POLL_S)


def _take(file: IO[str], kind: int) -> bool:
    """Take the lock if nobody has it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: do without, rather than not run at all
        return True
    return True
