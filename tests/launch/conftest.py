"""What tests of Ray and MLflow share: a database, runs trained without Ray, a head node."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from faults.inject import children
from helpers import Outcome, execute, outcome
from ray_commands import RAY

from forever.config.run import RunConfig
from forever.launch.local import run_local
from forever.sweeps.sweep import Sweep


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables: making them takes seconds."""
    pytest.importorskip("mlflow")
    from forever.launch.mlflow.store import make_database

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    make_database(path)
    return path


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture(scope="session")
def finished(base_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no tracker heard of."""
    path = tmp_path_factory.mktemp("finished") / "run"
    run_local(base_config, path)
    return path


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="session")
def trained_sweep(base_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of three variants that no tracker heard of."""
    variants = {"base": {}, "+IAR&PIR": {"method.regularizer": "intensity_importance"}}
    sweep = Sweep("parts", base_config, {**variants, "slow": {"optim.lr": 1e-4}})
    folder = tmp_path_factory.mktemp("trained") / sweep.name
    sweep.write_manifest(folder)
    for trial in sweep.trials():
        run_local(trial.config, folder / trial.key)
    return folder


@pytest.fixture
def sweep_folder(trained_sweep: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_sweep, tmp_path / trained_sweep.name))


@pytest.fixture(scope="module")
def store(empty_store: Path, private_ray: Path) -> Path:
    """An empty database that Ray's processes may reach."""
    return Path(shutil.copy(empty_store, private_ray / "mlflow.db"))


@pytest.fixture
def alone(tmp_path: Path) -> Callable[[RunConfig], Outcome]:
    """What a run leaves behind that is trained without Ray."""

    def train(config: RunConfig) -> Outcome:
        path = tmp_path / "alone" / config.key()
        execute(config, path)
        return outcome(path)

    return train


class Head(NamedTuple):
    """A head node: the process that leads its session, and the environment of its users."""

    pid: int
    environment: dict[str, str]

    def kill(self) -> None:
        """End the cluster as a power cut would; `ray stop` would end every Ray of this machine."""
        for pid in children(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def head(private_ray: Path) -> Iterator[Head]:
    """A cluster as `ray up` would make it."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port",
             "dashboard-agent-grpc-port", "metrics-export-port")  # fmt: skip
    flags = [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
    flags += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--num-cpus=2"]
    flags += [f"--temp-dir={private_ray}/head", "--object-store-memory=200000000", "--num-gpus=0"]
    flags += ["--disable-usage-stats", '--resources={"trial_slot": 2}']
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_memory_monitor_refresh_ms": "0"}
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        [*RAY, "start", "--head", "--block", *flags],
        env=environment, start_new_session=True, stdout=null, stderr=null,
    )  # fmt: skip
    environment["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{ports[1]}"
    started = Head(process.pid, environment | {"ADDRESS": f"127.0.0.1:{ports[0]}"})
    try:
        yield started
    finally:
        started.kill()
        process.wait(10)
