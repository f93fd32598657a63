"""A run's folder has one writer. A second one waits, and then reads again what is there."""

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import execute

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress, locked
from forever.sweeps.files import load_sweep
from forever.sweeps.search import find_search
from forever.sweeps.sweep import Sweep

FILES = ("config.yaml", "manifest.json", "result.json")


@contextmanager
def waiting(
    config: RunConfig, path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator["Future[dict[str, Any]]"]:
    """A run that found its folder in use, and waits while the block is executed."""
    with ThreadPoolExecutor(1) as pool, locked(path):
        run = pool.submit(execute, config, path)
        while str(path) not in capsys.readouterr().err:
            assert not run.done()
            time.sleep(0.01)
        yield run


def test_files_that_another_process_wrote_meanwhile_count(
    small_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that it finished is not repeated, and one that it began may be another run."""
    finished, path, other = (tmp_path / name for name in ("finished", "run", "other"))
    execute(small_config, finished)
    with waiting(small_config, path, capsys) as run:
        for name in FILES:
            shutil.copy(finished / name, path)
    assert run.result() == RunDirectory(finished).finished()
    assert sorted(file.name for file in path.iterdir()) == sorted([".lock", *FILES])
    with waiting(small_config.override({"seed": 1}), other, capsys) as run:
        shutil.copy(finished / "config.yaml", other)
    with pytest.raises(InputError, match="seed is 0 there, 1 here"):
        run.result()


def test_waiting_has_an_end(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forever.runs.lock.PATIENCE_S", 0.3)
    with locked(tmp_path), pytest.raises(InputError, match=str(tmp_path)):
        execute(small_config, tmp_path)
    with locked(tmp_path):
        pass


def test_a_second_sweep_of_a_name_leaves_and_removes_nothing(
    small_config: RunConfig, tmp_path: Path
) -> None:
    """Also a search: Ray Tune's files in the folder are the other's."""
    pytest.importorskip("ray")
    from forever.launch.start import run_search, run_sweep

    kept = tmp_path / ".tune" / "experiment" / "state.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    with locked(tmp_path):
        with pytest.raises(InputError):
            run_sweep(Sweep("toys", small_config, {"base": {}}), tmp_path)
        with pytest.raises(InputError):
            run_search(find_search(load_sweep("search"), small_config), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".tune"]
    assert kept.read_text() == "{}"


def test_probing_takes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    assert not in_progress(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        assert in_progress(tmp_path)
        assert in_progress(tmp_path, patience_s=0.3)
    assert not in_progress(tmp_path)
