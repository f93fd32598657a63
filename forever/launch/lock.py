"""One writer a run directory, also when a killed sweep's last processes outlive it for some seconds."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_S = 120.0


@contextmanager
def locked(folder: Path, needed: bool = True) -> Iterator[None]:
    """Hold a run directory. The lock goes away with its process, however that ends.

    Args:
        needed: False does nothing: of several workers only the leader writes.

    Raises:
        RuntimeError: another process still trains this run after two minutes.
    """
    if not needed:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        _acquire(file.fileno(), folder)
        yield


def _acquire(handle: int, folder: Path) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise RuntimeError(f"{folder} is being trained by another process") from None
            time.sleep(0.2)
        except OSError:  # a file system without locks: do without, rather than not run at all
            return
        else:
            return
