"""Storage for tests, and machines with scratch folders of their own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Outcome, execute, outcome
from stores import BUCKET, KEYS, Become, Server, Store

from forever.config.run import RunConfig
from forever.storage import mirror
from forever.storage.address import SCRATCH
from forever.storage.mirror import Mirror
from forever.storage.remote import Remote


@pytest.fixture(scope="session")
def config(small_config: RunConfig) -> RunConfig:
    """Scores that are not all zero, and random streams that have to be found again."""
    changes: dict[str, Any] = {"model.dropout": 0.1, "optim.lr": 0.05}
    changes["data.metrics"] = {"shape": "rouge_l", "colour": "rouge_l"}
    return small_config.override({**changes, "data.order": ["shape", "colour"]})


@pytest.fixture(scope="session")
def whole(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run in a folder of its own, which nobody interrupts."""
    path = tmp_path_factory.mktemp("whole")
    execute(config, path / "run", checkpoint_s=0.0)
    return outcome(path / "run")


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    """A server with an empty bucket, which the environment tells of as a user's would."""
    pytest.importorskip("moto.server")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        server = Server()
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
        patch.setenv("AWS_REGION", "us-east-1")
        server.client.create_bucket(Bucket=BUCKET)
        yield server
        server.down()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Become:
    """Makes this process one on another machine, as far as its scratch folders go."""

    def become(number: int) -> None:
        monkeypatch.setenv(SCRATCH, str(tmp_path / f"machine-{number}"))

    become(1)
    return become


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Any) -> Store:
    """What lies at store://bucket, to be looked at and to fail at once."""
    from pyarrow import fs

    store = Store(tmp_path / "store")
    store.folder.mkdir()

    def place(remote: Remote) -> tuple[Any, str]:
        return fs.LocalFileSystem(), str(store.folder.joinpath(*remote.address.parts))

    monkeypatch.setattr(Remote, "_place", property(place))
    for verb in ("list", "read", "write", "upload", "download", "delete"):

        def call(
            remote: Remote, *given: Any, verb: str = verb, do: Any = getattr(Remote, verb)
        ) -> Any:
            store.called(verb, str(given[0]) if given else "")
            with store.one_at_a_time:
                return do(remote, *given)

        monkeypatch.setattr(Remote, verb, call)
    return store


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mirrors that are looked at often, and not waited for long."""
    monkeypatch.setattr(mirror, "EVERY_S", 0.05)
    monkeypatch.setattr(mirror, "WAITS_S", 0.2)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> list[Mirror]:
    """The mirrors that were made; their threads sleep but for the end."""

    def claim(made: Mirror, begin: Any = Mirror.claim) -> None:
        mirrors.append(made)
        begin(made)

    def only_at_the_end(sender: Any) -> None:
        sender.over.wait()
        sender.mirror.push()
        sender.mirror.release()

    mirrors: list[Mirror] = []
    monkeypatch.setattr(Mirror, "claim", claim)
    monkeypatch.setattr(mirror._Sender, "run", only_at_the_end)
    return mirrors
