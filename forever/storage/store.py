"""A run, or a sweep, that works in a scratch folder and is uploaded to its address.

After each checkpoint everything that the checkpoint counts on is uploaded, then the checkpoint
itself, then a pointer to it; a run's result comes last. So the bucket holds at any moment something
to resume from. One thread uploads, and training never waits for it.

One machine at a time may upload: the one that holds the lease. That is an object which its holder
changes with every heartbeat. Clocks of two machines are never compared: whoever wants a lease
watches the object, and takes it if it has not changed for a whole time-to-live.
"""

import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from io import BytesIO
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any

from forever.errors import InputError
from forever.files import WriteError, write_text, writing
from forever.stopping import ask_to_stop
from forever.storage.address import Address, address_of
from forever.storage.remote import (
    HIDDEN,
    Remote,
    Stamp,
    download_all,
    local_files,
    reaching,
    reason,
)
from forever.text import complain

HEARTBEAT_S = 5.0
BEATS = 3  # that may fail to come before a lease expires
CONFIRM_S = 0.5  # after which two machines that take a lease at once see who has it
WAIT_S = 120.0  # for a holder that lives to finish
FINISH_S = 60.0  # how long uploads that fail at the end are retried
HURRY_S = 15.0  # for the last upload after a signal, which SIGKILL often follows in half a minute
CONFIG, RESULT = "config.yaml", "result.json"  # of a run: see `runs.directory`
UNSENT = f"{HIDDEN}/unsent"  # holds the lease's owner while the folder may have unsent work
_LEASE, _POINTER = ".lease.json", ".latest"  # in the bucket
_CHECKPOINTS, _STAGES = "checkpoints/", "stages/"


@dataclass(frozen=True)
class Lease:
    """Who may write to an address."""

    owner: str  # a random name of the folder that wrote last
    holder: str  # the process that works there; "" once it has finished
    count: int  # of heartbeats
    ttl_s: float  # without a change, after which the lease expires


class Store:
    """A folder of this machine and its address; the caller holds the folder's lock.

    `with store:` takes the lease, downloads what is newer in the bucket, uploads what is newer
    here, and uploads each checkpoint from then on. After the block the rest is uploaded.

    Raises:
        InputError: before the block: another machine works on it, or the storage cannot be used.
        WriteError: after it: not everything could be uploaded, or another machine took over.
    """

    def __init__(self, folder: Path, address: Address, is_sweep: bool = False) -> None:
        self.folder, self.address, self.is_sweep = folder, address, is_sweep
        self.remote = Remote(address)
        self._links = folder / HIDDEN / "links"  # to a checkpoint that is uploaded, and the next
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        self.holder = f"process {os.getpid()} on {socket.gethostname()} since {now}"
        self.owner = ""
        self.sent: dict[str, Stamp | None] = {}  # files in the bucket, by their stamps here
        self.problem: WriteError | None = None  # why nothing may be uploaded any more

        self._beats, self._renewed = 0, 0.0
        self._renewing, self._linking = Lock(), Lock()
        # Set when a checkpoint is to be uploaded, at the end, and when no heartbeat is needed.
        self._wanted, self._ending, self._over = Event(), Event(), Event()
        self._failed = ""
        self._heart = Thread(target=self._beat, name="heartbeat", daemon=True)
        self._uploader = Thread(target=self._upload, name="uploader", daemon=True)

    def __enter__(self) -> "Store":
        shutil.rmtree(self._links, ignore_errors=True)  # of a process that was killed
        with reaching(self.address):
            unsent = self._unsent()
            self.owner = unsent or secrets.token_hex(8)
            self._acquire()
            newest_here = self.owner == unsent  # nobody else wrote there until now
            self._heart.start()
            try:
                if newest_here:
                    self.sent = {name: None for name in self.remote.list() if self._owns(name)}
                elif not self.download():
                    newest_here = True  # nothing was ever uploaded
                write_text(self.folder / UNSENT, self.owner)
                if newest_here:
                    self.push_checkpoint()
                    self._push_at_once()
            except BaseException:
                self._over.set()
                raise
        self._uploader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None
    ) -> None:
        try:
            self.finish(None if kind is None else HURRY_S)
        except WriteError as problem:
            if kind is None:
                raise
            complain(str(problem))

    # ---- downloads

    def newest_here(self) -> bool:
        """Whether the folder has work that is newer than the bucket: nobody wrote there since."""
        owner = self._unsent()
        lease = self._lease() if owner else None
        return bool(owner) and (lease is None or lease.owner == owner)

    def download(self, weights: bool = True, there: Mapping[str, Stamp] | None = None) -> bool:
        """Make the folder what is in the bucket; return whether there is anything.

        Args:
            weights: whether checkpoints are downloaded, too, for those who resume the run.
            there: the files in the bucket, if they are known.
        """
        there = self.remote.list() if there is None else there
        there = {name: stamp for name, stamp in there.items() if self._owns(name)}
        if not there:
            return False
        (self.folder / UNSENT).unlink(missing_ok=True)
        self.sent = dict.fromkeys(there)
        # Of the checkpoints only the one that the pointer names is complete for certain.
        pointer = (self.remote.read(_POINTER) or b"").decode() if weights else ""
        for name in [*there]:
            if pointer and name.startswith(_CHECKPOINTS) and name.split("/")[1] != pointer:
                del there[name]

        def chosen(name: str) -> bool:
            return self._owns(name) and (weights or not name.startswith((_CHECKPOINTS, _STAGES)))

        download_all(self.remote, self.folder, there, chosen)
        self.sent |= {name: there[name] for name in there if chosen(name)}
        return True

    def _owns(self, name: str) -> bool:
        """Whether a file is none of a sweep's runs."""
        return not self.is_sweep or "/" not in name or name.startswith("figures/")

    def _unsent(self) -> str:
        path = self.folder / UNSENT
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    # ---- the lease

    def _lease(self) -> Lease | None:
        content = self.remote.read(_LEASE)
        try:
            return Lease(**json.loads(content)) if content else None
        except (ValueError, TypeError):  # a damaged one says nothing, and is replaced
            return None

    def _write_lease(self, holder: str) -> None:
        self._beats += 1
        lease = Lease(self.owner, holder, self._beats, BEATS * HEARTBEAT_S)
        self.remote.upload(_LEASE, BytesIO(json.dumps(asdict(lease)).encode()))

    def _acquire(self) -> None:
        """Take the lease; InputError if its holder lives and does not finish.

        It is taken in a new name after another folder has had it: what is unsent here is older.
        """
        seen, since, give_up, written = None, 0.0, time.monotonic() + WAIT_S, False
        while True:
            lease, now = self._lease(), time.monotonic()
            if written and lease is not None and lease.owner == self.owner:
                return
            expired = lease is not None and lease == seen and now - since >= lease.ttl_s
            if lease is None or not lease.holder or lease.owner == self.owner or expired:
                if lease is not None and lease.owner != self.owner:
                    self.owner = secrets.token_hex(8)
                self._renewed = now
                self._write_lease(self.holder)
                written = True
                time.sleep(CONFIRM_S)  # another machine may take it, too: the last to write has it
                continue
            if lease != seen:
                if now > give_up:
                    raise InputError(
                        f"{self.address} is held by {lease.holder}, which is alive; it has one "
                        "writer: stop that one, wait for its end, or give another --out"
                    )
                if seen is None:
                    complain(f"{self.address} is held by {lease.holder}; waiting for a heartbeat")
                seen, since = lease, now
            time.sleep(lease.ttl_s / BEATS)

    def _renew(self, holder: str) -> None:
        """Renew the lease.

        Raises:
            WriteError: another machine took it, since this one seemed dead.
        """
        with self._renewing:
            if self.problem:
                raise self.problem
            began, lease = time.monotonic(), self._lease()
            if lease is not None and lease.owner != self.owner:
                self.problem = WriteError(
                    f"{self.address} was taken over by {lease.holder or 'another machine'}; what "
                    f"was done here since is in {self.folder}"
                )
                raise self.problem
            self._write_lease(holder)
            self._renewed = began

    def _beat(self) -> None:
        """Renew the lease until that is over; without it the run must stop."""
        lost = False
        while not self._over.wait(HEARTBEAT_S):
            try:
                self._renew(self.holder)
            except WriteError as problem:
                if not lost:
                    complain(f"{problem}; leaving")
                lost = True
                ask_to_stop(self.folder)  # each time, since a run that begins drops older requests
                continue
            except Exception:  # of the storage; the uploads meet it, too, and say so
                continue
            if self.is_sweep:  # it has no checkpoints, and its files are small
                self._wanted.set()

    def _check_lease(self) -> None:
        """Write nothing after the lease may have expired, unless it is renewed."""
        if self.problem:
            raise self.problem
        if time.monotonic() - self._renewed > BEATS * HEARTBEAT_S:
            self._renew(self.holder)

    # ---- uploads

    def push_checkpoint(self) -> None:
        """Upload the newest checkpoint, with all that it counts on, in the background."""
        checkpoint = max(self.folder.glob(f"{_CHECKPOINTS}[!.]*"), default=None)
        try:
            if checkpoint is not None:
                # By links, since the run may drop the checkpoint before it is uploaded.
                with self._linking, writing(self.folder):
                    shutil.rmtree(self._links / "next", ignore_errors=True)
                    links = self._links / "next" / checkpoint.name
                    shutil.copytree(checkpoint, links, copy_function=_link)
        finally:
            self._wanted.set()

    def _push(self, last: bool = False) -> None:
        """Upload what is new; OSError if the storage fails.

        Args:
            last: whether the run has ended, so that its result is uploaded, too.
        """
        # The checkpoint first: whatever is found after it is at least what it counts on.
        links = self._links / "now"
        with self._linking:
            if (self._links / "next").is_dir():
                shutil.rmtree(links, ignore_errors=True)
                (self._links / "next").rename(links)
        checkpoint = next((path.name for path in links.glob("*")), "")
        files = local_files(
            self.folder, lambda name: self._owns(name) and not name.startswith(_CHECKPOINTS)
        )
        result = files.pop(RESULT, None)
        files |= {f"{_CHECKPOINTS}{checkpoint}/{path.name}": path for path in links.glob("*/*")}
        for name in sorted(files, key=_turn):
            self._send(name, files[name])

        # The pointer is moved by the holder of the lease alone.
        if checkpoint:
            self._renew(self.holder)
            self.remote.upload(_POINTER, BytesIO(checkpoint.encode()))
        for name in [*self.sent]:
            if name.startswith(_CHECKPOINTS):
                gone = bool(checkpoint) and name.split("/")[1] != checkpoint
            else:
                gone = name not in files and name != RESULT
            if gone:
                self._check_lease()
                self.remote.delete(name)
                del self.sent[name]
        if last and result:
            self._send(RESULT, result)
        shutil.rmtree(links, ignore_errors=True)

    def _push_at_once(self) -> None:
        """Upload what is new before the run begins.

        Ctrl-C would end an upload of this thread as half a file in the place of a whole one, so
        another thread uploads, and finishes its file.
        """
        with ThreadPoolExecutor(1) as pool:
            try:
                pool.submit(self._push).result()
            except BaseException:
                self.problem = WriteError(f"{self.address} does not have everything")
                raise

    def _send(self, name: str, path: Path) -> None:
        try:
            stamp, file = Stamp.of(path), path.open("rb")
        except FileNotFoundError:  # it was removed meanwhile
            return
        with file:
            if self.sent.get(name) != stamp:
                self._check_lease()
                self.remote.upload(name, file)
                self.sent[name] = stamp

    def _upload(self) -> None:
        """Upload whenever that is wanted, until all is there or the lease is lost."""
        give_up = float("inf")
        while True:
            self._wanted.wait()
            self._wanted.clear()
            last = self._ending.is_set()
            try:
                self._push(last)
                if self._failed:
                    complain(f"{self.address} answers again and has everything")
                self._failed = ""
                if last:
                    self._release()
                    return
            except Exception as error:  # the storage, or whatever a library raises
                if self.problem or time.monotonic() > give_up:
                    return
                if not self._failed:
                    kept = f"uploads are retried, and everything is kept in {self.folder}"
                    complain(f"{self.address} fails ({reason(error)}); {kept}")
                self._failed = reason(error)
                if last and give_up == float("inf"):
                    complain(f"waiting up to {FINISH_S:g} s for {self.address}")
                    give_up = time.monotonic() + FINISH_S
                self._wanted.wait(HEARTBEAT_S)
                self._wanted.set()

    def _release(self) -> None:
        """Let others have the lease. Of a finished run only what readers need stays here."""
        self._check_lease()
        # What was uploaded need not be downloaded again.
        there = self.remote.list()
        for name, path in local_files(self.folder, lambda name: name in self.sent).items():
            if name in there and path.stat().st_size == there[name].size:
                os.utime(path, ns=(there[name].time_ns, there[name].time_ns))
                self.sent[name] = Stamp.of(path)
        self._over.set()
        self._heart.join()
        self._renew("")
        (self.folder / UNSENT).unlink(missing_ok=True)
        if (self.folder / RESULT).is_file():
            for name in (_CHECKPOINTS, _STAGES):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def finish(self, within_s: float | None = None) -> None:
        """Upload the rest, for at most so long, and release the lease.

        Raises:
            WriteError: not everything could be uploaded, or another machine took over.
        """
        try:
            self.push_checkpoint()
            self._ending.set()  # after all that is to be uploaded is here
            self._wanted.set()
            self._uploader.join(within_s)
        finally:
            self._over.set()
            if self._unsent() and not self.problem:
                self.problem = WriteError(
                    f"{self.address} does not have everything ({self._failed or 'it is slow'}); "
                    f"all is in {self.folder}, and the same command uploads it (a run: with "
                    "--resume)"
                )
        if self.problem:
            raise self.problem


@contextmanager
def uploading(
    folder: Path, is_sweep: bool = False, needed: bool = True
) -> Iterator[Callable[[], None]]:
    """Upload a folder during the block, if it is the scratch of an address; see `Store`.

    Args:
        is_sweep: whether the folder is a sweep's, whose runs are uploaded by themselves.
        needed: whether this is who writes, and not a worker that does not lead.

    Yields:
        What is called after each checkpoint.
    """
    address = address_of(folder) if needed else None
    if address is None:
        yield lambda: None
        return
    with Store(folder, address, is_sweep) as store:
        yield store.push_checkpoint


def _turn(name: str) -> tuple[bool, bool, bool, str]:
    """Sort a checkpoint after what it counts on, a manifest after its files, and first of all the
    configuration, without which no run has begun."""
    is_manifest = name.endswith("manifest.json")
    return name.startswith(_CHECKPOINTS), is_manifest, name != CONFIG, name


def _link(path: str, other: str) -> None:
    """Give a file another name; on file systems without links it is copied."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copy2(path, other)
