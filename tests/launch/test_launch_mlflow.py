"""MLflow shows what run directories hold: everything, once, and later if the server was away."""

import csv
import io
import json
import math
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from commands import Call
from helpers import flip, wait_until
from made_up import base_run, copy_run, make_up, make_up_run
from marks import MLFLOW_WARNS
from stored import artifacts, by_name, histories, runs

pytest.importorskip("mlflow")
from mlflow import MlflowClient
from mlflow.artifacts import load_text
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import Placement, run_local
from forever.launch.mlflow import tracker as mlflow_tracker
from forever.launch.mlflow.mirror import keeps, points_of, slugged
from forever.launch.mlflow.pages import LONGEST, NOTE, differing, run_note, sweep_note
from forever.launch.mlflow.store import Place, Store, place_of, store_of, tracking_uri
from forever.launch.mlflow.sweep import close_sweep, push_overview, push_sweep
from forever.launch.mlflow.sync import sync
from forever.launch.mlflow.tracker import mirrored_run, mirrored_sweep
from forever.report.study import read_study
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.runs.tracking import Tracker
from forever.sweeps.sweep import Sweep

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


def no_point_twice(history: Mapping[str, list[tuple[int, float]]]) -> None:
    for key, points in history.items():
        assert len({step for step, _ in points}) == len(points), key


def test_a_run_is_shown_completely(uri: str, folder: Path, call: Call) -> None:
    assert call("sync", str(folder), "--mlflow", uri)[0] == 0
    (run,) = runs(uri)
    result = json.loads((folder / "result.json").read_text())
    assert (run.info.status, run.info.run_name) == ("FINISHED", "forever on toy, seed 0")
    assert run.data.tags["forever.run_key"] == folder.name
    assert (run.data.tags["method"], run.data.tags["seed"]) == ("forever", "0")
    assert run.data.params["optim.lr"] == "0.01"
    assert run.data.metrics["final/op"] == result["op"]
    days = [note["day_7"] or math.inf for note in result["notes"].values()]
    assert run.data.metrics.get("final/day_7", math.inf) == median(days)
    # Scores are curves over the tasks; what is known once has step 0, and MLflow draws a bar.
    history = histories(uri, run)
    assert history["acc/colour"] == [(j + 1, result["matrix"][0][j]) for j in range(3)]
    assert history["acc/weight"] == [(3, result["matrix"][2][2])]
    assert [step for step, _ in history["op"]] == [1, 2, 3]
    final = [key for key in history if key.startswith("final/")]
    assert {step for key in final for step, _ in history[key]} == {0}
    assert len(history["train/loss"]) == result["updates"]["task"]  # short tasks are shown whole
    fired = sum(sum(kinds.values()) for kinds in result["events"].values())
    assert len(history["replay/beta"]) == fired
    assert datasets(run) == result["data"]
    files = {"matrix.json", "matrix.csv", "config.yaml", "result.json", "environment.json"}
    if find_spec("matplotlib"):
        files |= {"matrix.png", "timeline.png"}
    assert artifacts(uri, run) == files | {"adapter"}
    assert (folder.parent / "mlartifacts").is_dir()
    # The description has the scores and the matrix.
    note = run.data.tags[NOTE]
    assert f"**OP {result['op']:.1f} %**" in note
    row = next(line for line in note.splitlines() if line.startswith("| colour"))
    assert f"{result['matrix'][0][2]:.1f}" in row


def test_sending_again_adds_nothing(uri: str, folder: Path, tmp_path: Path) -> None:
    """A copy of the folder is the same run. Another run of the same configuration is not."""
    sync(folder, uri)
    (run,) = runs(uri)
    before = histories(uri, run)
    MlflowClient(uri).update_run(run.info.run_id, "RUNNING")  # as if the last call had been cut off
    MlflowClient(uri).update_run(run.info.run_id, name="mine")  # a run may be renamed
    shutil.copytree(folder, tmp_path / "from_the_cluster")
    assert sync(tmp_path, uri) == 2
    (again,) = runs(uri)
    assert histories(uri, again) == before
    assert (again.info.status, again.info.run_name) == ("FINISHED", "mine")
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


def test_a_resumed_run_continues_in_the_same_mlflow_run(
    uri: str,
    tmp_path: Path,
    base_config: RunConfig,
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mlflow_tracker, "_EVERY_S", 0.0)  # send again and again
    often, path = Placement(checkpoint_s=0.0), tmp_path / "r"
    for at in (5, 40):
        with suppress(Stop), mirrored_run(path, uri) as tracker:
            trackers = [tracker, Killer(at)]
            run_local(base_config, path, resume=True, trackers=trackers, placement=often)
        (run,) = runs(uri)
        assert run.info.status == "KILLED"
    with mirrored_run(path, uri) as tracker:
        run_local(base_config, path, resume=True, trackers=[tracker])
    (run,) = runs(uri)
    assert run.info.status == "FINISHED"
    no_point_twice(histories(uri, run))
    # The same as if it had been sent at once, from an uninterrupted run.
    whole = tmp_path / "whole"
    shutil.copytree(finished, whole)
    sync(whole, uri)
    other = next(r for r in runs(uri) if r.info.run_id != run.info.run_id)
    assert histories(uri, other) == histories(uri, run)


def test_an_unfinished_run_is_shown_as_far_as_it_got(uri: str, folder: Path) -> None:
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "predictions" / "3")
    (folder / "predictions" / "2" / "2.jsonl").unlink()
    with mirrored_run(folder, uri):
        wait_until(lambda: [run.info.status for run in runs(uri)] == ["RUNNING"])
    (run,) = runs(uri)
    assert run.info.status == "KILLED"
    assert [step for step, _ in histories(uri, run)["op"]] == [1]


@pytest.fixture
def toys(folder: Path, tmp_path: Path, base_config: RunConfig) -> Path:
    """A sweep whose two runs have finished."""
    sweep = Sweep("toys", base_config, {"base": {}, "slow": {"optim.lr": 1e-4}})
    sweep.write_manifest(tmp_path / "toys")
    for trial in sweep.trials():
        copy_run(folder, tmp_path / "toys" / trial.key, trial.config)
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
    state: Any, child: str, parent: str, uri: str, toys: Path
) -> None:
    (slow,) = toys.glob("slow*")
    RunDirectory(slow).result.unlink()
    with locked(slow):  # another process trains it
        push_sweep(toys, uri, set())
        assert statuses(uri) == {"parent": "RUNNING", "base": "FINISHED", "slow": "RUNNING"}
    if state != "interrupted":
        RunDirectory(slow).end(state, "why")
    for _ in range(2):
        close_sweep(toys, uri, set())
        assert statuses(uri) == {"parent": parent, "slow": child, "base": "FINISHED"}
    assert sync(toys, uri) == 2
    assert statuses(uri) == {"parent": parent, "slow": child, "base": "FINISHED"}


def test_a_sweep_has_failed_with_a_run_that_never_began(uri: str, toys: Path) -> None:
    """One that was refused has no folder that could say so."""
    (slow,) = toys.glob("slow*")
    shutil.rmtree(slow)
    close_sweep(toys, uri, set(), {slow.name: "no model weights"})
    assert statuses(uri) == {"parent": "FAILED", "base": "FINISHED"}


def test_a_sweep_is_shown_while_it_runs(uri: str, toys: Path) -> None:
    """Also one that is written down only after it began, as a search's; a run that ends is sent at
    once."""
    (slow,) = toys.glob("slow*")
    result = (slow / "result.json").rename(toys / "result")
    manifest = (toys / "sweep.json").rename(toys / "manifest")
    said: list[str] = []
    with mirrored_sweep(toys, uri, said.append) as tell:
        with locked(slow):
            manifest.rename(toys / "sweep.json")
            tell()
            wait_until(lambda: len(runs(uri)) == 3 and statuses(uri)["slow"] == "RUNNING")
            result.rename(slow / "result.json")
        tell()  # or it would take half a minute
        wait_until(lambda: statuses(uri)["slow"] == "FINISHED", within_s=15)
    assert statuses(uri) == dict.fromkeys(("parent", "base", "slow"), "FINISHED")
    assert said == []


def test_a_damaged_run_is_named_and_the_others_are_shown(
    uri: str, toys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a sweep runs once, and by each `sync`."""
    (slow,) = toys.glob("slow*")
    flip(slow / "steps.jsonl")
    sent: set[Any] = set()
    for _ in range(2):
        push_sweep(toys, uri, sent)
    close_sweep(toys, uri, sent)
    assert statuses(uri)["base"] == "FINISHED"
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"{slow} is not shown in MLflow: {slow}")
    with pytest.raises(InputError, match="1 of 2"):
        sync(toys, uri)
    assert f"{slow} is left out: {slow}" in capsys.readouterr().err
    (slow / "ended.json").write_text("{")
    (slow / "result.json").unlink()
    close_sweep(toys, uri, set())
    assert statuses(uri)["parent"] == "FAILED"


def test_sync_leaves_out_a_run_in_progress(
    uri: str, toys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (training,) = toys.glob("slow*")
    result = (training / "result.json").rename(toys / "result")
    with locked(training):
        assert sync(toys, uri) == 1
    assert str(training) in capsys.readouterr().err
    assert "slow" not in statuses(uri)
    result.rename(training / "result.json")
    for _ in range(2):
        assert sync(toys, uri) == 2
    assert statuses(uri) == dict.fromkeys(("parent", "base", "slow"), "FINISHED")


def test_sync_continues_after_a_run_that_the_server_refuses(
    uri: str, toys: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    send, refused = MlflowClient.log_dict, [True]

    def refuse(*arguments: Any) -> None:
        if refused:
            refused.pop()
            raise MlflowException("a value is too long")
        send(*arguments)

    monkeypatch.setattr(MlflowClient, "log_dict", refuse)
    with pytest.raises(InputError, match="1 of 2"):
        sync(toys, uri)
    assert "a value is too long" in capsys.readouterr().err
    assert statuses(uri)["slow"] == "FINISHED"


def test_a_deleted_experiment_is_named(uri: str, folder: Path) -> None:
    client = MlflowClient(uri)
    number = client.create_experiment("forever")
    client.delete_experiment(number)
    with pytest.raises(InputError, match=rf"--experiment-id {number}"):
        sync(folder, uri)


# ---- pages


def test_a_sweep_is_shown_as_people_speak_of_it(uri: str, sweep_folder: Path) -> None:
    """Names, the table of variants with its file, the report, and the comparison."""
    pytest.importorskip("matplotlib")
    sync(sweep_folder, uri)
    named = by_name(uri)
    variants = ("base", "+IAR&PIR", "slow")
    assert named.keys() == {"parts", *(f"{name}, order custom, seed 0" for name in variants)}
    parent = named["parts"]
    row = next(line for line in parent.data.tags[NOTE].splitlines() if line.startswith("| slow"))
    assert row.count("[") >= 3  # intervals of OP, BWT and the difference
    files = {"report.html", "report.json", "variants.csv", "sweep.json", "figures"}
    assert artifacts(uri, parent) == files
    text = load_text(f"{parent.info.artifact_uri}/variants.csv")
    table = list(csv.DictReader(io.StringIO(text)))
    assert [line["variant"] for line in table] == list(variants)
    place = place_of(sweep_folder)
    assert place == Place(uri, parent.info.experiment_id, parent.info.run_id)
    tags = MlflowClient(uri).get_experiment(place.experiment).tags
    assert f"mlflow.sharedViewState.{place.run}" in tags


def test_the_parent_run_has_the_scores_of_each_variant_as_metrics(uri: str, tmp_path: Path) -> None:
    """OP and BWT with their intervals, under names that MLflow takes, once."""
    variants: dict[str, Any] = {"base": {}, "+FIR": {"method": {"name": "finetune"}}}
    variants["w=1,2"] = {"method": {"name": "ewc"}}
    folder = make_up(tmp_path / "toy", Sweep("toy", base_run(), variants, seeds=(0, 1, 2)))
    for _ in range(2):
        push_overview(folder, uri)
    (parent,) = runs(uri)
    history = histories(uri, parent)
    no_point_twice(history)
    scores = ("op", "op_low", "op_high", "bwt", "bwt_low", "bwt_high")
    names = {"base": "base", "+FIR": "fir", "w=1,2": "w-1-2"}
    assert history.keys() == {f"{score}/{name}" for score in scores for name in names.values()}
    assert {step for points in history.values() for step, _ in points} == {0}
    latest = parent.data.metrics
    for row in read_study(folder).rows:
        name, op, bwt = names[row.variant], row.compared("op"), row.compared("bwt")
        assert latest[f"op/{name}"] == op.value
        assert (latest[f"bwt_low/{name}"], latest[f"bwt_high/{name}"]) == (bwt.low, bwt.high)
    assert "verdict" in parent.data.tags[NOTE]


def test_names_are_slugged_and_collisions_numbered() -> None:
    assert slugged(["acc/colour one: two.3-4"]) == {
        "acc/colour one: two.3-4": "acc/colour one: two.3-4"
    }
    names = ["+FIR", "FIR", "fir", "a=1,b", "a 1", "..//", "é", "$", "x" * 300, "x" * 299]
    keys = list(slugged(names, lower=True).values())
    assert keys[:5] == ["fir", "fir-2", "fir-3", "a-1-b", "a 1"]
    assert len({*keys}) == len(names)
    assert all(key and len(key) <= 250 for key in keys)


HOSTILE = "<img src=x onerror=alert(1)>`*[x](javascript:1)|&lt;\n# a"


def test_a_note_holds_no_markup_of_others_and_no_more_than_a_store_takes(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    make_up_run(tmp_path, "base", base_run())
    result: Any = RunDirectory(tmp_path).finished()
    for tasks in (4, 15, 200):
        names = [f"{HOSTILE}{number}" for number in range(tasks)]
        scores = [[50.0] * tasks] * tasks
        strange = {**result, "tasks": names, "stages": names, "matrix": scores, "method": HOSTILE}
        note = run_note(strange, "1")
        assert "<img" not in note
        assert "](javascript" not in note.replace("\\](", "")
        assert len(note) <= LONGEST
    frame = pd.DataFrame({"variant": [HOSTILE] * 500, "OP": ["1"] * 500})
    note = sweep_note({"a": frame}, HOSTILE, Place("", "1", "2"))
    assert "<img" not in note
    assert len(note) <= LONGEST


def test_joint_training_has_one_stage_whose_scores_are_bars(tmp_path: Path) -> None:
    make_up_run(tmp_path, "mtl", base_run(method={"name": "mtl"}))
    joint = RunDirectory(tmp_path)
    assert {step for _, _, step in points_of(joint, [], joint.finished())} == {0}


def test_a_parameter_that_not_all_have_is_not_compared() -> None:
    settings = [{"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 2, "b": 1, "c": 2}]
    assert differing(settings) == ["a", "c"]
    assert differing(settings[:1]) == differing([]) == []


def test_curves_are_thinned_alike_however_long_the_task_is() -> None:
    kept = [step for step in range(1, 1251) if keeps(step)]
    assert len(kept) == 199
    assert kept[:64] == list(range(1, 65))


# ---- addresses


def test_the_default_store_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///here.db")
    assert tracking_uri() == f"sqlite:///{tmp_path}/here.db"
    assert tracking_uri("sqlite:///there.db") == f"sqlite:///{tmp_path}/there.db"
    assert tracking_uri("http://127.0.0.1:5000") == "http://127.0.0.1:5000"


@pytest.mark.parametrize(
    ("uri", "plain"),
    [("http://me:pa/ss@host:5000/x", "http://host:5000/x"), ("https://me:pw@host", "https://host")],
)
def test_neither_a_folder_nor_the_client_keeps_a_password(
    uri: str, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")
    run = SimpleNamespace(info=SimpleNamespace(experiment_id="1", run_id="a"))
    assert Store(uri).place(run) == Place(plain, "1", "a")


def test_the_store_of_a_folder(
    uri: str, sweep_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is where the folder, or one in it, was sent last; or else where runs are sent."""
    auto = tmp_path / "auto.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{auto}")
    with pytest.raises(InputError, match=str(auto)):  # nothing was sent to it
        store_of(tmp_path, "auto")
    auto.touch()
    assert store_of(None, "auto") == store_of(tmp_path, "auto") == (f"sqlite:///{auto}", None)
    sync(sweep_folder, uri)
    assert store_of(sweep_folder, "auto") == (uri, place_of(sweep_folder))
    assert store_of(tmp_path, "auto") == (uri, None)
    assert store_of(sweep_folder, f"sqlite:///{auto}") == (f"sqlite:///{auto}", None)
    place = {"id": "ab", "store": "postgresql://host/db", "experiment": "3", "run": "c"}
    (sweep_folder / "mlflow.json").write_text(json.dumps(place))
    assert store_of(sweep_folder, "auto") == ("postgresql://host/db", place_of(sweep_folder))
    with_user = "postgresql://me:pw@host/db"  # which the folder does not keep
    monkeypatch.setenv("MLFLOW_TRACKING_URI", with_user)
    assert store_of(sweep_folder, "auto") == (with_user, place_of(sweep_folder))


def test_ui_names_the_page_of_a_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """A server shows its pages itself, so none is started; a password is not shown."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    place = {"id": "a", "store": "http://host:5000", "experiment": "3", "run": "abc"}
    (folder / "mlflow.json").write_text(json.dumps(place))
    page = "http://host:5000/#/experiments/3/runs/abc?workflowType=machine_learning"
    for words in ([], ["--mlflow", "http://me:pw@host:5000/"]):
        assert call("ui", str(folder), *words)[:2] == (0, f"MLflow  {page}\n")
    assert opened == [page, page]
    assert call("ui", str(folder / "nowhere"))[0] == 2
