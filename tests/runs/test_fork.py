"""A fork has the past of another run and a future of its own; with the same configuration it is the
same run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import Call
from helpers import Outcome, canned_sample, execute, lines, outcome, saved

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.evaluation import decoding
from forever.launch.local import prepare
from forever.report.study import read_study
from forever.runs import checkpoint
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin, plant

METHODS = ["forever", "finetune", "moelora", "ewc", "olora"]
ORDER = "data.order"
Runs = dict[str, tuple[RunConfig, Path]]


def planted(config: RunConfig, at: str, out: Path) -> RunDirectory:
    """A fork before its first update."""
    origin = find_origin(at)
    directory = RunDirectory(out / origin.key(config))
    plant(origin, config, prepare(config, directory.path).benchmark, directory)
    return directory


def fork(config: RunConfig, at: str, out: Path, **placement: Any) -> Path:
    """What `forever run --fork` does; returns the directory of the fork."""
    directory = planted(config, at, out)
    execute(config, directory.path, **placement)
    return directory.path


@pytest.fixture(scope="module")
def runs(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    runs: Runs = {}
    for name in METHODS:
        changes: dict[str, Any] = {} if name == "forever" else {"method.name": name}
        changes["evaluation.forward_transfer"] = name == "finetune"
        runs[name] = small_config.override(changes), folder / name
        execute(*runs[name], keep_stages=True)
    return runs


@pytest.fixture(scope="module")
def whole(runs: Runs) -> dict[str, Outcome]:
    return {name: outcome(path) for name, (_, path) in runs.items()}


@pytest.mark.parametrize(("at", "task"), [("1", "colour"), ("shape", "shape")])
@pytest.mark.parametrize("method", METHODS)
def test_unchanged_it_ends_as_the_run_did(
    runs: Runs, whole: dict[str, Outcome], method: str, at: str, task: str, tmp_path: Path
) -> None:
    config, path = runs[method]
    forked = fork(config, f"{path}@{at}", tmp_path)
    assert forked.name.startswith(config.key() + "-after")
    assert whole[method].differences(outcome(forked)) == []
    about = json.loads((forked / "fork.json").read_text())
    assert (about["run"], about["task"], about["changes"]) == (method, task, [])


def test_only_the_future_changes(runs: Runs, whole: dict[str, Outcome], tmp_path: Path) -> None:
    config, path = runs["forever"]
    changed = config.override({"optim.lr": 0.05, ORDER: ["colour", "shape"]})
    forked = fork(changed, f"{path}@1", tmp_path)
    past = [line for line in lines(path / "steps.jsonl") if line["task"] == "colour"]
    steps = lines(forked / "steps.jsonl")
    assert steps[: len(past)] == past
    assert {line["lr"] for line in steps[len(past) :]} == {0.05}
    result = outcome(forked).result
    assert result["matrix"][0][0] == whole["forever"].result["matrix"][0][0]
    assert result["stages"] == ["colour", "shape"]
    about = json.loads((forked / "fork.json").read_text())
    assert about["changes"][-1] == "optim.lr is 0.01 there, 0.05 here"


def test_another_method_may_follow_and_importance_is_a_mean_over_its_own_tasks(
    runs: Runs, tmp_path: Path
) -> None:
    config, path = runs["finetune"]
    after = config.override({"method.name": "forever", "method.regularizer": "importance"})
    forked = fork(after, f"{path}@1", tmp_path)
    saved = checkpoint.latest(forked / "checkpoints")
    assert saved is not None
    assert saved.state["method"]["fisher_tasks"] == len(config.data.order) - 1


def test_two_pasts_have_two_directories_and_a_report_tells_them_apart(
    runs: Runs, tmp_path: Path
) -> None:
    """Also a fork of a fork, which has the run's configuration but not its past."""
    config, path = runs["forever"]
    run = shutil.copytree(path, tmp_path / "whole")
    forked = fork(config, f"{run}@2", tmp_path)
    rows = {row.variant: [run.key for run in row.runs] for row in read_study(tmp_path).rows}
    assert rows == {"forever": ["whole"], "forever from whole@2": [forked.name]}
    other = config.override({"optim.lr": 0.05})
    again = fork(other, f"{path}@1", tmp_path / "other", keep_stages=True)
    keys = [find_origin(at).key(config) for at in (f"{path}@1", f"{path}@2", f"{again}@2")]
    assert len({*keys}) == 3


# ---- refusals: run, stage, what the fork changes, and what the message names

REFUSED = [
    ("forever", "9", {}, "unknown task"),
    ("forever", "3", {}, "nothing to train"),
    ("forever", "2", {"model.rank": 8}, "model.rank"),
    ("forever", "1", {"evaluation.max_new_tokens": 2}, "max_new_tokens"),
    ("forever", "1", {ORDER: ["shape", "colour", "weight"]}, "colour"),
    ("forever", "1", {"data.train_rows": 6}, "colour"),
    ("finetune", "1", {ORDER: ["colour", "weight", "shape"]}, "evaluation.forward_transfer"),
    ("forever", "1", {"method.name": "mtl"}, "mtl"),
    ("ewc", "1", {"method.name": "finetune"}, "ewc carries anchor, fisher"),
    ("ewc", "1", {"method.mode": "separate"}, "mode"),
    ("olora", "2", {"method.name": "forever"}, "olora carries"),
]


@pytest.mark.parametrize(("method", "at", "changes", "named"), REFUSED)
def test_what_does_not_fit_is_refused(
    runs: Runs, method: str, at: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    config, path = runs[method]
    with pytest.raises(InputError, match=named):
        fork(config.override(changes), f"{path}@{at}", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("forever", {"method.name": "moelora"}),
        ("moelora", {"method.name": "forever"}),
        ("moelora", {ORDER: ["colour", "shape"]}),  # two experts in place of three
    ],
)
def test_weights_that_do_not_fit_the_model_are_refused_before_an_update(
    runs: Runs, method: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    config, path = runs[method]
    directory = planted(config.override(changes), f"{path}@1", tmp_path)
    before = directory.steps.read_bytes()
    with pytest.raises(InputError, match="trained numbers"):
        execute(config.override(changes), directory.path)
    assert directory.steps.read_bytes() == before


def test_what_was_not_written_of_the_last_task_is_said(
    small_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """SSR writes no examples after its last task, so a longer run does not rehearse it."""
    monkeypatch.setattr(decoding, "sample", canned_sample)
    config = small_config.override({"method.name": "ssr", "method.max_tokens": 150})
    order, run = config.data.order, tmp_path / "run"
    execute(config.override({ORDER: order[:2]}), run, keep_stages=True)
    fork(config, f"{run}@1", tmp_path / "out")
    assert capsys.readouterr().err == ""
    fork(config, f"{run}@2", tmp_path / "out")
    assert order[1] in capsys.readouterr().err


def test_a_run_that_lost_its_weights_or_past_answers_has_no_fork(
    runs: Runs, tmp_path: Path
) -> None:
    config, path = runs["forever"]
    damaged = Path(shutil.copytree(path, tmp_path / "damaged"))
    shutil.rmtree(damaged / "predictions" / "2")  # of the stage itself: its weights are kept
    assert fork(config, f"{damaged}@2", tmp_path / "out").is_dir()
    shutil.rmtree(damaged / "predictions" / "1")
    with pytest.raises(InputError, match=r"predictions/1/1\.jsonl is missing"):
        fork(config, f"{damaged}@2", tmp_path / "again")
    shutil.rmtree(damaged / "stages")
    with pytest.raises(InputError, match="--keep-stages"):
        fork(config, f"{damaged}@1", tmp_path / "again")
    for at in (f"{damaged}", f"{tmp_path}@1"):
        with pytest.raises(InputError, match="--fork"):
            find_origin(at)


def test_a_fork_that_lost_its_checkpoint_is_no_run_from_the_beginning(
    runs: Runs, tmp_path: Path
) -> None:
    """It would train the past, too, with settings that are meant for the future."""
    config, path = runs["forever"]
    directory = planted(config, f"{path}@1", tmp_path)
    for weights in directory.checkpoints.glob("*/*.safetensors"):
        weights.write_bytes(b"")
    before = directory.steps.read_bytes()
    with pytest.raises(InputError, match=str(directory.path)):
        execute(config, directory.path)
    assert directory.steps.read_bytes() == before
    elsewhere = tmp_path / "elsewhere" / directory.path.name  # as on a machine of its own
    with pytest.raises(InputError, match=str(elsewhere)):
        execute(config, elsewhere)


def test_from_the_command_line(runs: Runs, tmp_path: Path, call: Call) -> None:
    """Keep the stages, branch, and a second time there is nothing to do."""
    file, out = saved(runs["forever"][0], tmp_path / "toy.yaml"), tmp_path / "out"
    options = ["--out", str(out), "--mlflow", "off", "--device", "cpu"]
    assert call("run", file, "--keep-stages", "seed=5", *options)[0] == 0
    (first,) = out.iterdir()
    assert sorted(path.name for path in (first / "stages").iterdir()) == ["1", "2", "3"]
    branch = ["run", "--fork", f"{first}@shape", "optim.lr=0.05", *options]
    code, printed, _ = call(*branch)
    assert code == 0
    assert "optim.lr is 0.01 there, 0.05 here" in printed
    assert "seed is" not in printed  # it is that of the run
    (forked,) = {*out.iterdir()} - {first}
    assert not (forked / "stages").exists()
    before = (forked / "result.json").stat().st_mtime_ns
    assert call(*branch)[0] == call("run", file, "seed=5", *branch[1:])[0] == 0
    assert (forked / "result.json").stat().st_mtime_ns == before
