"""What MLflow's pages show of runs and sweeps: names, notes, curves, models, a comparison."""

import base64
import csv
import io
import json
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import Call
from helpers import flip
from made_up import base_run, make_up, make_up_run
from marks import MLFLOW_WARNS
from stored import artifacts, histories, runs

pytest.importorskip("mlflow")
from mlflow import MlflowClient
from mlflow.artifacts import load_text

from forever.cli import commands, main
from forever.errors import InputError
from forever.launch.mlflow import tracker as mlflow_tracker
from forever.launch.mlflow.comparison import differing
from forever.launch.mlflow.mirror import points_of
from forever.launch.mlflow.notes import LONGEST, NOTE, run_name, run_note, sweep_note
from forever.launch.mlflow.overview import show_table
from forever.launch.mlflow.pages import free_port, served, store_of
from forever.launch.mlflow.place import Place, place_of, without_user
from forever.launch.mlflow.sync import sync
from forever.launch.mlflow.tracker import show_sweep
from forever.runs.directory import RunDirectory
from forever.sweeps.sweep import Sweep

pytestmark = MLFLOW_WARNS


def by_name(uri: str) -> dict[str, Any]:
    return {run.info.run_name: run for run in runs(uri)}


def test_a_sweep_is_shown_as_people_speak_of_it(uri: str, sweep_folder: Path) -> None:
    """Names, notes, the table of variants with its file, and the report."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    sync(sweep_folder, uri)
    named = by_name(uri)
    variants = ("base", "+IAR&PIR", "slow")
    assert named.keys() == {"parts", *(f"{name}, order custom, seed 0" for name in variants)}
    parent, trial = named["parts"], named["+IAR&PIR, order custom, seed 0"]
    assert trial.data.tags["forever.run_key"].startswith("plus_IAR_and_PIR-ocustom-s0-")
    note = parent.data.tags[NOTE]
    row = next(line for line in note.splitlines() if line.startswith("| slow"))
    assert row.count("[") >= 3  # intervals of OP, BWT and the difference
    assert f"](./#/experiments/{parent.info.experiment_id}/runs/{parent.info.run_id}/art" in note
    files = {"report.html", "report.json", "variants.csv", "sweep.json", "figures"}
    assert artifacts(uri, parent) == files
    text = load_text(f"{parent.info.artifact_uri}/variants.csv")
    table = list(csv.DictReader(io.StringIO(text)))
    assert [line["variant"] for line in table] == list(variants)
    assert all("[" in line["OP (%)"] for line in table)
    result = json.loads(next(sweep_folder.glob("plus*/result.json")).read_text())
    told = trial.data.tags[NOTE]
    assert f"**OP {result['op']:.1f} %**" in told
    assert "| colour&ensp; | " in told  # a row of the matrix
    assert "Less the reference with this order and seed: OP " in told
    assert f"get-artifact?path=overview.png&run_uuid={trial.info.run_id}" in told
    assert "Replays: " in told
    assert "Less the reference" not in named["base, order custom, seed 0"].data.tags[NOTE]


@pytest.mark.slow
def test_ui_shows_the_store_and_leaves_nothing(
    sweep_folder: Path, empty_store: Path, tmp_path: Path
) -> None:
    uri = f"sqlite:///{shutil.copy(empty_store, tmp_path / 'mlflow.db')}"
    sync(sweep_folder, uri)
    port = free_port(0)
    command = [sys.executable, "-m", "forever.cli.start", "ui", str(sweep_folder)]
    command += ["--no-browser", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shown:
        try:
            assert shown.stdout is not None
            page = shown.stdout.readline()  # written when the server answers
            assert page.startswith(f"MLflow  http://127.0.0.1:{port}/#/experiments/")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
                assert answer.status == 200
        finally:
            shown.send_signal(signal.SIGINT)
    assert free_port(port) == port  # and nothing is left


class Written:
    """A client that keeps what it is given."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def set_tag(self, run: str, key: str, value: str) -> None:
        self.texts[key] = value

    def log_text(self, run: str, text: str, name: str) -> None:
        self.texts[name] = text


def test_the_table_of_a_sweep_has_its_verdicts(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from forever.report.study import read_study

    variants: Any = {
        "base": {},
        "finetune": {"method": {"name": "finetune"}},
        "ewc": {"method": {"name": "ewc"}},
    }
    made = make_up(tmp_path, Sweep("toy", base_run(), variants, seeds=(0, 1, 2)))
    store: Any = SimpleNamespace(client=Written())
    show_table(store, Place("", "1", "2"), read_study(made))
    head, _, *rows = store.client.texts[NOTE].split("\n\n")[1].splitlines()
    assert "| verdict" in head
    assert rows[0].startswith("| base")
    judged = next(row for row in rows if row.startswith("| ewc"))
    assert any(word in judged for word in ("better", "worse", "not shown", "equivalent", "dose"))
    assert "verdict" in store.client.texts["variants.csv"].splitlines()[0]


def test_a_run_alone_and_a_run_that_an_earlier_release_named(uri: str, folder: Path) -> None:
    sync(folder, uri)
    (run,) = runs(uri)
    assert run.info.run_name == "forever on toy, seed 0"
    client = MlflowClient(uri)
    for given, expected in ((folder.name, run.info.run_name), ("mine", "mine")):
        client.update_run(run.info.run_id, name=given)
        sync(folder, uri)
        assert [*by_name(uri)] == [expected]


def test_names_of_runs() -> None:
    config = base_run()
    assert run_name(config, None) == "forever on toy, seed 0"
    config = base_run(**{"data.benchmark": "superni", "data.order": "8", "seed": 3})
    assert run_name(config, None) == "forever on superni, order 8, seed 3"
    origin = {"run": "abc", "stage": 2}
    assert run_name(base_run(), origin) == "forever from abc@2 on toy, seed 0"


HOSTILE = "<img src=x onerror=alert(1)>`*[x](javascript:1)|&lt;\n# a"


def test_a_note_holds_no_markup_of_others_and_no_more_than_a_store_takes(tmp_path: Path) -> None:
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
    rows = "\n".join(f"| {number} | 1 |" for number in range(3000))
    note = sweep_note({"a": f"| variant | OP |\n|:---|---:|\n{rows}"}, HOSTILE, Place("", "1", "2"))
    assert "<img" not in note
    assert len(note) <= LONGEST
    assert note.endswith("*The rest is in the artifacts.*")


def test_scores_are_curves_and_what_is_known_once_is_a_bar(
    uri: str, folder: Path, tmp_path: Path
) -> None:
    """MLflow draws a bar where the last step is 0; a curve of one point would be a dot."""
    sync(folder, uri)
    (run,) = runs(uri)
    history = histories(uri, run)
    assert [step for step, _ in history["acc/colour"]] == [1, 2, 3]
    assert [step for step, _ in history["op"]] == [1, 2, 3]
    final = [key for key in history if key.startswith("final/")]
    assert {"final/op", "final/bwt"} <= {*final}
    assert {step for key in final for step, _ in history[key]} == {0}
    make_up_run(tmp_path / "joint", "mtl", base_run(method={"name": "mtl"}))
    joint = RunDirectory(tmp_path / "joint")
    result = {**(joint.finished() or {}), "fwt": None}
    assert {step for _, _, step in points_of(joint, [], result)} == {0}


def losing(call: Callable[..., Any]) -> Callable[..., None]:
    """A call of a client that is done, and whose answer is lost."""

    def done(*arguments: Any, **options: Any) -> None:
        call(*arguments, **options)
        raise ConnectionError("lost")

    return done


CALLS = ["create_logged_model", "log_model_artifacts", "log_outputs", "finalize_logged_model"]


def test_the_adapter_is_a_logged_model_with_its_metrics_once(
    uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the answer to one of the calls is lost, and the call is made again. A damaged one is
    not sent."""
    weights = folder / "adapter" / "adapter_model.safetensors"
    sound = weights.read_bytes()
    flip(weights)
    with pytest.raises(InputError, match=f"{weights} is damaged"):
        sync(folder, uri)
    weights.write_bytes(sound)
    for name in CALLS:
        with monkeypatch.context() as patch:
            patch.setattr(MlflowClient, name, losing(getattr(MlflowClient, name)))
            with pytest.raises(ConnectionError):
                sync(folder, uri)
    sync(folder, uri)
    (run,) = runs(uri)
    client = MlflowClient(uri)
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert str(model.status) == "READY"
    assert model.name == "forever on toy, seed 0"
    linked = {metric.key: metric.value for metric in model.metrics}
    assert linked["final/op"] == run.data.metrics["final/op"]
    assert linked["acc/colour"] == run.data.metrics["acc/colour"]
    assert len(linked) == len(model.metrics)
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    for key, points in histories(uri, run).items():
        assert len({step for step, _ in points}) == len(points), key
    kept = Path(model.artifact_location.removeprefix("file://"))
    assert {file.suffix for file in kept.iterdir()} == {".safetensors", ".json"}


def test_the_comparison_shows_op_bwt_and_what_differs(uri: str, sweep_folder: Path) -> None:
    sync(sweep_folder, uri)
    named = by_name(uri)
    place = place_of(sweep_folder)
    assert place is not None
    assert (place.store, place.run) == (uri, named["parts"].info.run_id)
    assert f"&viewStateShareKey={place.run}" in place.comparison("http://host")
    tags = MlflowClient(uri).get_experiment(place.experiment).tags
    view = tags[f"mlflow.sharedViewState.{place.run}"]
    state = json.loads(zlib.decompress(base64.b64decode(view.removeprefix("deflate;"))))
    charts = state["compareRunCharts"]
    shown = [chart for chart in charts if not chart["deleted"]]
    assert [chart.get("metricKey") for chart in shown] == ["final/op", "final/bwt", None, None]
    assert shown[2]["selectedParams"] == ["variant", "optim.lr", "method.regularizer"]
    assert shown[2]["selectedMetrics"] == ["final/op", "final/bwt"]
    known = {chart.get("metricKey") for chart in charts}
    assert known >= {key for run in named.values() for key in run.data.metrics}
    assert tags["mlflow.experimentKind"] == "custom_model_development"


def test_a_parameter_that_not_all_have_is_not_compared() -> None:
    runs = [{"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 2, "b": 1, "c": 2}]
    assert differing(runs) == ["a", "c"]
    assert differing(runs[:1]) == differing([]) == []


@pytest.mark.parametrize(
    ("uri", "plain"),
    [
        ("http://me:pa/ss@host:5000/x", "http://host:5000/x"),
        ("postgresql://me:pw@host/db", "postgresql://host/db"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
    ],
)
def test_a_folder_remembers_no_password(uri: str, plain: str) -> None:
    assert without_user(uri) == plain


def test_the_store_of_a_folder(
    uri: str, sweep_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is where the folder, or one in it, was sent last; or else where runs go."""
    auto = tmp_path / "auto.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{auto}")
    with pytest.raises(InputError, match=rf"no run was sent to {auto}, .*forever sync {tmp_path}"):
        store_of(tmp_path, "auto")
    with closing(sqlite3.connect(auto)) as other:
        other.execute("CREATE TABLE bookmarks (page)")
        before = auto.read_bytes()
        with pytest.raises(InputError, match=rf"{auto} is no database of MLflow .no such table"):
            store_of(tmp_path, "auto")
        with pytest.raises(InputError, match=r"sqlite\+pysqlite:.* is not of the form sqlite:///"):
            store_of(None, f"sqlite+pysqlite:///{auto}")
        assert auto.read_bytes() == before
        other.execute("CREATE TABLE experiments (name)")
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        assert store_of(None, "auto") == (f"sqlite:///{auto}", None)
        other.execute("ROLLBACK")
    assert store_of(None, "auto") == store_of(tmp_path, "auto") == (f"sqlite:///{auto}", None)
    sync(sweep_folder, uri)
    assert store_of(sweep_folder, "auto") == (uri, place_of(sweep_folder))
    assert store_of(tmp_path, "auto") == (uri, None)
    assert store_of(sweep_folder, f"sqlite:///{auto}") == (f"sqlite:///{auto}", None)
    with pytest.raises(InputError, match=r"nowhere is no folder"):
        store_of(tmp_path / "nowhere", "auto")
    place = {"id": "ab", "store": "postgresql://host/db", "experiment": "3", "run": "c"}
    (sweep_folder / "mlflow.json").write_text(json.dumps(place))
    with_user = "postgresql://me:pw@host/db"  # which the folder does not keep
    assert store_of(sweep_folder, with_user) == (with_user, place_of(sweep_folder))
    assert store_of(sweep_folder, "auto") == ("postgresql://host/db", place_of(sweep_folder))
    with monkeypatch.context() as other:
        other.setenv("MLFLOW_TRACKING_URI", with_user)
        assert store_of(sweep_folder, "auto") == (with_user, place_of(sweep_folder))
    (sweep_folder / "mlflow.json").write_text('{"id": "ab", "store": "http://host"}')
    assert store_of(tmp_path, "auto") == (f"sqlite:///{auto}", None)
    (sweep_folder / "mlflow.json").write_text("{}")
    assert store_of(tmp_path, "auto") == (f"sqlite:///{auto}", None)
    with pytest.raises(InputError, match=r"mlflow\.json has a strange field 'id'"):
        store_of(sweep_folder, "auto")


def test_ui_names_an_address_as_it_was_given(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREVER_SCRATCH", str(tmp_path))
    code, _, error = call("ui", "s3://bucket/runs")
    assert code == 2
    assert error.startswith("error: s3://bucket/runs is no folder of this machine; ")
    assert error.endswith("or none and --mlflow STORE\n")


@pytest.mark.parametrize("words", [[], ["--mlflow", "http://me:pw@host:5000/"]])
def test_ui_names_the_page_of_a_server(
    words: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server shows its pages itself, so none is started; a password is not shown."""
    opened: list[str] = []
    monkeypatch.setattr("forever.cli.verbs.mlflow.webbrowser.open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    place = {"id": "a", "store": "http://host:5000", "experiment": "3", "run": "abc"}
    (folder / "mlflow.json").write_text(json.dumps(place))
    monkeypatch.setattr("sys.argv", ["forever", "ui", str(folder), *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert not ended.value.code
    page = "http://host:5000/#/experiments/3/runs/abc?workflowType=machine_learning"
    assert capsys.readouterr().out == f"MLflow  {page}\n"
    assert opened == [page]


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} is taken"):
            free_port(port)
    assert free_port(None) > 0


def test_the_server_of_ui_listens_to_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its command, which others see, has no password."""
    started: list[list[str]] = []
    quiet = {"terminate": lambda: None, "wait": lambda seconds: None}
    server = SimpleNamespace(poll=lambda: 3, returncode=3, **quiet)

    def popen(command: list[str], **options: Any) -> Any:
        started.append(command)
        return server

    monkeypatch.setattr("forever.launch.mlflow.pages.subprocess.Popen", popen)
    with (
        pytest.raises(InputError, match="MLflow's server ended with 3"),
        served("postgresql://me:password@host/runs", 5001),
    ):
        pass
    (command,) = started
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert "password" not in " ".join(command)


def test_the_last_line_of_a_sweep_is_the_address_of_its_comparison(
    uri: str, sweep_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    sync(sweep_folder, uri)
    capsys.readouterr()
    commands._show_in_mlflow(sweep_folder, uri, None)
    printed = capsys.readouterr()
    place = place_of(sweep_folder)
    assert place is not None
    assert printed.out.splitlines()[-1] == f"compare  {place.comparison('http://127.0.0.1:5000')}"
    assert printed.err == ""


def test_a_server_that_is_away_at_the_end_of_a_sweep_is_named(
    sweep_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_tracker, "_SWEEP_PATIENCE_S", 20.0)
    said: list[str] = []
    show_sweep(sweep_folder, "http://127.0.0.1:9", None, said.append)
    (line,) = said
    assert line.startswith(f"MLflow does not answer, `forever sync {sweep_folder}` sends it later")
