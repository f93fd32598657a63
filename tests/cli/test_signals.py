"""A command that a signal stops says how to resume, without a traceback, from its first moment."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from faults.inject import environment
from helpers import saved, wait_until

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


def says_how_to_resume(errors: str) -> bool:
    """Whether the last line does, and no other line is more than a notice."""
    last = errors.splitlines()[-1]
    return last.startswith("interrupted") and "--resume" in last and "Traceback" not in errors


@pytest.mark.parametrize("name", ["typer", "yaml", "pydantic", "torch._C", "numpy._core.umath"])
def test_ctrl_c_in_the_first_second_is_no_traceback(name: str, tmp_path: Path) -> None:
    """Libraries may wrap it while they are imported."""
    arguments = ["run", "mini/finetune", "--mlflow", "off", "--out", str(tmp_path)]
    command = [sys.executable, "-c", PROGRAM.format(name=name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (130, 1)
    assert says_how_to_resume(done.stderr)


def begun(config: RunConfig, folder: Path, *options: str, faults: bool = False) -> subprocess.Popen:
    """Begin a run in the background."""
    saved(config, folder / "run.yaml")
    command = [sys.executable, "-m", "forever.cli.start", "run", "run.yaml", "--device", "cpu"]
    return subprocess.Popen(
        [*command, "-q", *options],
        cwd=folder,
        env={**os.environ, **(environment(folder / "faults") if faults else {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_before_the_update_is_over(
    base_config: RunConfig, tmp_path: Path
) -> None:
    """The first one waits for it, in a run that hangs in an update."""
    held = tmp_path / "held"
    (tmp_path / "faults").write_text(f"hold phase=task task=1 once={held}")
    process = begun(base_config, tmp_path, "--mlflow", "off", faults=True)
    wait_until(held.exists, 120)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "saving" in process.stderr.readline()
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert says_how_to_resume(errors)
    process = begun(base_config, tmp_path, "--mlflow", "off", "--resume")
    process.communicate(timeout=120)
    assert process.returncode == 0


def stopped(config: RunConfig, folder: Path, number: int, mlflow: str, after: str) -> str:
    """Stop a long run by a signal once it has written a file; what it said."""
    long = config.override({"optim.epochs": 1000})
    process = begun(long, folder, "--checkpoint-every", "1000000", "--mlflow", mlflow)
    for name in (after, "steps.jsonl"):
        files = f"runs/*/{name}"
        wait_until(lambda: any(path.stat().st_size for path in folder.glob(files)), 120)  # noqa: B023
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    return errors


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_a_run_that_gets_a_signal_saves_and_says_how_to_resume(
    base_config: RunConfig, tmp_path: Path, number: int
) -> None:
    errors = stopped(base_config, tmp_path, number, "off", "steps.jsonl")
    assert says_how_to_resume(errors)
    assert len(list(tmp_path.glob("runs/*/checkpoints/*/state.json"))) == 1


@pytest.mark.slow
def test_a_run_that_gets_a_signal_closes_its_run_in_mlflow(
    base_config: RunConfig, tmp_path: Path
) -> None:
    """It would stay RUNNING there for ever."""
    pytest.importorskip("mlflow")
    stopped(base_config, tmp_path, signal.SIGTERM, f"sqlite:///{tmp_path}/mlflow.db", "mlflow.json")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("select status from runs").fetchall() == [("KILLED",)]
