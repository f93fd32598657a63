"""Copies of runs and sweeps whose folders lie in storage: brought up to date before they are read.

For a folder of this machine alone none of these does anything.
"""

import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from forever.attempt import ask_to_stop
from forever.errors import InputError
from forever.runs.lock import in_progress, locked
from forever.storage.address import address_of
from forever.storage.copying import CONFIG, HIDDEN, Chosen, of_run, of_sweep, pull, readable
from forever.storage.mirror import EVERY_S, REQUEST, Mirror
from forever.storage.remote import Remote, reaching
from forever.storage.state import Local, Mark, has_begun

_IS_CONFIG = re.compile(f"[^/]+/{CONFIG}")  # of a run of a sweep
_AT_ONCE = 8  # copies that are brought up to date at a time
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
    address = address_of(folder)
    if address is None:
        return
    with reaching(address):
        remote = Remote(address)
        mark = Mark.read(remote)
        holds = Local.read(folder).holds(mark, has_begun(remote, chosen is not of_sweep))
        if holds and (not folder.is_dir() or not Local.read(folder).identity):
            return  # there is nothing, here or in the mirror
        if in_progress(folder):
            return
        with locked(folder):
            _settle(Mirror(folder, address, of_sweep if chosen is of_sweep else of_run), chosen)


def _settle(mirror: Mirror, chosen: Chosen) -> None:
    local, mark = Local.read(mirror.folder), Mark.read(mirror.remote)
    if local.holds(mark, has_begun(mirror.remote, chosen is not of_sweep)):
        if local.identity:  # an earlier call could not send everything
            mirror.catch_up(mark)
            mirror.push()
            if not mirror.lost:
                mirror.release()
        return
    local.identity = ""  # from here on it is a copy
    local.write()
    try:
        pull(mirror.remote, mirror.folder, chosen, local.taken)
    finally:
        local.write()


def bring(folder: Path) -> None:
    """Settle a run, or a sweep with all its runs, as far as they are read.

    Raises:
        InputError, WriteError: as `settle`.
    """
    address = address_of(folder)
    if address is None:
        return
    with reaching(address):
        there = Remote(address).list()
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
    with reaching(address):
        remote = Remote(address)
        mark = Mark.read(remote)
        if mark is not None and Local.read(folder).identity == mark.identity:
            return
        with locked(folder):
            local = Local.read(folder)
            local.identity = ""
            pull(remote, folder, of_run, local.taken)
            local.write()


def publish(folder: Path, names: Iterable[str]) -> None:
    """Send files that were written beside runs, such as a report; InputError if that fails."""
    address = address_of(folder)
    if address is None:
        return
    with reaching(address):
        remote = Remote(address)
        for name in names:
            remote.upload(name, folder / name)


def held(folder: Path) -> bool:
    """Whether a process works on a run, here or, as far as the mirror says, elsewhere."""
    address = address_of(folder)
    if in_progress(folder) or address is None:
        return in_progress(folder)
    with suppress(OSError):
        mark = Mark.read(Remote(address))
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
