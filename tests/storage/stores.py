"""An S3 server on loopback that can fail, a folder that stands for a storage, a run that dies."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forever.config.run import RunConfig
from forever.launch.copies import settle
from forever.launch.local import Placement, run_local
from forever.storage import mirror
from forever.storage.address import local_folder

ADDRESS = "store://bucket/runs/run"
SAVED = Placement(device="cpu", checkpoint_s=0.0)  # a checkpoint after every update
Become = Callable[[int], None]  # see the fixture `machine`
BUCKET = "bucket"
_LONGEST_S = 600  # that a test waits, which has failed then
KEYS = {"AWS_ACCESS_KEY_ID": "testing-id", "AWS_SECRET_ACCESS_KEY": "testing-secret"}


class Server:
    """An S3 server; `fail` is what it answers with instead, and `down` is nobody at its port."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self.app: Any = DomainDispatcherApplication(create_backend_app)
        self.fail = 0  # an HTTP status
        self.delay_s = 0.0  # of each answer
        self.port = 0
        self._server: Any = None
        self.up()

    def __call__(self, environ: Any, start_response: Any) -> Any:
        time.sleep(self.delay_s)
        if self.fail:
            start_response(f"{self.fail} of a test", [("Content-Length", "0")])
            return [b""]
        return self.app(environ, start_response)

    def up(self) -> None:
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, *words: Any) -> None:
                pass

        if self._server is not None:
            return
        self._server = make_server(
            "127.0.0.1", self.port, self, threaded=True, request_handler=Quiet
        )
        self.port = self._server.port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def down(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{self.port}", region_name="us-east-1"
        )

    def keys(self, prefix: str = "") -> list[str]:
        """The names of all objects."""
        pages = self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [content["Key"] for content in pages.get("Contents", ())]


class Store:
    """A folder in the place of a bucket. `before` hears of every call and may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "bucket/runs/run"  # at ADDRESS
        self.calls: list[tuple[str, str]] = []
        self.one_at_a_time = threading.Lock()  # nobody sees half of an object
        self.answer()

    def answer(self) -> None:
        """Answer again."""
        self.before: Callable[[str, str], None] = lambda verb, name: None

    def called(self, verb: str, name: str) -> None:
        self.before(verb, name)
        self.calls.append((verb, name))

    def away(self, verb: str, name: str) -> None:
        """Stands for a storage that does not answer, in the place of `before`."""
        raise OSError("AWS Error NETWORK_CONNECTION: nobody answers")


class Clock:
    """Time that passes only where the mirror's thread waits, and only as far as it is let go: to
    some moment, or on and on when its event is set."""

    def __init__(self) -> None:
        self.now = self.until = 0.0  # seconds
        self._changed = threading.Condition()

    def sleep(self, seconds: float) -> None:
        """Stands for `time.sleep`."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.now + seconds <= self.until, _LONGEST_S)
            self.now += seconds
            self._changed.notify_all()

    def let_go(self, until: float, reached: float = 0.0) -> None:
        """Let time pass until there, and wait until it has reached a moment."""
        with self._changed:
            self.until = until
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.now >= reached, _LONGEST_S)

    def event(self) -> threading.Event:
        """An event that is waited for by this clock."""
        clock = self

        class Timed(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                if not self.is_set():
                    clock.sleep(timeout or 0.0)
                return self.is_set()

            def set(self) -> None:
                super().set()
                clock.let_go(until=math.inf)

        return Timed()


def files_of(folder: Path) -> dict[str, bytes]:
    """What is in a folder, without what is hidden."""
    contents: dict[str, bytes] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                path = Path(place, name)
                contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


def go_on(config: RunConfig) -> Path:
    """The run at ADDRESS, from where it is, to its end; its folder on this machine."""
    path = local_folder(ADDRESS)
    settle(path)
    run_local(config, path, resume=True, placement=SAVED)
    return path


class Killed(BaseException):
    """Stands for SIGKILL."""


@contextmanager
def dying() -> Iterator[None]:
    """The block's run is killed in this process: nothing sends the rest."""

    def die(sender: Any, patience_s: float) -> None:
        sender.mirror.push = sender.mirror.beat = sender.mirror.release = lambda: None
        sender.given_up = True
        sender.over.set()
        sender.join()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror._Sender, "end", die)
        with pytest.raises(Killed):
            yield
