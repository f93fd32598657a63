"""Which side is newer, a folder or its mirror, and who works on it.

Both sides have a small file. Whoever begins to work on a folder gives it an identity, and counts up
with everything that is sent. If the mirror has the same identity and counts no more, it was last
written from here: what is here holds. Else the mirror holds. While the work goes on, the mirror's
file names the worker and counts up every few seconds.
"""

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from forever.files import write_text
from forever.storage.copying import CONFIG, HIDDEN, MANIFEST, Chosen, pull
from forever.storage.remote import Remote, Stamp

_NAME = ".mirror.json"
_TRIES = 3  # to copy a mirror that somebody works on meanwhile


@dataclass(frozen=True)
class Mark:
    """What the mirror's file says."""

    identity: str
    count: int
    holder: str = ""  # who works on it; nobody when that is over

    @classmethod
    def read(cls, remote: Remote) -> "Mark | None":
        """The mark of a mirror, if it has one that can be read; OSError if the mirror fails."""
        content = remote.read(_NAME)
        try:
            return cls(**json.loads(content)) if content else None
        except (ValueError, TypeError):  # a damaged one says nothing, and is replaced
            return None

    def write(self, remote: Remote) -> None:
        """Put it into a mirror; OSError if that fails."""
        remote.write(_NAME, json.dumps(asdict(self)).encode())


@dataclass
class Local:
    """What a folder here knows of its mirror."""

    folder: Path
    identity: str = ""  # none for a copy, which is only looked at
    count: int = 0
    sent: dict[str, Stamp] = field(default_factory=dict)  # what the mirror has from here
    taken: dict[str, tuple[Stamp, Stamp]] = field(default_factory=dict)  # there, and here
    _one_at_a_time: Lock = field(default_factory=Lock, repr=False)

    @classmethod
    def read(cls, folder: Path) -> "Local":
        """What is known of a folder; nothing where it was never kept, or is damaged."""
        try:
            content: dict[str, Any] = json.loads(_path(folder).read_bytes())
            sent = {name: Stamp(*stamp) for name, stamp in content["sent"].items()}
            taken = {name: (Stamp(*a), Stamp(*b)) for name, (a, b) in content["taken"].items()}
            return cls(folder, content["identity"], content["count"], sent, taken)
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
            return cls(folder)

    def write(self) -> None:
        """Keep it; WriteError if that cannot be."""
        with self._one_at_a_time:
            content = {
                "identity": self.identity,
                "count": self.count,
                "sent": dict(self.sent),
                "taken": dict(self.taken),
            }
            write_text(_path(self.folder), json.dumps(content))

    def holds(self, mark: Mark | None, begun: bool) -> bool:
        """Whether what is here is newer than the mirror, or that has not begun."""
        if not begun:
            return True
        if mark is None:  # somebody put files there, or the mark was lost
            return bool(self.identity)
        return self.identity == mark.identity and self.count >= mark.count

    def take(self, remote: Remote, chosen: Chosen) -> None:
        """Make the chosen files those of the mirror, of which this is a copy from now on.

        Raises:
            OSError: the mirror fails, or files went away again and again while they were copied.
            WriteError: the folder cannot take it.
        """
        self.identity = ""  # until all is here nothing of it holds
        self.write()
        for left in reversed(range(_TRIES)):
            try:
                pull(remote, self.folder, chosen, self.taken)
                return
            except FileNotFoundError:  # it was listed, and is gone
                if not left:
                    raise
            finally:
                self.write()

    def begin(self) -> None:
        """Be the side that is written from now on."""
        self.identity = self.identity or secrets.token_hex(8)
        self.write()

    def advance(self, remote: Remote, holder: str) -> None:
        """Count up, here before there, and say who works on it."""
        self.count += 1
        self.write()
        Mark(self.identity, self.count, holder).write(remote)


def has_begun(remote: Remote, is_run: bool) -> bool:
    """Whether a mirror came as far as to be gone on from; OSError if it fails."""
    return remote.read(CONFIG if is_run else MANIFEST) is not None


def _path(folder: Path) -> Path:
    return folder / HIDDEN / "state.json"
