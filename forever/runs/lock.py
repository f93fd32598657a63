"""Each folder has one writer, also while processes of a killed sweep outlive it.

The lock is the operating system's and ends with its process. Machines that share a folder see each
other's lock as far as their file system shows it to them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from forever.errors import InputError, one_line
from forever.files import make_folder, writing
from forever.text import complain

PATIENCE_S = 120.0  # for the end of another process
_PROBE_S = 0.1  # `in_progress` of another process holds the lock for less


def _lock(folder: Path) -> FileLock:
    # A soft lock, on a file system that has no others, would outlive a killed process.
    return FileLock(folder / ".lock", poll_interval=0.02, fallback_to_soft=False)


@contextmanager
def locked(folder: Path, needed: bool = True, patience_s: float | None = None) -> Iterator[None]:
    """Hold a folder during the block, unless that is not `needed`, as by a rank that does not lead.

    Raises:
        InputError: another process still holds it after `patience_s` (default: PATIENCE_S), or it
            cannot be locked.
    """
    if not needed:
        yield
        return
    with writing(folder):
        make_folder(folder)
    lock = _lock(folder)
    try:
        patience_s = PATIENCE_S if patience_s is None else patience_s
        try:
            lock.acquire(timeout=_PROBE_S)
        except Timeout:
            if not patience_s:
                raise
            complain(f"waiting for another process, which uses {folder}")
            lock.acquire(timeout=patience_s)
    except Timeout:
        raise InputError(
            f"{folder} is in use by another process; stop that one, wait for its end, or give "
            "another --out"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise InputError(f"{folder} cannot be locked ({one_line(error)})") from None
    try:
        yield
    finally:
        lock.release()


def in_progress(folder: Path, patience_s: float = 0.0) -> bool:
    """Whether another process works on this folder, and still does after `patience_s`."""
    if not (folder / ".lock").is_file():
        return False
    try:
        with _lock(folder).acquire(timeout=max(patience_s, _PROBE_S / 2)):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):  # a folder without locks, or a read-only one
        return False
