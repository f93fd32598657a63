"""Storage for tests, and machines with scratch folders of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Outcome, execute, outcome
from stores import BUCKET, KEYS, Server

from forever.config.run import RunConfig
from forever.storage import store
from forever.storage.address import SCRATCH


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
    """A server with an empty bucket, which the environment names as a user's would."""
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
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes this process one on another machine, as far as its scratch folders go."""

    def become(number: int) -> None:
        monkeypatch.setenv(SCRATCH, str(tmp_path / f"machine-{number}"))

    become(1)
    return become


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats that come often."""
    monkeypatch.setattr(store, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(store, "CONFIRM_S", 0.05)
