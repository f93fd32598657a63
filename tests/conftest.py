"""Fixtures: a benchmark of three tiny tasks, and a random two-layer backbone small enough for
hundreds of runs."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import make_benchmark, save_backbone

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def benchmark_of_three() -> Benchmark:
    return make_benchmark()


@pytest.fixture(scope="session")
def backbone_folder(
    tmp_path_factory: pytest.TempPathFactory, benchmark_of_three: Benchmark
) -> Path:
    return save_backbone(tmp_path_factory.mktemp("backbone"), benchmark_of_three)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory, benchmark_of_three: Benchmark) -> Path:
    """The toy benchmark as a folder in our own layout."""
    root = tmp_path_factory.mktemp("data")
    for task in benchmark_of_three.tasks:
        for split, rows in (("train", task.train), ("test", task.test)):
            path = root / "toy" / task.name / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = (
                {"instruction": e.instruction, "input": e.input, "output": e.output} for e in rows
            )
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def base_config(backbone_folder: Path, data_root: Path) -> RunConfig:
    """A run on the toy benchmark that takes about a second."""
    return RunConfig.parse(
        {
            "model": {
                "name": str(backbone_folder),
                "rank": 4,
                "alpha": 8,
                "dropout": 0.0,
                "max_length": 256,
            },
            "data": {
                "benchmark": "toy",
                "order": ["colour", "shape", "weight"],
                "root": str(data_root),
                "metrics": {
                    "colour": "exact_match",
                    "shape": "exact_match",
                    "weight": "exact_match",
                },
            },
            "optim": {"lr": 1e-2, "batch_size": 4, "epochs": 3},
            "memory": {"fraction": 0.2},
            "evaluation": {"max_new_tokens": 3},
            "method": {"name": "forever", "warmup_steps": 3},
        }
    )


@pytest.fixture(scope="session")
def small_config(base_config: RunConfig) -> RunConfig:
    """Three tasks of four updates each, with one or two replays: a run of a third of a second."""
    return base_config.override(
        {"data.train_rows": 8, "data.test_rows": 2, "optim.epochs": 2, "method.warmup_steps": 1}
    )


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[Path]:
    """For Ray, in a short path: Unix sockets have no room for a long one. One token: a process
    keeps it."""
    folder = Path(tempfile.mkdtemp(prefix="fr", dir="/tmp"))
    (folder / "token").write_text(secrets.token_hex(32))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def private_ray(ray_folder: Path) -> Iterator[Path]:
    """Clusters that a module starts are its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(ray_folder))
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(ray_folder / "token"))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield ray_folder


@pytest.fixture(scope="module")
def two_cores(private_ray: Path) -> Iterator[None]:
    """A cluster in this process, shared by the tests of a module that start nothing else."""
    ray = pytest.importorskip("ray")
    from forever.launch.ray_cluster import quiet

    quiet()
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=True,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()
