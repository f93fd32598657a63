"""What tests of Ray and MLflow share: a database, runs trained without Ray, a head node."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers import Outcome, execute, outcome
from machines import Head, free_ports, head_node

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
def alone(tmp_path: Path) -> Iterator[Callable[..., Outcome]]:
    """What a run leaves behind that is trained without Ray, by so many threads: bits depend on
    their number, and a trial that is alone on a machine has all cores."""

    before = torch.get_num_threads()

    def train(config: RunConfig, threads: int = before) -> Outcome:
        path = tmp_path / "alone" / config.key()
        torch.set_num_threads(threads)
        execute(config, path)
        return outcome(path)

    yield train
    torch.set_num_threads(before)


@pytest.fixture
def head(private_ray: Path) -> Iterator[Head]:
    """A cluster of one machine."""
    flags = ("--num-cpus=2", "--num-gpus=0", '--resources={"trial_slot": 2}')
    with head_node(private_ray, free_ports(6), *flags) as started:
        yield started
