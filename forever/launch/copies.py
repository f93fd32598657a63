"""Copies of runs and sweeps in object storage: downloaded once before they are read.

For a folder of this machine alone none of these does anything.
"""

from collections.abc import Iterable
from pathlib import Path

from forever.runs.lock import in_progress, locked
from forever.storage.address import address_of
from forever.storage.remote import Stamp, reaching
from forever.storage.store import CONFIG, UNSENT, Store
from forever.sweeps.sweep import MANIFEST


def download(folder: Path, weights: bool = False) -> None:
    """Make a run, or a sweep with all its runs, what is at its address.

    A folder with unsent work is uploaded first. One that a process of this machine works on is
    left to that.

    Args:
        weights: whether checkpoints are needed, as for a fork.

    Raises:
        InputError: the storage cannot be used, or this machine has no room.
    """
    address = address_of(folder)
    if address is None:
        return
    with reaching(address) as remote:
        there = remote.list()
        # Each run and each sweep has a lock, and perhaps unsent work, of its own.
        homes = {folder}
        for pattern in (UNSENT, f"*/{UNSENT}", f"*/*/{UNSENT}"):
            homes |= {path.parents[1] for path in folder.glob(pattern)}
        for name in there:
            if name.rpartition("/")[2] in (CONFIG, MANIFEST):
                homes.add((folder / name).parent)
        files: dict[Path, dict[str, Stamp]] = {home: {} for home in homes}
        for name, stamp in there.items():
            home = next(parent for parent in (folder / name).parents if parent in homes)
            files[home][(folder / name).relative_to(home).as_posix()] = stamp
        for home in sorted(homes):
            if (files[home] or (home / UNSENT).is_file()) and not in_progress(home):
                _download(home, files[home], weights)


def _download(home: Path, there: dict[str, Stamp], weights: bool) -> None:
    address = address_of(home)
    assert address is not None
    kinds = [name for name in (CONFIG, MANIFEST) if name in there or (home / name).is_file()]
    with locked(home):
        store = Store(home, address, is_sweep=CONFIG not in kinds)
        if not store.newest_here():
            store.download(weights, there)
        elif kinds:  # else it has hardly begun, and the command that began it uploads it
            with store:
                pass  # uploads what an earlier command could not


def follow(folder: Path) -> None:
    """Make the folder of a worker that does not lead that of the leader, which holds the lease.

    Workers of one machine share it, and those beside the leader work in its own.

    Raises:
        InputError: as `download`.
    """
    address = address_of(folder)
    if address is None:
        return
    with reaching(address):
        store = Store(folder, address)
        if not store.newest_here():
            with locked(folder):
                store.download()


def upload(folder: Path, names: Iterable[str]) -> None:
    """Upload files that were written beside runs, such as a report; InputError if that fails."""
    address = address_of(folder)
    if address is None:
        return
    with reaching(address) as remote:
        for name in names:
            with (folder / name).open("rb") as file:
                remote.upload(name, file)


def upload_report(page: Path) -> None:
    """Upload a report that was written beside runs, with its figures; InputError if that fails."""
    figures = [f"figures/{path.name}" for path in page.parent.glob("figures/*")]
    upload(page.parent, ["report.html", "report.json", *figures])
