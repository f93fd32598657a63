"""MLflow shows what run directories hold: everything, once, and later if the server was away."""

import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

import pytest
import requests
from commands import Call
from helpers import flip, wait_until
from made_up import base_run, make_up_run
from marks import MLFLOW_WARNS
from stored import artifacts, histories, runs

pytest.importorskip("mlflow")
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import Placement, run_local
from forever.launch.mlflow import tracker as mlflow_tracker
from forever.launch.mlflow.mirror import Mirror, keeps, metric_key, push_run
from forever.launch.mlflow.notes import compared_with
from forever.launch.mlflow.store import tracking_uri
from forever.launch.mlflow.sync import sync
from forever.launch.mlflow.tracker import close_sweep, mirrored_run, mirrored_sweep, push_sweep
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.runs.tracking import Tracker
from forever.sweeps.sweep import Sweep, read_manifest

pytestmark = MLFLOW_WARNS


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine there is time to send all."""
    for name in ("_PATIENCE_S", "_SWEEP_PATIENCE_S"):
        monkeypatch.setattr(mlflow_tracker, name, 60.0)


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
        files |= {"matrix.png", "timeline.png", "overview.png"}
    assert artifacts(uri, run) == files
    assert (folder.parent / "mlartifacts").is_dir()


def test_sync_says_what_it_sent_and_how_to_look(uri: str, folder: Path, call: Call) -> None:
    code, printed, _ = call("sync", str(folder), "--mlflow", uri)
    assert (code, printed) == (0, f"sent 1 run\nnext  forever ui {folder}\n")


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


def test_a_dataset_that_another_process_adds_in_the_same_moment_is_no_failure(
    uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow looks for it, does not find it, and cannot add it."""
    send, refused = MlflowClient.log_inputs, ["UNIQUE constraint failed", "no such column"]

    def log_inputs(*arguments: Any) -> None:
        if refused:
            raise MlflowException(refused.pop(0))
        send(*arguments)

    monkeypatch.setattr(MlflowClient, "log_inputs", log_inputs)
    with pytest.raises(InputError, match="no such column"):
        sync(folder, uri)
    refused[:] = ["duplicate key value violates unique constraint"]
    sync(folder, uri)
    (run,) = runs(uri)
    assert len(datasets(run)) == 3


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
    monkeypatch.setattr(mlflow_tracker, "_EVERY_S", 0.0)  # send again and again
    often, path = Placement(checkpoint_s=0.0), tmp_path / "r"
    for at in (5, 21, 40):
        with suppress(Stop), mirrored_run(path, uri) as tracker:
            trackers = [tracker, Killer(at)]
            run_local(base_config, path, resume=True, trackers=trackers, placement=often)
        (run,) = runs(uri)
        assert run.info.status == "KILLED"
    with mirrored_run(path, uri) as tracker:
        result = run_local(base_config, path, resume=True, trackers=[tracker])
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


def test_a_run_is_running_while_it_trains(uri: str, folder: Path) -> None:
    (folder / "result.json").unlink()
    with mirrored_run(folder, uri):
        wait_until(lambda: [run.info.status for run in runs(uri)] == ["RUNNING"])
    assert [run.info.status for run in runs(uri)] == ["KILLED"]


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
    monkeypatch.setattr(mlflow_tracker, "_LETS_GO_S", 0.1)
    (slow,) = toys.glob("slow*")
    RunDirectory(slow).result.unlink()
    if state != "interrupted":
        RunDirectory(slow).end(state, "why")
    shown = {"parent": "RUNNING", "base": "FINISHED"}
    ended = {} if state == "interrupted" else {"slow": child}
    push_sweep(toys, uri, set())
    assert statuses(uri) == shown | ended
    RunDirectory(slow).ended.unlink(missing_ok=True)
    with locked(slow):  # another process goes on with it
        push_sweep(toys, uri, set())
        assert statuses(uri) == shown | {"slow": "RUNNING"}
        close_sweep(toys, uri, set())
        assert statuses(uri)["slow"] == "RUNNING"
    if ended:
        RunDirectory(slow).end(state, "why")
    for _ in range(2):
        close_sweep(toys, uri, set())
        assert statuses(uri) == {"parent": parent, "slow": child, "base": "FINISHED"}
    assert sync(toys, uri) == 2
    assert statuses(uri) == {"parent": parent, "slow": child, "base": "FINISHED"}


def test_a_sweep_is_shown_while_it_runs(
    uri: str, toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is written down only after it began, as a search's."""
    monkeypatch.setattr("forever.launch.mlflow.tracker._EVERY_S", 0.01)
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


def test_the_table_of_a_sweep_that_goes_on_has_every_run_within_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends soon after a table is in the next one, though none ends then."""
    now, tables = 0.0, list[float]()
    looks: list[Any] = []

    @contextmanager
    def by_hand(folder: Path, send: Any, say: Any, patience_s: float) -> Iterator[Any]:
        looks.append(send)
        yield Event()

    def run_ends(folder: Path, uri: str, sent: set[tuple[Path, str]]) -> None:
        if now in (180.0, 2400.0):
            sent.add((folder, str(now)))

    monkeypatch.setattr(mlflow_tracker, "_sending", by_hand)
    monkeypatch.setattr(mlflow_tracker, "push_sweep", run_ends)
    monkeypatch.setattr(mlflow_tracker, "push_table", lambda folder, uri: tables.append(now))
    monkeypatch.setattr(mlflow_tracker.time, "monotonic", lambda: now)
    with mirrored_sweep(tmp_path, "no address", print):
        for minute in range(60):
            now = 60.0 * minute
            looks[0](False)
    assert tables == [660.0, 2400.0]


def test_a_sweep_has_failed_with_a_run_that_never_began(uri: str, toys: Path) -> None:
    """One that was refused has no folder that could say so."""
    (slow,) = toys.glob("slow*")
    shutil.rmtree(slow)
    push_sweep(toys, uri, set())
    close_sweep(toys, uri, set())
    assert statuses(uri) == {"parent": "KILLED", "base": "FINISHED"}
    close_sweep(toys, uri, set(), {slow.name: "no model weights"})
    assert statuses(uri) == {"parent": "FAILED", "base": "FINISHED"}


def test_a_trial_is_compared_with_its_reference_where_there_is_one(tmp_path: Path) -> None:
    """A folder that was used again with another base has two, which the manifest does not tell
    apart."""
    variants = {"base": {}, "every": {"method.days": "fixed_interval"}}
    first, again = (
        Sweep("days", base_run(**{"optim.lr": rate}), variants, (0,)) for rate in (0.5, 0.01)
    )
    base, every = first.trials()
    first.write_manifest(tmp_path)
    manifest = read_manifest(tmp_path)
    by_key = {trial["key"]: trial for trial in manifest["trials"]}
    found = compared_with(manifest, by_key[every.key], tmp_path)
    assert found is not None
    assert found.path == tmp_path / base.key
    assert compared_with(manifest, by_key[base.key], tmp_path) is None
    again.write_manifest(tmp_path)
    manifest = read_manifest(tmp_path)
    assert len(manifest["trials"]) == 4
    for trial in manifest["trials"]:
        assert compared_with(manifest, trial, tmp_path) is None


def test_a_finished_run_is_sent_once_and_an_unreadable_one_is_named(
    uri: str, toys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(Mirror, "_draw", lambda run: drawn.append(run.directory.path.name))
    shutil.copytree(next(toys.glob("slow*")), toys / "damaged")
    (toys / "damaged" / "config.yaml").write_text("model: {name: [}")
    sent: set[tuple[Path, str]] = set()
    for _ in range(3):
        push_sweep(toys, uri, sent)
    close_sweep(toys, uri, sent)
    assert sorted(name.partition("-")[0] for name in drawn) == ["base", "slow"]
    assert statuses(uri) == dict.fromkeys(("parent", "base", "slow"), "FINISHED")
    errors = capsys.readouterr().err.splitlines()
    assert all(line.startswith(f"{toys}/damaged is not shown in MLflow: ") for line in errors)
    assert len(errors) == 1


def test_a_server_that_refuses_a_file_is_asked_again(
    uri: str, toys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What requests raises is an OSError, and says nothing of the run."""
    push, refusals = Mirror.push, iter([requests.HTTPError("503 Server Error")])

    def refused_once(run: Mirror) -> None:
        for refusal in refusals:
            raise refusal
        push(run)

    monkeypatch.setattr(Mirror, "push", refused_once)
    sent: set[tuple[Path, str]] = set()
    with pytest.raises(requests.HTTPError, match="503"):
        push_sweep(toys, uri, sent)
    push_sweep(toys, uri, sent)
    assert statuses(uri) == {"parent": "RUNNING", "base": "FINISHED", "slow": "FINISHED"}
    assert not capsys.readouterr().err


def test_an_end_that_cannot_be_read_keeps_no_other_run_from_mlflow(
    uri: str, toys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (slow,) = toys.glob("slow*")
    (slow / "result.json").unlink()
    (slow / "ended.json").write_text("{")
    sent: set[tuple[Path, str]] = set()
    push_sweep(toys, uri, sent)
    close_sweep(toys, uri, sent)
    assert statuses(uri)["base"] == "FINISHED"
    assert statuses(uri)["parent"] == "FAILED"
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"{slow} is not shown in MLflow: {slow}/ended.json")


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
    assert "sweep.json" in artifacts(uri, parent)


def test_sync_goes_on_after_a_run_that_the_server_refuses(
    uri: str, toys: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it answers: a server that is away is asked once."""
    (refused,) = toys.glob("base*")  # the first one
    asked: list[Path] = []

    def push(run: Path, uri: str, over: bool) -> None:
        asked.append(run)
        if run == refused:
            raise MlflowException("a value is too long")
        push_run(run, uri, over)

    monkeypatch.setattr("forever.launch.mlflow.sync.push_run", push)
    with pytest.raises(InputError, match=r"1 of 2 runs in .* could not be sent"):
        sync(toys, uri)
    error = capsys.readouterr().err
    assert f"{refused} is left out: MlflowException: a value is too long" in error
    assert statuses(uri)["slow"] == "FINISHED"

    def away(run: Path, uri: str, over: bool) -> None:
        asked.append(run)
        raise MlflowException("no answer")

    def nobody(*_: Any, **__: Any) -> None:
        raise MlflowException("no answer")

    asked.clear()
    monkeypatch.setattr("forever.launch.mlflow.sync.push_run", away)
    monkeypatch.setattr("mlflow.MlflowClient.search_experiments", nobody)
    with pytest.raises(InputError, match=r"MLflow at .* fails \(MlflowException: no answer\)"):
        sync(toys, uri)
    assert len(asked) == 1


def send_all_but(damaged: Path, folder: Path, uri: str, capsys: Any) -> None:
    """Send a folder of two runs, one of which is damaged: it is named, and the other arrives."""
    with pytest.raises(InputError, match=r"1 of 2 runs in .* could not be sent"):
        sync(folder, uri)
    assert f"{damaged} is left out: {damaged}" in capsys.readouterr().err
    finished = [run for run in runs(uri) if run.info.status == "FINISHED"]
    keys = {run.data.tags["forever.run_key"] for run in finished if "method" in run.data.tags}
    assert keys == {run.parent.name for run in folder.glob("*/config.yaml")} - {damaged.name}


@pytest.mark.parametrize(
    "name", ["steps.jsonl", "events.jsonl", "predictions/2/1.jsonl", "config.yaml"]
)
def test_a_damaged_run_is_not_sent_and_the_others_are(
    uri: str, toys: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (slow,) = toys.glob("slow*")
    flip(slow / name)
    send_all_but(slow, toys, uri, capsys)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Two runs of the first release, whose files have no sums."""
    for seed in (0, 1):
        make_up_run(tmp_path / f"old/s{seed}", "base", base_run(seed=seed))
    return tmp_path / "old"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mlflow.json", "{}"),
        ("mlflow.json", '{"id": "a\'b"}'),
        ("mlflow.json", '{"id": "ab", "run": 3}'),
        ("steps.jsonl", '{"task": "a", "kind": "task", "step": "1"}\n'),
        ("result.json", '{"schema_version": 1}'),
    ],
)
def test_a_strange_run_is_named_and_the_others_are_sent(
    uri: str, old: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (old / "s0" / name).write_text(text)
    send_all_but(old / "s0", old, uri, capsys)


def test_what_an_earlier_release_did_not_write_is_not_missed(uri: str, old: Path) -> None:
    """Such as `beta` in the journal, of which made-up runs know nothing, or `kind`."""
    result = old / "s0" / "result.json"
    content = json.loads(result.read_text())
    for key in ("fwt", "data"):
        content.pop(key, None)
    result.write_text(json.dumps(content))
    (old / "s1" / "steps.jsonl").write_text('{"task": "a"}\n')
    assert sync(old, uri) == 2


def test_a_missing_driver_is_named(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(InputError, match="pymysql, which is not here; install it") as refused:
        sync(old, "mysql+pymysql://me:password@127.0.0.1:9/runs")
    assert "password" not in str(refused.value)


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


def test_different_names_keep_different_keys() -> None:
    assert metric_key("acc/colour one: two.3-4") == "acc/colour one: two.3-4"
    names = ["acc/a$", "acc/a#", "acc/é", "acc/\x1b[31m", *(f"acc/{'x' * 300}{n}" for n in "12")]
    keys = [metric_key(name) for name in names]
    assert len({*keys}) == len(names)
    assert max(map(len, keys)) == 250
