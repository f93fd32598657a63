"""Data that lie in storage, fetched once to this machine."""

from pathlib import Path

from filelock import FileLock

from forever.files import make_folder, writing
from forever.storage.address import address_of
from forever.storage.copying import HIDDEN, local_files, visible
from forever.storage.remote import reaching
from forever.storage.state import Local


def fetch(folder: Path, endings: tuple[str, ...] = ("",)) -> bool:
    """Make a scratch folder what is at its address; says whether there are any files.

    What is here already, by its size and the time when it was stored, is not fetched again. Only
    files with one of these endings are. For another folder than a scratch nothing is done.

    Raises:
        InputError: the storage cannot be used.
        WriteError: this machine has no room for it.
    """
    address = address_of(folder)
    if address is None:
        return folder.is_dir()

    def chosen(name: str) -> bool:
        return visible(name) and name.endswith(endings)

    with reaching(address) as remote:
        if not folder.is_dir() and not any(map(chosen, remote.list())):
            return False
        with writing(folder):
            make_folder(folder / HIDDEN)
        with FileLock(folder / HIDDEN / "lock", fallback_to_soft=False):
            Local.read(folder).take(remote, chosen)
    return any(map(chosen, local_files(folder, chosen)))
