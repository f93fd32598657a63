"""What a command prints may go nowhere: a closed pipe, a full disk. It still does its work."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import execute

from forever.config.run import RunConfig
from forever.runs.directory import RunDirectory
from forever.sweeps.files import load_sweep
from forever.sweeps.sweep import Sweep


@pytest.fixture
def pipe_without_reader() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def forever(arguments: list[str], stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, str]:
    """The exit code and what came on stderr."""
    command = [sys.executable, "-m", "forever.cli.main", *arguments, "--mlflow", "off"]
    done = subprocess.run(command, stdout=stdout, stderr=stderr, text=True, timeout=120)
    return done.returncode, done.stderr or ""


@pytest.mark.parametrize(
    "where",
    ["closed pipe", pytest.param("closed pipe for both", marks=pytest.mark.slow), "full disk"],
)
def test_a_run_whose_output_nobody_reads_ends_well(
    run_file: str, tmp_path: Path, pipe_without_reader: int, where: str
) -> None:
    arguments = ["run", run_file, "--out", str(tmp_path / "out")]
    stderr = pipe_without_reader if "both" in where else subprocess.PIPE
    with open("/dev/full", "w") as full:
        stdout = full.fileno() if where == "full disk" else pipe_without_reader
        assert forever(arguments, stdout, stderr) == (0, "")
    assert len(list((tmp_path / "out").glob("*/result.json"))) == 1


def test_a_run_without_output_ends_well(run_file: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "forever.cli.main", "run", run_file, "--mlflow", "off"]
    shell = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *arguments, "--out", str(tmp_path / "out")]
    assert subprocess.run(shell, timeout=120).returncode == 0
    assert len(list((tmp_path / "out").glob("*/result.json"))) == 1


def test_bad_input_keeps_its_exit_code(run_file: str, pipe_without_reader: int) -> None:
    arguments = ["run", run_file, "optim.lrr=1"]
    assert forever(arguments, pipe_without_reader, pipe_without_reader)[0] == 2


@pytest.fixture
def sweep(small_config: RunConfig, tmp_path: Path) -> Sweep:
    """One run, and it is finished."""
    pytest.importorskip("ray")
    made = load_sweep("components").expand(small_config, (0,)).only(["base"])
    (trial,) = made.trials()
    execute(trial.config, tmp_path / "out" / made.name / trial.key)
    return made


@pytest.mark.parametrize("failed", [False, True])
def test_a_sweep_whose_table_nobody_reads_writes_its_report(
    sweep: Sweep, run_file: str, tmp_path: Path, pipe_without_reader: int, failed: bool
) -> None:
    folder = tmp_path / "out" / sweep.name
    arguments = ["sweep", "components", "--on", run_file, "--seeds", "0", "--only", "base"]
    if failed:
        arguments += ["--only", "+FIR"]
        other = next(trial for trial in sweep.only(["+FIR"]).trials() if trial.variant == "+FIR")
        RunDirectory(folder / other.key).end("failed", "for the test")
    code, errors = forever([*arguments, "--out", str(tmp_path / "out")], pipe_without_reader)
    assert (code, errors) == (int(failed), "")
    if find_spec("matplotlib") and find_spec("jinja2"):
        assert (folder / "report.html").is_file()
