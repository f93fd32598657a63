"""A command that is told to stop says how to go on, without a traceback, from its first moment."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from faults.inject import environment
from helpers import wait_until

from forever.config.run import RunConfig

# Ctrl-C when a module begins to be imported.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv[0] = "forever"
from forever.cli.start import main
main()
"""
AGAIN = "interrupted; the same command with --resume goes on from the last checkpoint\n"


@pytest.mark.parametrize("name", ["typer", "yaml", "pydantic", "torch._C", "numpy._core.umath"])
def test_ctrl_c_in_the_first_second_is_no_traceback(name: str, tmp_path: Path) -> None:
    """Libraries may wrap it while they are imported."""
    code = PROGRAM.format(name=name)
    arguments = ["run", "mini/finetune", "--mlflow", "off", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (130, AGAIN)


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_before_the_update_is_over(
    base_config: RunConfig, tmp_path: Path
) -> None:
    """The first one waits for it, in a run that hangs in an update."""
    held = tmp_path / "held"
    (tmp_path / "faults").write_text(f"hold phase=task task=1 once={held}")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(base_config.model_dump(mode="json")))
    command = [sys.executable, "-m", "forever.cli.start", "run", "run.yaml", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--mlflow", "off", "-q"],
        cwd=tmp_path,
        env={**os.environ, **environment(tmp_path / "faults")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(held.exists, 120)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    first = process.stderr.readline()
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    told = time.monotonic()
    _, rest = process.communicate(timeout=60)
    assert time.monotonic() - told < 10
    assert held.exists()  # it would have been let go by its removal
    assert first == "saving a checkpoint and leaving; Ctrl-C leaves at once\n"
    assert (process.returncode, rest) == (130, AGAIN)
    done = subprocess.run(
        [*command, "--mlflow", "off", "-q", "--resume"], cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0


def run_and_tell(
    config: RunConfig, folder: Path, number: int, *options: str, after: str = "steps.jsonl"
) -> tuple[int, str]:
    """Begin a long run, tell it to stop after some updates and a file of it; its exit code and
    what it said."""
    long = config.override({"optim.epochs": 1000})
    (folder / "long.yaml").write_text(yaml.safe_dump(long.model_dump(mode="json")))
    command = [sys.executable, "-m", "forever.cli.start", "run", "long.yaml", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--checkpoint-every", "1000000", *options],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    reader: list[str] = []
    assert process.stderr is not None
    listener = threading.Thread(
        target=lambda pipe: reader.append(pipe.read()), args=[process.stderr]
    )
    listener.start()
    for name in (after, "steps.jsonl"):
        give_up = time.monotonic() + 120
        while not any(path.stat().st_size for path in folder.glob(f"runs/*/{name}")):
            assert time.monotonic() < give_up
            assert process.poll() is None
            time.sleep(0.01)
    process.send_signal(number)
    process.wait(60)
    listener.join()
    process.stderr.close()
    return process.returncode, reader[0]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_a_run_that_is_told_to_stop_saves_and_says_how_to_go_on(
    base_config: RunConfig, tmp_path: Path, number: int
) -> None:
    code, errors = run_and_tell(base_config, tmp_path, number, "--mlflow", "off", "-q")
    assert code == 128 + number
    assert errors == f"saving a checkpoint and leaving; Ctrl-C leaves at once\n{AGAIN}"
    (checkpoint,) = tmp_path.glob("runs/*/checkpoints/*/state.json")
    assert '"trained": false' in checkpoint.read_text()


@pytest.mark.slow
def test_a_run_that_is_told_to_stop_closes_its_run_in_mlflow(
    base_config: RunConfig, tmp_path: Path
) -> None:
    """It would stay RUNNING there for ever."""
    if find_spec("mlflow") is None:
        pytest.skip("needs MLflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    code, errors = run_and_tell(
        base_config, tmp_path, signal.SIGTERM, "--mlflow", uri, after="mlflow.json"
    )
    assert (code, "Traceback" in errors) == (143, False)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("select status from runs").fetchall() == [("KILLED",)]
