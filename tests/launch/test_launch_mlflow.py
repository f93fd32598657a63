"""MLflow shows what run directories hold: everything, once, and later if the server was away."""

import json
import math
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from threading import Thread, current_thread, main_thread
from typing import Any

import pytest

pytest.importorskip("mlflow")
from mlflow import MlflowClient
from mlflow.entities import Run

from forever.cli.commands import mirrored
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch import mlflow_tracker
from forever.launch.local import Placement, run_local
from forever.launch.mlflow_store import Mirror, keeps, tracking_uri
from forever.launch.mlflow_tracker import (
    MlflowTracker,
    close_sweep,
    mirrored_sweep,
    push_sweep,
    sync,
)
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.runs.tracking import Tracker
from forever.sweeps.sweep import Sweep

pytestmark = [
    # MLflow uses deprecated parts of its dependencies.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
    # It leaves database connections to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables: making them takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments(max_results=1)
    return path


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture(scope="module")
def finished(base_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no tracker heard of."""
    path = tmp_path_factory.mktemp("finished") / "run"
    run_local(base_config, path)
    return path


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def runs(uri: str) -> list[Run]:
    client = MlflowClient(uri)
    return client.search_runs([entry.experiment_id for entry in client.search_experiments()])


def histories(uri: str, run: Run) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for key in run.data.metrics:
        points = MlflowClient(uri).get_metric_history(run.info.run_id, key)
        found[key] = sorted((point.step, point.value) for point in points)
    return found


def artifacts(uri: str, run: Run) -> set[str]:
    return {file.path for file in MlflowClient(uri).list_artifacts(run.info.run_id)}


def datasets(run: Run) -> dict[str, str]:
    """The digests of the datasets of a run, each listed once."""
    inputs = run.inputs.dataset_inputs if run.inputs else []
    digests = {entry.dataset.name: entry.dataset.digest for entry in inputs}
    assert len(digests) == len(inputs)
    return digests


def test_a_run_is_shown_completely(uri: str, folder: Path) -> None:
    assert sync(folder, uri) == 1
    (run,) = runs(uri)
    result = json.loads((folder / "result.json").read_text())
    assert run.info.status == "FINISHED"
    assert run.data.tags["forever.run_key"] == folder.name
    assert (run.data.tags["method"], run.data.tags["seed"]) == ("forever", "0")
    assert run.data.params["optim.lr"] == "0.01"
    assert run.data.params["method.warmup_steps"] == "3"
    assert run.data.metrics["final/op"] == result["op"]
    days = [note["day_7"] or math.inf for note in result["notes"].values()]
    assert run.data.metrics.get("final/day_7", math.inf) == median(days)
    history = histories(uri, run)
    assert history["acc/colour"] == [(j + 1, result["matrix"][0][j]) for j in range(3)]
    assert history["acc/weight"] == [(3, result["matrix"][2][2])]
    assert [step for step, _ in history["op"]] == [1, 2, 3]
    assert history["op"][-1][1] == result["op"]
    assert len(history["train/loss"]) == result["updates"]["task"]  # short tasks are shown whole
    fired = sum(sum(kinds.values()) for kinds in result["events"].values())
    assert len(history["replay/beta"]) == fired
    assert datasets(run) == result["data"]
    files = {"matrix.json", "matrix.csv", "config.yaml", "result.json", "environment.json"}
    if find_spec("matplotlib"):
        files |= {"matrix.png", "timeline.png"}
    assert artifacts(uri, run) == files
    assert (folder.parent / "mlartifacts").is_dir()


def test_sending_again_adds_nothing(uri: str, folder: Path, tmp_path: Path) -> None:
    """A copy of the folder is the same run. Another run of the same configuration is not."""
    sync(folder, uri)
    (run,) = runs(uri)
    before = histories(uri, run)
    MlflowClient(uri).update_run(run.info.run_id, "RUNNING")  # as if the last call had been cut off
    shutil.copytree(folder, tmp_path / "from_the_cluster")
    assert sync(tmp_path, uri) == 2
    (again,) = runs(uri)
    assert histories(uri, again) == before
    assert again.info.status == "FINISHED"
    assert len(datasets(again)) == 3
    shutil.copytree(folder, tmp_path / "other", ignore=shutil.ignore_patterns("mlflow.json"))
    sync(tmp_path / "other", uri)
    assert len(runs(uri)) == 2


class Stop(BaseException):
    """Not an Exception, so that it gets past the shield around trackers: a kill."""


class Killer(Tracker):
    def __init__(self, at: int) -> None:
        self.left = at

    def step(self, line: Mapping[str, Any]) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stop


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(
    uri: str,
    tmp_path: Path,
    base_config: RunConfig,
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forever.launch.mlflow_tracker._EVERY_S", 0.0)  # send every update
    often = Placement(checkpoint_s=0.0)
    for at in (5, 21, 40):
        trackers = [MlflowTracker(uri), Killer(at)]
        with pytest.raises(Stop):
            run_local(base_config, tmp_path / "r", resume=True, trackers=trackers, placement=often)
    (run,) = runs(uri)
    assert run.info.status == "RUNNING"
    result = run_local(base_config, tmp_path / "r", resume=True, trackers=[MlflowTracker(uri)])
    (run,) = runs(uri)
    assert run.info.status == "FINISHED"
    history = histories(uri, run)
    for key, points in history.items():
        assert len({step for step, _ in points}) == len(points), key
    assert len(history["train/loss"]) == result["updates"]["task"]
    # The same as if it had been sent at once, from an uninterrupted run.
    whole = tmp_path / "whole"
    shutil.copytree(finished, whole)
    sync(whole, uri)
    other = next(r for r in runs(uri) if r.info.run_id != run.info.run_id)
    assert histories(uri, other) == history


@pytest.mark.parametrize("hangs", [False, True], ids=["refusing", "hanging"])
def test_a_server_that_is_away_costs_seconds_and_loses_nothing(
    hangs: bool,
    uri: str,
    tmp_path: Path,
    base_config: RunConfig,
    finished: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []
    push = MlflowTracker._push

    def timed(tracker: MlflowTracker) -> None:
        begun = time.perf_counter()
        push(tracker)
        waited.append(time.perf_counter() - begun)

    monkeypatch.setattr(MlflowTracker, "_push", timed)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if hangs:  # it takes connections and never answers
            server.listen(16)
        away = f"http://127.0.0.1:{server.getsockname()[1]}"
        result = run_local(base_config, tmp_path / "r", trackers=[MlflowTracker(away)])
    assert sum(waited) < 20
    assert capsys.readouterr().err.count("MLflow does not answer") == 1
    assert result["matrix"] == json.loads((finished / "result.json").read_text())["matrix"]
    assert sync(tmp_path / "r", uri) == sync(tmp_path / "r", uri) == 1
    (run,) = runs(uri)
    assert len(histories(uri, run)["train/loss"]) == result["updates"]["task"]


def test_an_unfinished_run_is_shown_as_far_as_it_got(uri: str, folder: Path) -> None:
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "predictions" / "3")
    (folder / "predictions" / "2" / "2.jsonl").unlink()
    sync(folder, uri)
    (run,) = runs(uri)
    assert run.info.status == "KILLED"
    assert [step for step, _ in histories(uri, run)["op"]] == [1]


@pytest.fixture
def toys(folder: Path, tmp_path: Path, base_config: RunConfig) -> Path:
    """A sweep whose two runs have finished."""
    sweep = Sweep("toys", base_config, {"base": {}, "slow": {"optim.lr": 1e-4}})
    sweep.write_manifest(tmp_path / "toys")
    for trial in sweep.trials():
        shutil.copytree(folder, tmp_path / "toys" / trial.key)
    return tmp_path / "toys"


def statuses(uri: str) -> dict[str, str]:
    """Of the parent run of the sweep, and of the runs below it by variant."""
    found = {run.data.tags.get("variant", "parent"): run for run in runs(uri)}
    above = {run.data.tags.get("mlflow.parentRunId") for run in found.values()}
    assert above <= {None, found["parent"].info.run_id}
    return {name: run.info.status for name, run in found.items()}


@pytest.mark.parametrize(
    ("state", "child", "parent"),
    [
        ("failed", "FAILED", "FAILED"),
        ("stopped", "KILLED", "FINISHED"),
        ("interrupted", "KILLED", "KILLED"),
    ],
)
def test_a_sweep_ends_as_its_runs_do(
    state: Any, child: str, parent: str, uri: str, toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forever.launch.mlflow_tracker._PATIENCE_S", 0.1)
    (slow,) = toys.glob("slow*")
    RunDirectory(slow).result.unlink()
    if state != "interrupted":
        RunDirectory(slow).end(state, "why")
    push_sweep(toys, uri, {})
    assert statuses(uri) == {"parent": "RUNNING", "base": "FINISHED"}
    with locked(slow):  # another process trains it
        push_sweep(toys, uri, {})
        assert statuses(uri) == {"parent": "RUNNING", "base": "FINISHED", "slow": "RUNNING"}
        close_sweep(toys, uri)
        assert statuses(uri)["slow"] == "RUNNING"
    for _ in range(2):
        close_sweep(toys, uri)
        assert statuses(uri) == {"parent": parent, "slow": child, "base": "FINISHED"}
    assert sync(toys, uri) == 2
    assert statuses(uri) == {"parent": parent, "slow": child, "base": "FINISHED"}


def test_a_sweep_is_shown_while_it_runs(
    uri: str, toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is written down only after it began, as a search's."""
    monkeypatch.setattr("forever.launch.mlflow_tracker._EVERY_S", 0.01)
    (slow,) = toys.glob("slow*")
    result = (slow / "result.json").rename(toys / "result")
    manifest = (toys / "sweep.json").rename(toys / "manifest")
    said: list[str] = []
    with mirrored_sweep(toys, uri, said.append):
        with locked(slow):
            manifest.rename(toys / "sweep.json")
            wait_until(lambda: len(runs(uri)) == 3)
            assert statuses(uri) == {"parent": "RUNNING", "base": "FINISHED", "slow": "RUNNING"}
            result.rename(slow / "result.json")
        wait_until(lambda: statuses(uri)["slow"] == "FINISHED")
    assert statuses(uri) == dict.fromkeys(("parent", "base", "slow"), "FINISHED")
    assert said == []


def test_a_run_that_has_ended_is_sent_at_once(uri: str, toys: Path) -> None:
    (slow,) = toys.glob("slow*")
    result = (slow / "result.json").rename(toys / "result")
    with mirrored_sweep(toys, uri, print) as tell:
        with locked(slow):
            wait_until(lambda: len(runs(uri)) == 3 and statuses(uri)["slow"] == "RUNNING")
            result.rename(slow / "result.json")
        tell()  # or it would take half a minute
        wait_until(lambda: statuses(uri)["slow"] == "FINISHED", within_s=15)


def test_a_finished_run_is_sent_once_and_an_unreadable_one_is_named(
    uri: str, toys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(Mirror, "_draw", lambda mirror, *_: sent.append(mirror.directory.path.name))
    shutil.copytree(next(toys.glob("slow*")), toys / "damaged")
    (toys / "damaged" / "config.yaml").write_text("model: {name: [}")
    mirrors: dict[Path, Mirror | None] = {}
    for _ in range(3):
        push_sweep(toys, uri, mirrors)
    close_sweep(toys, uri)
    assert sorted(name.partition("-")[0] for name in sent) == ["base", "slow"]
    assert statuses(uri) == dict.fromkeys(("parent", "base", "slow"), "FINISHED")
    errors = capsys.readouterr().err.splitlines()
    assert all(line.startswith(f"{toys}/damaged is not shown in MLflow: ") for line in errors)
    assert len(errors) == 2  # while the sweep runs, and at its end


def wait_until(happened: Callable[[], bool], within_s: float = 60) -> None:
    give_up = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_a_sweep_outlives_a_server_that_is_away(
    toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left alone for a while, also when a run ends."""
    tried: list[Path] = []
    monkeypatch.setattr(
        "forever.launch.mlflow_tracker.push_sweep",
        lambda *told: (tried.append(told[0]), push_sweep(*told)),
    )
    said: list[str] = []
    with mirrored_sweep(toys, "http://127.0.0.1:9", said.append) as tell:  # nothing listens there
        wait_until(lambda: bool(said))
        tell()
        time.sleep(0.5)
    assert len(tried) == 1
    (line,) = said
    assert line.startswith(f"MLflow does not answer, `forever sync {toys}` sends it later (")


def test_sync_makes_up_for_a_sweep_that_no_server_heard_of(
    uri: str, toys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (training,) = toys.glob("slow*")
    result = (training / "result.json").rename(toys / "result")
    with locked(training):
        assert sync(toys, uri) == 1
    assert f"{training} is in progress and left out" in capsys.readouterr().err
    assert "slow" not in statuses(uri)
    result.rename(training / "result.json")
    for _ in range(2):
        assert sync(toys, uri) == 2
    assert statuses(uri) == dict.fromkeys(("parent", "base", "slow"), "FINISHED")
    (parent,) = (run for run in runs(uri) if "forever.sweep" in run.data.tags)
    assert artifacts(uri, parent) == {"sweep.json"}


def test_a_deleted_experiment_is_named(uri: str, folder: Path) -> None:
    client = MlflowClient(uri)
    number = client.create_experiment("forever")
    client.delete_experiment(number)
    with pytest.raises(InputError, match=rf"forever' was deleted; .*--experiment-id {number}"):
        sync(folder, uri)


def test_the_default_store_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///here.db")
    assert tracking_uri() == f"sqlite:///{tmp_path}/here.db"
    assert tracking_uri("sqlite:///there.db") == f"sqlite:///{tmp_path}/there.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert tracking_uri() == "http://127.0.0.1:5000"


def test_curves_are_thinned_alike_however_long_the_task_is() -> None:
    kept = [step for step in range(1, 1251) if keeps(step)]
    assert len(kept) == 199
    assert kept[:64] == list(range(1, 65))


def test_ctrl_c_finds_mlflow_loaded_and_its_database_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of either could not be used to say how the run ended."""
    threads: list[Thread] = []
    load = mlflow_tracker.Store
    monkeypatch.setattr(
        mlflow_tracker, "Store", lambda uri: (threads.append(current_thread()), load(uri))
    )
    uri = f"sqlite:///{tmp_path}/new.db"
    with mirrored(tmp_path / "run", uri):
        assert threads[0] is not main_thread()  # which alone hears of Ctrl-C
        assert (tmp_path / "new.db").is_file()
        assert {"mlflow", "mlflow.store.tracking.sqlalchemy_store"} <= set(sys.modules)
