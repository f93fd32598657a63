"""Each run directory has one writer, also when a killed sweep's processes outlive it a while.

The lock is the operating system's, and goes away with its process. Some file systems do not tell
it to other machines, or have none. So the holder also writes its name into the file, and touches
the file every few seconds: who finds a name there watches for a while whether it is still touched.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Event, Thread

from filelock import FileLock, Timeout

from forever.errors import InputError
from forever.files import make_folder, writing
from forever.text import complain

_PATIENCE_S = 120.0
_GLANCE_S = 0.05  # somebody else who looks holds the lock for less
_TOUCH_EVERY_S = 5.0
_WATCHES = 3
_LONGEST_NAME = 400  # characters; a host's name has 255 at most


def _lock(folder: Path) -> FileLock:
    # A soft lock, on a file system that has no others, would outlive a killed process.
    return FileLock(folder / ".lock", poll_interval=0.2, fallback_to_soft=False)


@contextmanager
def locked(folder: Path, needed: bool = True, patience_s: float | None = None) -> Iterator[None]:
    """Hold a folder, unless that is not `needed`, as by a worker that does not lead.

    Whoever must wait says so at once, and gives up with an InputError after `patience_s`, two
    minutes by default.
    """
    if not needed:
        yield
        return
    with writing(folder):
        make_folder(folder)
    lock, over = _lock(folder), Event()
    path = Path(lock.lock_file)
    _acquire(lock, folder, _PATIENCE_S if patience_s is None else patience_s)
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    holder = f"process {os.getpid()} on {socket.gethostname()} since {now}"
    try:
        path.write_text(holder, encoding="utf-8")
    except OSError as error:  # the run will say what it cannot write
        complain(f"{folder} cannot be locked ({error})")
    toucher = Thread(target=_touch, args=(path, over), name="lock", daemon=True)
    try:
        toucher.start()
        yield
    finally:
        over.set()
        with suppress(OSError):  # the folder may be gone
            path.write_text("", encoding="utf-8")
        lock.release()


def _touch(path: Path, over: Event) -> None:
    while not over.wait(_TOUCH_EVERY_S):
        with suppress(OSError):
            os.utime(path)


def _acquire(lock: FileLock, folder: Path, patience_s: float) -> None:
    """Take the lock, or say who has it and wait."""
    give_up, told = time.monotonic() + patience_s, False
    while not _taken(lock, folder):
        holder = _holder(folder) or "another process"
        if time.monotonic() >= give_up:
            raise InputError(
                f"{folder} is held by {holder}; it has one writer: stop that one, wait for its "
                "end, or give another --out"
            )
        if not told:
            told = True
            complain(f"waiting for {holder}, which holds {folder}")


def _taken(lock: FileLock, folder: Path) -> bool:
    """Take the lock if it is free; if it is not, that is known after a moment."""
    everywhere = True
    try:
        lock.acquire(timeout=2 * _GLANCE_S, poll_interval=_GLANCE_S / 5)
    except Timeout:
        return False
    except OSError:  # a file system without locks
        everywhere = False
    holder = _holder(folder)
    if not holder or (everywhere and f" on {socket.gethostname()} " in holder):
        return True
    watch = f"for {_WATCHES * _TOUCH_EVERY_S:g} s it is watched whether it lives"
    complain(f"{folder} was held by {holder}; {watch}")
    if not _touched(folder):
        return True
    lock.release()
    return False


def _holder(folder: Path) -> str:
    """The name in the lock; none where nobody holds it, or nobody ever did."""
    with suppress(OSError), (folder / ".lock").open(encoding="utf-8", errors="replace") as file:
        return file.read(_LONGEST_NAME)
    return ""


def _touched(folder: Path) -> bool:
    """Whether somebody touches the lock; a killed process does not, wherever it was."""
    seen = set[int]()
    for _ in range(_WATCHES):
        # A folder on the network looks afresh at a file that is opened.
        with suppress(OSError), (folder / ".lock").open(encoding="utf-8") as file:
            seen.add(os.fstat(file.fileno()).st_mtime_ns)
        time.sleep(_TOUCH_EVERY_S)
    return len(seen) > 1


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
