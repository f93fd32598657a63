"""A run directory has one writer. Whoever waits for it says so, and then looks again at what is
there."""

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import execute

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.fleet import Fleet
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress, locked

ME = f"process {os.getpid()} on {socket.gethostname()}"


@contextmanager
def waiting(
    config: RunConfig,
    path: Path,
    capsys: pytest.CaptureFixture[str],
    execute: Callable[..., dict[str, Any]] = execute,
) -> Iterator["Future[dict[str, Any]]"]:
    """A run that found its folder taken, and waits while the block is executed."""
    with ThreadPoolExecutor(1) as pool, locked(path):
        run = pool.submit(execute, config, path)
        while not (told := capsys.readouterr().err):
            assert not run.done()
            time.sleep(0.01)
        assert told == f"waiting for {ME}, which trains {path}\n"
        yield run


def test_what_another_process_left_behind_meanwhile_is_looked_at(
    small_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it finished is not repeated, and what it began may be another run."""
    finished, path, other = (tmp_path / name for name in ("finished", "run", "other"))
    execute(small_config, finished)
    with waiting(small_config, path, capsys) as run:
        for name in ("config.yaml", "result.json"):
            shutil.copy(finished / name, path)
    assert run.result() == RunDirectory(finished).finished()
    assert sorted(file.name for file in path.iterdir()) == [".lock", "config.yaml", "result.json"]
    with waiting(small_config.override({"seed": 1}), other, capsys) as run:
        shutil.copy(finished / "config.yaml", other)
    with pytest.raises(InputError, match=r"another configuration \(seed is 0 there, 1 here\)"):
        run.result()


def test_a_run_with_workers_waits_before_it_starts_any(
    small_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What Ray Train keeps in the folder is the other process's."""
    pytest.importorskip("ray")
    from forever.launch.ray_train import run_workers

    finished, path = tmp_path / "finished", tmp_path / "run"
    execute(small_config, finished)
    with waiting(small_config, path, capsys, partial(run_workers, fleet=Fleet(workers=1))) as run:
        for name in ("config.yaml", "result.json"):
            shutil.copy(finished / name, path)
    assert run.result() == RunDirectory(finished).finished()


def test_waiting_has_an_end(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forever.runs.lock._PATIENCE_S", 0.3)
    message = f"is being trained by {ME}; .*: stop that one or wait"
    with locked(tmp_path), pytest.raises(InputError, match=message):
        execute(small_config, tmp_path)
    with locked(tmp_path):
        pass


def test_looking_takes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    assert not in_progress(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        assert in_progress(tmp_path)
        assert in_progress(tmp_path, patience_s=0.3)
    assert not in_progress(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path):
            looked = pool.submit(in_progress, tmp_path, 30.0)
        assert not looked.result()
