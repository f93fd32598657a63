"""A run, or a sweep, that works in a scratch folder while a thread keeps its mirror up to date.

Training never waits for the thread. Whatever happens to the storage, all is in the scratch folder,
and goes to the mirror when that answers again.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Event, Lock, Thread

from forever.errors import InputError
from forever.files import WriteError
from forever.stopping import ask_to_stop
from forever.storage.address import Address, address_of
from forever.storage.copying import RESULT, Chosen, local_files, of_run, push, readable, thin
from forever.storage.remote import Remote, reaching, reason
from forever.storage.state import Local, Mark, has_begun
from forever.text import complain

EVERY_S = 5.0  # between two signs of life in the mirror
WATCHES = 3  # signs of life that may fail to come
WAITS_S = 120.0  # for another machine that lives and works on it
PATIENCE_S = 900.0  # for all that is left to send at the end
HURRY_S = 15.0  # who sends SIGTERM often waits for no more than half a minute
_BEATS = 3  # signs of life between two looks for what is new
_SLOWEST_S = 30.0  # between two tries while the storage is away
REQUEST = ".stop"  # another machine asks a run to save and leave


class Mirror:
    """The folder here and the one at its address, for one who works on it and holds its lock."""

    def __init__(self, folder: Path, address: Address, chosen: Chosen) -> None:
        self.folder, self.address, self.chosen = folder, address, chosen
        self.remote, self.local = Remote(address), Local.read(folder)
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        self.holder = f"process {os.getpid()} on {socket.gethostname()} since {now}"
        self.lost = ""  # who took it over
        self.released = False
        self._one_at_a_time = Lock()  # the mark has one writer here, too

    @property
    def _is_run(self) -> bool:
        return self.chosen is of_run

    def claim(self) -> None:
        """Begin to work on it: with what is here, or else with what the mirror has.

        Raises:
            InputError: another machine works on it, or the storage cannot be used.
        """
        with reaching(self.address):
            mark = Mark.read(self.remote)
            if mark and mark.holder and mark.identity != self.local.identity:
                self._watch(mark)
                mark = Mark.read(self.remote)
            self.catch_up(mark)
            self.local.begin()
            self.local.advance(self.remote, self.holder)
            self.remote.delete(REQUEST)

    def _watch(self, mark: Mark) -> None:
        """Refuse a folder whose holder lives on another machine."""
        watch = f"for {WATCHES * EVERY_S:g} s it is watched whether it lives"
        complain(f"{self.address} was held by {mark.holder}; {watch}")
        give_up, quiet = time.monotonic() + WAITS_S, 0
        while quiet < WATCHES:
            time.sleep(EVERY_S)
            now = Mark.read(self.remote)
            if now is None or not now.holder:
                return
            quiet = quiet + 1 if now == mark else 0
            mark = now
            if not quiet and time.monotonic() > give_up:
                raise InputError(
                    f"{self.address} is held by {now.holder}, which wrote there less than "
                    f"{2 * EVERY_S:g} s ago; it has one writer: stop that one, wait for its end, "
                    "or give another --out"
                )

    def catch_up(self, mark: Mark | None) -> None:
        """Take what the mirror has if that is newer; OSError if that fails."""
        local = self.local
        if not local.holds(mark, has_begun(self.remote, self._is_run)):
            local.take(self.remote, self.chosen)
            local.count = mark.count if mark else 0
            local.sent = {name: here for name, (_, here) in local.taken.items()}
        there = self.remote.list()
        for name in list(local.sent):
            if name not in there or there[name].size != local.sent[name].size:
                del local.sent[name]  # it was lost there
        for name in there.keys() - local.sent.keys():
            if self.chosen(name):
                local.sent[name] = there[name]  # no stamp of here: it is sent, or removed

    def _sign(self, holder: str) -> None:
        """Count up, and say who works on it from now on: this one, or nobody any more.

        Somebody else may have taken it over, who thought that this one is dead. Then `lost` says
        who, and nothing is sent any more.
        """
        with self._one_at_a_time:
            if self.released or self.lost:
                return
            mark = Mark.read(self.remote)
            if mark is not None and mark.identity != self.local.identity:
                self.lost = mark.holder or "another machine"
                return
            self.local.advance(self.remote, holder)
            self.released = not holder

    def beat(self) -> None:
        """Give a sign of life, and hear what others want; OSError if the storage fails."""
        self._sign(self.holder)
        if not self._is_run or self.lost or self.released:
            return
        if self.remote.read(REQUEST) is not None:
            self.remote.delete(REQUEST)
            ask_to_stop(self.folder)

    def push(self) -> None:
        """Bring the mirror up to date, unless it is lost; OSError if the storage fails."""
        self.beat()
        if not self.lost:
            push(self.folder, self.remote, self.chosen, self.local.sent)
            self.local.write()

    def release(self) -> None:
        """Say that nobody works on it. Of a finished run only a copy for readers stays here."""
        finished = self._is_run and (self.folder / RESULT).is_file()
        there = self.remote.list() if finished else {}
        self._sign("")
        if finished and self.released:
            local = self.local
            local.identity, local.sent, local.taken = "", {}, {}
            for name, here in local_files(self.folder, readable).items():
                if name in there:
                    local.taken[name] = there[name], here
            local.write()
            thin(self.folder)


class _Sender(Thread):
    """Brings a mirror up to date now and then, and once more at the end."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__(name="mirror", daemon=True)
        self.mirror, self.over, self.failed = mirror, Event(), ""
        self.given_up = False  # nobody waits any more, and others may take the folder

    def run(self) -> None:
        Thread(target=self._live, name="heart", daemon=True).start()
        usual = wait = _BEATS * EVERY_S
        while not self.mirror.lost:
            ending = self.over.wait(wait)
            try:
                self.mirror.push()
                if ending:
                    self.mirror.release()
                self._works()
                wait = usual
            except Exception as error:  # the storage, the disk here, what a library comes up with
                self._fail(reason(error))
                wait = min(2 * wait, _SLOWEST_S)
                if ending:
                    time.sleep(min(wait, EVERY_S))
            if self.mirror.released or self.given_up:
                return
        complain(f"{self.mirror.address} was taken over by {self.mirror.lost}; leaving")
        ask_to_stop(self.mirror.folder)

    def _live(self) -> None:
        """Give signs of life also while something large is sent, until that is over."""
        while self.is_alive():
            self.join(EVERY_S)
            with suppress(Exception):  # the sender meets it, too, and says so
                self.mirror.beat()

    def _fail(self, problem: str) -> None:
        if not self.failed:
            kept = f"it is tried again, and all is kept in {self.mirror.folder}"
            complain(f"{self.mirror.address} takes nothing ({problem}); {kept}")
        self.failed = problem

    def _works(self) -> None:
        if self.failed:
            complain(f"{self.mirror.address} answers again and has everything")
        self.failed = ""

    def end(self, patience_s: float) -> None:
        """Send the rest, and wait for that.

        Raises:
            WriteError: it is not over after `patience_s`, or somebody else took the mirror over.
        """
        self.over.set()
        self.join(min(EVERY_S, patience_s))
        if self.is_alive():
            complain(f"waiting until {self.mirror.address} has the rest, {patience_s:g} s at most")
            self.join(patience_s - min(EVERY_S, patience_s))
        folder, address = self.mirror.folder, self.mirror.address
        if self.mirror.lost:
            raise WriteError(
                f"{address} was taken over by {self.mirror.lost}, which goes on with the run; what "
                f"was done here since is in {folder}"
            )
        if not self.mirror.released:
            self.given_up = True
            raise WriteError(
                f"{address} has not everything ({self.failed or 'it is slow'}); all is in "
                f"{folder}, and the same command sends it (a run: with --resume)"
            )


@contextmanager
def mirrored(
    folder: Path, needed: bool = True, chosen: Chosen = of_run, at_once: bool = False
) -> Iterator[None]:
    """Work on a folder, whose lock the caller holds, and keep its mirror up to date if it has one.

    Args:
        needed: whether this is who writes, and not a worker that does not lead.
        at_once: whether the mirror shall be up to date before the block begins, too.

    Raises:
        InputError: before the block: see `Mirror.claim`.
        WriteError: after it: not everything could be sent.
    """
    address = address_of(folder) if needed else None
    if address is None:
        yield
        return
    mirror = Mirror(folder, address, chosen)
    mirror.claim()
    if at_once:
        with reaching(address):
            mirror.push()
    sender = _Sender(mirror)
    sender.start()
    try:
        yield
    except BaseException:
        try:
            sender.end(HURRY_S)
        except WriteError as error:
            complain(str(error))
        raise
    sender.end(PATIENCE_S)
