"""Copies of runs and sweeps whose folders lie in storage: brought up to date before they are read.

For a folder of this machine alone none of these does anything.
"""

import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from forever.errors import InputError
from forever.runs.lock import in_progress, locked
from forever.stopping import ask_to_stop
from forever.storage.address import address_of
from forever.storage.copying import CONFIG, HIDDEN, Chosen, of_run, of_sweep, readable
from forever.storage.mirror import EVERY_S, REQUEST, Mirror
from forever.storage.remote import Remote, reaching
from forever.storage.state import Local, Mark, has_begun

_IS_CONFIG = re.compile(f"[^/]+/{CONFIG}")  # of a run of a sweep
_AT_ONCE = 8  # copies that are brought up to date at a time
_TO_SAVE_S = 15.0  # who sends SIGTERM usually waits for half a minute before SIGKILL
_LOOKED: dict[Path, float] = {}  # when `glance` looked at a folder


def settle(folder: Path, chosen: Chosen = of_run) -> None:
    """Bring a folder and its mirror to one state, that of the newer side.

    A folder that a process of this machine works on is left to that.

    Args:
        chosen: `readable` leaves out the weights, for those who do not go on with the run.

    Raises:
        InputError: the storage cannot be used.
        WriteError: this machine has no room for it.
    """
    address, is_run = address_of(folder), chosen is not of_sweep
    if address is None:
        return
    with reaching(address) as remote:
        if not Local.read(folder).identity and not has_begun(remote, is_run):
            return  # there is nothing, here or in the mirror
        if in_progress(folder):
            return
        with locked(folder):
            mirror = Mirror(folder, address, of_run if is_run else of_sweep)
            mark = Mark.read(remote)
            if not mirror.local.holds(mark, has_begun(remote, is_run)):
                mirror.local.take(remote, chosen)
            elif mirror.local.identity:  # an earlier call could not send everything
                mirror.catch_up(mark)
                mirror.push()
                mirror.release()


def bring(folder: Path) -> None:
    """Settle a run, or a sweep with all its runs, as far as they are read.

    Raises:
        InputError, WriteError: as `settle`.
    """
    address = address_of(folder)
    if address is None:
        return
    with reaching(address) as remote:
        there = remote.list()
    if CONFIG in there:
        settle(folder, readable)
        return
    runs = {folder / name.partition("/")[0] for name in there if _IS_CONFIG.fullmatch(name)}
    runs |= {path.parents[1] for path in folder.glob(f"*/{HIDDEN}/state.json")}
    settle(folder, of_sweep)
    settle_all(runs)


def settle_all(folders: Iterable[Path]) -> None:
    """Settle several runs, as far as they are read; see `settle`."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(partial(settle, chosen=readable), sorted(set(folders))))


def glance(folder: Path) -> None:
    """Settle a run that others train, if it was not looked at just now and the storage answers."""
    now = time.monotonic()
    if address_of(folder) is None or now - _LOOKED.get(folder, -EVERY_S) < EVERY_S:
        return
    with suppress(InputError):
        settle(folder, readable)
    _LOOKED[folder] = time.monotonic()


def follow(folder: Path) -> None:
    """Make the folder of a worker that does not lead that of the leader, which holds the mirror.

    Workers of one machine share it, and those beside the leader work in its own.

    Raises:
        InputError, WriteError: as `settle`.
    """
    address = address_of(folder)
    if address is None:
        return
    with reaching(address) as remote:
        mark = Mark.read(remote)
        if mark is None or Local.read(folder).identity != mark.identity:
            with locked(folder):
                Local.read(folder).take(remote, of_run)


def publish(folder: Path, names: Iterable[str]) -> None:
    """Send files that were written beside runs, such as a report; InputError if that fails."""
    address = address_of(folder)
    if address is None:
        return
    with reaching(address) as remote:
        for name in names:
            remote.upload(name, folder / name)


def publish_report(page: Path) -> None:
    """Send a report that was written beside runs, with its figures; InputError if that fails."""
    written = [f"report.{kind}" for kind in ("html", "json")]
    figures = [f"figures/{path.name}" for path in page.parent.glob("figures/*")]
    publish(page.parent, written + figures)


def held(folder: Path) -> bool:
    """Whether a process works on a run, here or, as far as the mirror says, elsewhere."""
    if in_progress(folder):
        return True
    address = address_of(folder)
    with suppress(OSError):  # the storage is away
        mark = Mark.read(Remote(address)) if address else None
        return mark is not None and bool(mark.holder)
    return False


def ask_to_save(folder: Path) -> None:
    """Ask a run, here or on another machine, to save and leave."""
    address = address_of(folder)
    if address is None or in_progress(folder):
        ask_to_stop(folder)
        return
    with suppress(OSError):  # the storage is away
        Remote(address).write(REQUEST, b"")


def let_save(folders: Sequence[Path]) -> None:
    """Ask runs in other processes to save and leave, and wait for it, while Ray still lives."""
    give_up = time.monotonic() + _TO_SAVE_S
    while folders and time.monotonic() < give_up:
        folders = [folder for folder in folders if held(folder)]
        for folder in folders:
            ask_to_save(folder)
        time.sleep(0.2)  # they need the processor, and storage is asked each time
