"""A run directory has one writer. Whoever waits for it says so, and then looks again at what is
there."""

import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from helpers import execute

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import SUMS
from forever.launch.fleet import Fleet
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress, locked
from forever.sweeps.files import load_sweep
from forever.sweeps.search import find_search
from forever.sweeps.sweep import Sweep

ME = f"process {os.getpid()} on {socket.gethostname()}"
SINCE = r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d"


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
        message = f"waiting for {re.escape(ME)}{SINCE}, which holds {re.escape(str(path))}\n"
        assert re.fullmatch(message, told)
        yield run


def test_what_another_process_left_behind_meanwhile_is_looked_at(
    small_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it finished is not repeated, and what it began may be another run."""
    finished, path, other = (tmp_path / name for name in ("finished", "run", "other"))
    execute(small_config, finished)
    with waiting(small_config, path, capsys) as run:
        for name in (SUMS, "config.yaml", "result.json"):
            shutil.copy(finished / name, path)
    assert run.result() == RunDirectory(finished).finished()
    assert sorted(file.name for file in path.iterdir()) == [
        ".lock",
        SUMS,
        "config.yaml",
        "result.json",
    ]
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
        for name in (SUMS, "config.yaml", "result.json"):
            shutil.copy(finished / name, path)
    assert run.result() == RunDirectory(finished).finished()


def test_waiting_has_an_end(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forever.runs.lock._PATIENCE_S", 0.3)
    message = f"is held by {re.escape(ME)}{SINCE}; it has one writer: stop that one, wait for"
    with locked(tmp_path), pytest.raises(InputError, match=message):
        execute(small_config, tmp_path)
    with locked(tmp_path):
        pass


# ---- a lock that the file system does not tell to everybody


class Elsewhere:
    """A holder on another machine, which this one's operating system does not know of."""

    def __init__(self, folder: Path) -> None:
        self.path, self.over = folder / ".lock", Event()
        self.path.write_text("process 7 on elsewhere since 2026-01-01 00:00:00+00:00")
        self.toucher = Thread(target=self.touch)

    def touch(self) -> None:
        for second in count(1):
            os.utime(self.path, (second, second))
            if self.over.wait(0.001):
                return

    def __enter__(self) -> None:
        self.toucher.start()

    def __exit__(self, *error: Any) -> None:
        self.over.set()
        self.toucher.join()


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forever.runs.lock._TOUCH_EVERY_S", 0.05)


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * 10**6])
def test_a_lock_that_holds_anything_is_a_lock(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".lock").write_bytes(content)
    with locked(tmp_path):
        assert in_progress(tmp_path)
        (tmp_path / ".lock").write_bytes(content)
        with pytest.raises(InputError, match="is held by") as refusal, locked(tmp_path, True, 0):
            pass
    assert len(str(refusal.value)) < 1000


@pytest.mark.usefixtures("hurry")
def test_a_holder_on_another_machine_is_seen_by_its_touch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "is held by process 7 on elsewhere since 2026-01-01"
    with (
        Elsewhere(tmp_path),
        pytest.raises(InputError, match=message),
        locked(tmp_path, patience_s=0),
    ):
        pass
    with locked(tmp_path, patience_s=0):  # it was killed, and its name is still there
        assert (tmp_path / ".lock").read_text().startswith(ME)
    assert capsys.readouterr().err.count("was held by process 7 on elsewhere") == 2
    assert (tmp_path / ".lock").read_text() == ""


@pytest.mark.usefixtures("hurry")
def test_a_file_system_without_locks_keeps_two_apart_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr("forever.runs.lock._WATCHES", 10)
    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    refused = pytest.raises(InputError, match="is held by")
    with locked(tmp_path), refused, locked(tmp_path, patience_s=0):
        pass
    with locked(tmp_path, patience_s=0):
        pass


# ---- sweeps


def test_a_second_sweep_of_a_name_leaves_and_takes_nothing_along(
    small_config: RunConfig, tmp_path: Path
) -> None:
    """Also a search: what Ray Tune keeps in the folder is the other's."""
    pytest.importorskip("ray")
    from forever.launch.ray_search import run_search
    from forever.launch.ray_tune import run_sweep

    kept = tmp_path / ".tune" / "experiment" / "state.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    sweep = Sweep("toys", small_config, {"base": {}})
    search = find_search(load_sweep("search"), small_config)
    with locked(tmp_path):
        with pytest.raises(InputError, match=f"is held by {re.escape(ME)}"):
            run_sweep(sweep, tmp_path)
        with pytest.raises(InputError, match=f"is held by {re.escape(ME)}"):
            run_search(search, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".tune"]
    assert kept.read_text() == "{}"


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
