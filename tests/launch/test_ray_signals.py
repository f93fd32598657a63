"""Sweeps and workers that get a signal to stop: runs save, and have not failed."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("mlflow")
import yaml
from helpers import Outcome, outcome
from marks import ON_RAY
from ray_commands import FOREVER, saved_in_the_middle, statuses

from forever.config.run import RunConfig
from forever.launch import train
from forever.launch.local import prepare
from forever.launch.resources import Placement, Resources
from forever.launch.start import run_sweep
from forever.launch.train import run_workers
from forever.runs.lock import in_progress
from forever.sweeps.sweep import Sweep

pytestmark = [*ON_RAY, pytest.mark.slow]
CPU = Placement(device="cpu", checkpoint_s=1e9)


@pytest.fixture
def long(base_config: RunConfig) -> RunConfig:
    """Sixty updates a task: time for a signal."""
    return base_config.override({"optim.epochs": 10})


def holder(lock: Path) -> int:
    """The process that has a lock's file open, other than this one; 0 for none."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        pid = int(link.parts[2])
        with suppress(OSError):
            if pid != os.getpid() and os.readlink(link) == str(lock):
                return pid
    return 0


def when_it_trains(folder: Path, do: Callable[[int], None], unless: Sequence[int] = ()) -> None:
    """Call `do` with the process that trains a run in a folder, after some updates of it, unless it
    is one of those."""
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        for steps in folder.glob("**/steps.jsonl"):
            pid = holder(steps.parent / ".lock")
            if pid and pid not in unless and steps.read_bytes().count(b"\n") > 5:
                do(pid)
                return
        time.sleep(0.01)


@contextmanager
def spot_notice(folder: Path, times: int = 1) -> Iterator[list[int]]:
    """SIGTERM for so many processes that train in a folder, each once; yields who got it."""
    notified: list[int] = []

    def notify(pid: int) -> None:
        os.kill(pid, signal.SIGTERM)
        notified.append(pid)

    def notify_all() -> None:
        for _ in range(times):
            when_it_trains(folder, notify, unless=notified)

    thread = threading.Thread(target=notify_all)
    thread.start()
    yield notified
    thread.join()


def test_an_interrupted_trial_is_resumed_and_has_not_failed(
    two_cores: None,
    tmp_path: Path,
    long: RunConfig,
    alone: Callable[..., Outcome],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Twice, although none may fail."""
    sweep, out = Sweep("toys", long, {"base": {}}), tmp_path / "toys"
    (trial,) = sweep.trials()
    with spot_notice(out, times=2) as notified:
        ends = run_sweep(sweep, out, Resources(placement=CPU, workers=0, retries=0))
    assert len(notified) == 2
    assert (ends.finished, ends.failed) == ([trial.key], {})
    assert f"{trial.key} was interrupted" in capsys.readouterr().out
    assert outcome(out / trial.key).differences(alone(trial.config, threads=2)) == []


def test_interrupted_workers_are_restarted(
    two_cores: None,
    tmp_path: Path,
    long: RunConfig,
    alone: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although none may fail."""
    monkeypatch.setattr(train, "_FAILURES", 0)
    with spot_notice(tmp_path / "run") as notified:
        result = run_workers(prepare(long, tmp_path / "run"), Resources(workers=1, placement=CPU))
    assert len(notified) == 1
    assert result["world_size"] == 1
    assert outcome(tmp_path / "run").differences(alone(long, threads=2)) == []


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (["sweep", "toys.yaml", "--on", "base.yaml"], signal.SIGTERM),
        (["run", "base.yaml", "--workers", "1"], signal.SIGINT),
    ],
    ids=["sweep", "run"],
)
def test_a_driver_lets_its_runs_save(
    tmp_path: Path, store: Path, base_config: RunConfig, command: list[str], number: int
) -> None:
    """It exits like any interrupted command, and MLflow shows its runs as ended."""
    variants = {"base": {"optim.epochs": 1000}}
    (tmp_path / "toys.yaml").write_text(yaml.safe_dump({"title": "Toys", "variants": variants}))
    long = base_config.override(variants["base"]).model_dump(mode="json")
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(long))
    shutil.copy(store, tmp_path)
    options = ["--mlflow", f"sqlite:///{tmp_path}/mlflow.db", "--device", "cpu"]
    options += ["--checkpoint-every", "1000000"]
    process = subprocess.Popen(
        [*FOREVER, *command, *options], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        when_it_trains(tmp_path, lambda pid: process.send_signal(number))
        out, errors = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert " rank 0 on " not in f"{out}{errors}"  # without --ray-logs
    (config,) = tmp_path.glob("runs/**/config.yaml")
    assert not in_progress(config.parent)
    assert saved_in_the_middle(config.parent)
    assert not (config.parent / "ended.json").exists()
    assert "RUNNING" not in statuses(tmp_path, "toys" if "sweep" in command else "forever")
