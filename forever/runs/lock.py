"""One writer a run directory, also when a killed sweep's last processes outlive it for some
seconds."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from forever.errors import InputError

_PATIENCE_S = 120.0
_POLL_S = 0.2
_GLANCE_S = 0.05  # somebody else who looks holds the lock for less
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
    lock = _lock(folder)
    try:
        _acquire(lock, folder)
        (folder / _FILE).write_text(f"process {os.getpid()} on {socket.gethostname()}")
    except OSError:
        pass  # a file system without locks: do without, rather than not run at all
    try:
        yield
    finally:
        lock.release()


def in_progress(folder: Path, patience_s: float = 0.0) -> bool:
    """Whether another process trains this run, and goes on with it for `patience_s`."""
    if not (folder / _FILE).is_file():
        return False
    try:
        with _lock(folder).acquire(timeout=max(patience_s, _GLANCE_S), poll_interval=_GLANCE_S / 5):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def _lock(folder: Path) -> FileLock:
    # A soft lock would outlive a killed process.
    return FileLock(folder / _FILE, poll_interval=_POLL_S, fallback_to_soft=False)


def _acquire(lock: FileLock, folder: Path) -> None:
    try:
        lock.acquire(blocking=False)
        return
    except Timeout:
        holder = (folder / _FILE).read_text(encoding="utf-8") or "another process"
    print(f"waiting for {holder}, which trains {folder}", file=sys.stderr, flush=True)
    try:
        lock.acquire(timeout=_PATIENCE_S)
    except Timeout:
        holder = (folder / _FILE).read_text(encoding="utf-8") or "another process"
        raise InputError(
            f"{folder} is being trained by {holder}; a run has one writer: stop that one or wait "
            "for its end"
        ) from None
