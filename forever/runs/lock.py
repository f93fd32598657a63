"""Each run directory has one writer, also when a killed sweep's processes outlive it a while."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from forever.errors import InputError
from forever.text import complain

_PATIENCE_S = 120.0
_GLANCE_S = 0.05  # somebody else who looks holds the lock for less


def _lock(folder: Path) -> FileLock:
    # A soft lock, on a file system that has no others, would outlive a killed process.
    return FileLock(folder / ".lock", poll_interval=0.2, fallback_to_soft=False)


@contextmanager
def locked(folder: Path, needed: bool = True) -> Iterator[None]:
    """Hold a run directory, unless that is not `needed`, as by a worker that does not lead.

    The lock goes away with its process, however that ends. Whoever must wait says so at once, and
    gives up with an InputError after two minutes.
    """
    if not needed:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        _acquire(lock, folder)
        Path(lock.lock_file).write_text(f"process {os.getpid()} on {socket.gethostname()}")
    except OSError as error:
        # A file system without locks: the run goes on without one, rather than not at all.
        complain(f"{folder} cannot be locked ({error}); see to it that one process trains this run")
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, folder: Path) -> None:
    with suppress(Timeout):
        lock.acquire(timeout=2 * _GLANCE_S, poll_interval=_GLANCE_S / 5)
        return
    holder = Path(lock.lock_file).read_text() or "another process"
    complain(f"waiting for {holder}, which trains {folder}")
    try:
        lock.acquire(timeout=_PATIENCE_S)
    except Timeout:
        raise InputError(
            f"{folder} is being trained by {holder}; a run has one writer: stop that one or wait "
            "for its end"
        ) from None


def in_progress(folder: Path, patience_s: float = 0.0) -> bool:
    """Whether another process trains this run, and goes on with it for `patience_s`."""
    if not (folder / ".lock").is_file():
        return False
    patience_s = max(patience_s, _GLANCE_S)
    try:
        with _lock(folder).acquire(timeout=patience_s, poll_interval=_GLANCE_S / 5):
            return False
    except Timeout:
        return True
    except OSError:  # a folder without locks, or one that only may be read: nobody holds it
        return False
