"""Several processes on one store of MLflow and one folder: nothing is lost, nothing comes twice."""

import multiprocessing
import shutil
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from marks import MLFLOW_WARNS
from stored import histories, runs

pytest.importorskip("mlflow")

from forever.files import read_lines
from forever.launch.mlflow.sync import sync
from forever.runs.directory import RunDirectory
from forever.sweeps.sweep import Sweep

pytestmark = [
    *MLFLOW_WARNS,
    pytest.mark.slow,
    # From a process with threads, as the one that runs the tests, Python 3.12 warns of forks.
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

COUNT = 4
# Loaded once, in the process of which the others are copies.
LIBRARIES = ["mlflow.store.tracking.sqlalchemy_store", "forever.report.figures"]


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*LIBRARIES, "forever.launch.mlflow.sync"])
    return context


def at_once(context: Any, work: Callable[..., None], *arguments: tuple[Any, ...]) -> list[int]:
    """Call `work` with each of the `arguments` in a process of its own, all at the same moment;
    their exit codes."""
    barrier = context.Barrier(len(arguments))
    started = []
    for own in arguments:
        process = context.Process(target=work, args=(barrier, *own))
        process.start()
        started.append(process)
    for process in started:
        process.join(300)
    return [process.exitcode for process in started]


def send(barrier: Any, folder: Path, uri: str) -> None:
    barrier.wait(120)
    sync(folder, uri)


def test_four_syncs_into_a_fresh_store_send_everything_once(
    processes: Any, finished: Path, tmp_path: Path
) -> None:
    """Two of a run and two of a sweep."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    shutil.copytree(finished, tmp_path / "run")
    sweep = Sweep("toys", RunDirectory(finished).read_config(), {"base": {}})
    sweep.write_manifest(tmp_path / "toys")
    shutil.copytree(finished, tmp_path / "toys" / sweep.trials()[0].key)
    tasks = [(tmp_path / name, uri) for name in ("run", "run", "toys", "toys")]
    assert at_once(processes, send, *tasks) == [0] * COUNT
    everything = runs(uri)
    assert [run.info.status for run in everything] == ["FINISHED"] * 3
    updates = read_lines(finished / "steps.jsonl")
    count = sum(line["kind"] == "task" for line in updates)
    for run in everything:
        history = histories(uri, run)
        for key, points in history.items():
            assert len({step for step, _ in points}) == len(points), key
        if "forever.sweep" not in run.data.tags:
            assert len(history["train/loss"]) == count
