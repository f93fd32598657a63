"""A fork has the past of another run and a future of its own; with the same configuration it is the
same run."""

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import Outcome, canned_sample, execute, lines, outcome, saved

from forever.cli.main import main
from forever.config.parts import DataConfig
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.evaluation import decoding
from forever.launch import local
from forever.launch.local import prepare
from forever.report.study import read_study
from forever.runs import checkpoint
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin, plant

CARRY = ["ewc", "olora"]  # tensors of the method; frozen adapters
METHODS = ["forever", "finetune", "moelora", *CARRY]
ORDER = "data.order"
Runs = dict[str, tuple[RunConfig, Path]]


def fork(config: RunConfig, at: str, out: Path, **placement: Any) -> Path:
    """What `forever run --fork` does; returns the directory of the fork."""
    origin = find_origin(at)
    directory = RunDirectory(out / origin.key(config))
    plant(origin, config, prepare(config, directory.path).benchmark, directory)
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


def test_experts_can_be_said_where_the_number_of_tasks_does_not(runs: Runs, tmp_path: Path) -> None:
    config, path = runs["moelora"]
    fewer = config.override({ORDER: ["colour", "shape"], "method.experts": 3})
    assert (fork(fewer, f"{path}@1", tmp_path) / "result.json").is_file()


def test_fine_tuning_is_followed_by_forever(runs: Runs, tmp_path: Path) -> None:
    config, path = runs["finetune"]
    after = config.override({"method.name": "forever", "method.day_steps": 1})
    forked = fork(after, f"{path}@2", tmp_path)
    assert {event["task"] for event in lines(forked / "events.jsonl")} == {"weight"}


def test_importance_is_a_mean_over_the_tasks_that_it_was_measured_in(
    runs: Runs, tmp_path: Path
) -> None:
    """After a fork from a run without: not over those before, which would count the first one
    several times."""
    config, path = runs["forever"]
    forked = fork(config.override({"method.regularizer": "importance"}), f"{path}@1", tmp_path)
    saved = checkpoint.latest(forked / "checkpoints")
    assert saved is not None
    assert saved.state["method"]["fisher_tasks"] == len(config.data.order) - 1


def test_a_report_tells_a_fork_from_the_run(runs: Runs, tmp_path: Path) -> None:
    """Even from one of the same settings, which a report would take for the same run."""
    config, path = runs["forever"]
    whole = shutil.copytree(path, tmp_path / "whole")
    forked = fork(config, f"{whole}@2", tmp_path)
    rows = {row.variant: [run.key for run in row.runs] for row in read_study(tmp_path).rows}
    assert rows == {"forever": ["whole"], "forever from whole@2": [forked.name]}


def test_two_pasts_have_two_directories(runs: Runs, tmp_path: Path) -> None:
    """Also a fork of a fork, which has the run's configuration but not its past."""
    config, path = runs["forever"]
    forked = fork(config.override({"optim.lr": 0.05}), f"{path}@1", tmp_path, keep_stages=True)
    keys = [find_origin(at).key(config) for at in (f"{path}@1", f"{path}@2", f"{forked}@2")]
    assert len({*keys}) == 3


# ---- refusals

JOINT = "'mtl' learns all tasks at once"
PRIVATE = "trains weights that no other method has"
REFUSED = [
    ("forever", "9", {}, "unknown task of "),
    ("forever", "shap", {}, "did you mean 'shape'?"),
    ("forever", "3", {}, "nothing to train: the run has 3 tasks"),
    ("forever", "2", {"model.rank": 8}, "the model of its run: model.rank is 4 there, 8 here"),
    ("forever", "1", {"evaluation.max_new_tokens": 2}, "max_new_tokens is 3 there, 2 here"),
    ("forever", "1", {ORDER: ["shape", "colour", "weight"]}, "tasks up to colour, their rows or"),
    ("forever", "1", {"data.train_rows": 6}, "tasks up to colour, their rows or their metrics"),
    ("finetune", "1", {ORDER: ["colour", "weight", "shape"]}, "all of them with evaluation.fo"),
    ("finetune", "1", {ORDER: ["colour", "shape"]}, "all of them with evaluation.forward_transfer"),
    ("forever", "1", {"method.name": "mtl"}, JOINT),
    ("ewc", "1", {"method.name": "finetune"}, "ewc carries anchor, fisher from task to task"),
    ("ewc", "1", {"method.mode": "separate"}, "mode is 'online' there, 'separate' here"),
    ("olora", "2", {"method.name": "forever"}, "olora carries"),
    ("finetune", "1", {"method.name": "sapt"}, f"sapt {PRIVATE}"),
    ("forever", "1", {"method.name": "moelora"}, f"moelora {PRIVATE}"),
    ("moelora", "1", {"method.name": "forever"}, f"moelora {PRIVATE}"),
    ("moelora", "1", {ORDER: ["colour", "shape"]}, "moelora has 3 experts there, 2 here"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "at", "changes", "message"), REFUSED)
def test_what_does_not_fit_is_refused(
    runs: Runs, method: str, at: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config, path = runs[method]
    with pytest.raises(InputError) as refusal:
        fork(config.override(changes), f"{path}@{at}", tmp_path)
    assert message in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tasks", [1, 2])
def test_what_nobody_wrote_of_the_last_task_is_missing(
    small_config: RunConfig, tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSR writes no examples after its last task, so a longer run cannot branch off there."""
    monkeypatch.setattr(decoding, "sample", canned_sample)
    config = small_config.override({"method.name": "ssr", "method.max_tokens": 150})
    order, run = config.data.order, tmp_path / "run"
    execute(config.override({ORDER: order[:tasks]}), run, keep_stages=True)
    message = rf"wrote nothing of {order[tasks - 1]}, the last task of run, .* earlier"
    with pytest.raises(InputError, match=message):
        fork(config, f"{run}@{tasks}", tmp_path / "out")
    for stage in range(1, tasks):
        assert fork(config, f"{run}@{stage}", tmp_path / "out").is_dir()


def test_where_no_fork_can_begin(small_config: RunConfig, runs: Runs, tmp_path: Path) -> None:
    joint, run = tmp_path / "joint", Path(shutil.copytree(runs["forever"][1], tmp_path / "run"))
    execute(small_config.override({"method.name": "mtl"}), joint)
    with pytest.raises(InputError, match=JOINT):
        fork(small_config, f"{joint}@1", tmp_path)
    (weights,) = (run / "stages" / "1").glob("*.safetensors")
    for lose in (weights.unlink, partial(shutil.rmtree, run / "stages")):
        lose()
        with pytest.raises(InputError, match=r"stages/1 is missing or damaged; .*--keep-stages"):
            fork(small_config, f"{run}@1", tmp_path)
    with pytest.raises(InputError, match="is not of the form RUN@TASK"):
        find_origin(f"{run}")
    with pytest.raises(InputError, match="holds no run"):
        find_origin(f"{tmp_path}@1")
    (run / "steps.jsonl").unlink()
    with pytest.raises(InputError, match=r"steps\.jsonl, which says what was trained, is missing"):
        find_origin(f"{run}@1")
    (run / "config.yaml").write_text("model: [")
    with pytest.raises(InputError, match=r"config\.yaml cannot be read"):
        find_origin(f"{run}@1")


def test_a_fork_misses_the_answers_that_its_run_lost(runs: Runs, tmp_path: Path) -> None:
    """Those of stages before the one where it begins; for the others it has the weights."""
    config, path = runs["forever"]
    damaged = Path(shutil.copytree(path, tmp_path / "damaged"))
    shutil.rmtree(damaged / "predictions" / "2")
    assert fork(config, f"{damaged}@2", tmp_path / "out").is_dir()
    shutil.rmtree(damaged / "predictions" / "1")
    with pytest.raises(InputError, match=r"predictions/1/1\.jsonl is missing"):
        fork(config, f"{damaged}@2", tmp_path / "again")


@pytest.mark.parametrize("lost", ["missing", "damaged"])
def test_a_fork_that_lost_its_checkpoint_is_no_run_from_the_beginning(
    runs: Runs, lost: str, tmp_path: Path
) -> None:
    """It would train the past, too, with settings that are meant for the future."""
    config, path = runs["forever"]
    origin = find_origin(f"{path}@1")
    directory = RunDirectory(tmp_path / origin.key(config))
    plant(origin, config, prepare(config, directory.path).benchmark, directory)
    if lost == "missing":
        shutil.rmtree(directory.checkpoints)
    else:
        for weights in directory.checkpoints.glob("*/*.safetensors"):
            weights.write_bytes(b"")
    before = directory.steps.read_bytes()
    with pytest.raises(InputError, match="no checkpoint that can be read, and the past of a fork"):
        execute(config, directory.path)
    assert directory.steps.read_bytes() == before


def test_from_the_command_line(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The whole way: keep the stages, branch, and a second time there is nothing to do. Each time
    the data are read once."""
    reads: list[str] = []

    def count(config: DataConfig) -> Benchmark:
        reads.append(config.benchmark)
        return load_benchmark(config)

    monkeypatch.setattr(local, "load_benchmark", count)
    file, out = saved(runs["forever"][0], tmp_path / "toy.yaml"), tmp_path / "out"

    def call(*arguments: str) -> str:
        options = ["--out", str(out), "--mlflow", "off", "--device", "cpu"]
        monkeypatch.setattr(sys, "argv", ["forever", "run", *arguments, *options])
        reads.clear()
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        assert reads == ["toy"]
        return capsys.readouterr().out

    call(file, "--keep-stages", "seed=5")
    (first,) = out.iterdir()
    assert sorted(path.name for path in (first / "stages").iterdir()) == ["1", "2", "3"]
    branch = ["--fork", f"{first}@shape", "optim.lr=0.05"]
    shown = call(*branch)
    assert "after 3/3 weight" in shown
    assert "optim.lr is 0.01 there, 0.05 here" in shown
    assert "seed is" not in shown  # it is that of the run
    (forked,) = {*out.iterdir()} - {first}
    assert not (forked / "stages").exists()
    assert "is finished; nothing to do" in call(*branch)
    assert "is finished; nothing to do" in call(file, "seed=5", *branch)
