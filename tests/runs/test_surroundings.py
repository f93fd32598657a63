"""A run ends well wherever it is put: strange clocks, languages, folders, nobody to listen."""

import io
import os
import shutil
import stat
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from helpers import Outcome, Then, execute, outcome, saved
from rich.console import Console

from forever.config.run import RunConfig
from forever.launch.local import Placement, run_local
from forever.runs.console import ConsoleTracker

ODD = "with spaces, [/b] é ü 你好 $x_{$"
START = [sys.executable, "-m", "forever.cli.start"]


@pytest.fixture(scope="module")
def whole(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    path = tmp_path_factory.mktemp("whole")
    execute(small_config, path)
    return outcome(path)


def test_a_clock_that_jumps_changes_nothing(
    small_config: RunConfig, whole: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, jumps = time.time(), cycle([0.0, 1e8, -1e8, 3.0])
    monkeypatch.setattr(time, "time", lambda: now + next(jumps))
    execute(small_config, tmp_path, checkpoint_s=0.0)
    assert whole.differences(outcome(tmp_path)) == []


def test_a_console_that_is_closed_meanwhile(
    small_config: RunConfig, whole: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that holds ours as a library has no shield around its output."""
    file = io.StringIO()
    trackers = [ConsoleTracker(Console(file=file)), Then(file.close, 1)]
    run_local(small_config, tmp_path, trackers=trackers, placement=Placement(device="cpu"))
    assert whole.differences(outcome(tmp_path)) == []
    assert "ConsoleTracker failed and is left out from here: ValueError" in capsys.readouterr().err


def forever(arguments: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    options = {"capture_output": True, "timeout": 120, **options}
    return subprocess.run([*START, *arguments], text=True, encoding="utf-8", **options)


def test_zone_language_umask_home_and_names_change_nothing(
    small_config: RunConfig, whole: Outcome, tmp_path: Path
) -> None:
    """With the terminal's language, a home that cannot be written, and a path with everything."""
    folder = tmp_path / ODD
    shutil.copytree(small_config.data.root or "", folder / "data")
    config = small_config.override({"data.root": str(folder / "data")})
    saved(config, folder / "my run.yaml")
    environment = {**os.environ, "TZ": "Pacific/Kiritimati", "LC_ALL": "C", "HOME": "/proc/self"}
    environment |= {"PYTHONIOENCODING": "ascii", "XDG_CACHE_HOME": "/proc/self/none"}
    arguments = ["run", "my run.yaml", "--out", "my runs", "--mlflow", "off", "--device", "cpu"]
    done = forever(arguments, cwd=folder, env=environment, umask=0o077)
    assert (done.returncode, done.stderr) == (0, "")
    (result,) = folder.glob("my runs/*/result.json")
    assert whole.differences(outcome(result.parent)) == []
    assert stat.S_IMODE(result.stat().st_mode) == 0o600
