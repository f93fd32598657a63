"""Nothing in a folder leads out of it."""

import os
from pathlib import Path

from forever.errors import InputError, one_line


def check_within(folder: Path, path: Path) -> None:
    """Refuse a path in a folder that leads elsewhere, by an InputError."""
    try:
        leads_to = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a name with a NUL
        raise InputError(f"{path} leads nowhere ({one_line(error)}); remove it") from None
    if not leads_to.is_relative_to(folder.resolve()):
        raise InputError(f"{path} leads out of {folder}; put a copy in its place")


def check_links(folder: Path) -> None:
    """Refuse a folder with a link that leads out of it, by an InputError, whoever made it.

    What is read could be sent to a server, and what is written would land elsewhere. A pipe, which
    would be waited for, is refused as well.
    """
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            if path.is_symlink():
                check_within(folder, path)
            elif path.is_fifo():
                raise InputError(f"{path} is a pipe, not a file; remove it")
