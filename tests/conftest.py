"""Fixtures: a benchmark of three tiny tasks, and a random two-layer backbone small enough for
hundreds of runs."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from commands import Call
from helpers import make_benchmark, save_backbone, save_data, saved, small_toy_config, toy_config

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark

# Tests are run side by side; tests/cpus.py asks for more. Commands that tests start have as many,
# since bits depend on their number.
THREADS = os.environ.get("FOREVER_TEST_THREADS", "1")
os.environ["OMP_NUM_THREADS"] = THREADS
torch.set_num_threads(int(THREADS))
# A command would choose others (launch.local), and bits of two processes are compared.
KERNELS = torch.backends.cpu.get_cpu_capability().lower()
if KERNELS in ("default", "avx2", "avx512"):
    os.environ.setdefault("ATEN_CPU_CAPABILITY", KERNELS)


@pytest.fixture(autouse=True)
def signals_are_heard() -> Iterator[None]:
    """A shell without job control starts what it runs in the background deaf to Ctrl-C, `nohup` to
    SIGHUP, and children inherit that."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    usual |= {signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.getsignal(number) for number in usual}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, usual[number])
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def benchmark_of_three() -> Benchmark:
    return make_benchmark()


@pytest.fixture(scope="session")
def backbone_folder(
    tmp_path_factory: pytest.TempPathFactory, benchmark_of_three: Benchmark
) -> Path:
    """A toy language model, or a real one of your own by FOREVER_TEST_MODEL=FOLDER."""
    if folder := os.environ.get("FOREVER_TEST_MODEL"):
        return Path(folder)
    return save_backbone(tmp_path_factory.mktemp("backbone"), benchmark_of_three)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory, benchmark_of_three: Benchmark) -> Path:
    """The toy benchmark as a folder."""
    return save_data(tmp_path_factory.mktemp("data"), benchmark_of_three)


@pytest.fixture(scope="session")
def base_config(backbone_folder: Path, data_root: Path) -> RunConfig:
    return toy_config(backbone_folder, data_root)


@pytest.fixture(scope="session")
def small_config(base_config: RunConfig) -> RunConfig:
    return small_toy_config(base_config)


@pytest.fixture
def run_file(small_config: RunConfig, tmp_path: Path) -> str:
    """A run's YAML."""
    return saved(small_config, tmp_path / "toy.yaml")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Do `forever ARGUMENTS` in this process: its exit code, and what came on stdout and stderr."""
    from forever.cli.main import main

    def forever(*arguments: str, begin: Callable[[], None] = main) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["forever", *arguments])
        code = 0
        try:
            begin()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return forever


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
    from forever.launch.cluster import local, quiet

    quiet()
    ray.init(num_cpus=2, log_to_driver=False, logging_level="ERROR", **local(dashboard=True))
    yield
    ray.shutdown()
    os.environ.pop("RAY_API_SERVER_ADDRESS")
