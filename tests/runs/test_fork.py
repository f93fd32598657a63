"""A fork has the past of another run and a future of its own; with the same configuration it is the
same run."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Outcome, canned_sample, execute, lines, outcome

from forever.cli.main import main
from forever.config.parts import DataConfig
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.evaluation import decoding
from forever.launch import local
from forever.launch.local import check
from forever.report.study import read_study
from forever.runs import checkpoint
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin, plant

CARRY = ["ewc", "olora"]  # tensors of the method; frozen adapters
METHODS = ["forever", "finetune", "moelora", *CARRY]
Runs = dict[str, tuple[RunConfig, Path]]


def fork(config: RunConfig, at: str, out: Path) -> Path:
    """What `forever run --fork` does; returns the directory of the fork."""
    origin = find_origin(at)
    directory = RunDirectory(out / origin.key(config))
    plant(origin, config, check(config, directory, resume=False), directory)
    execute(config, directory.path)
    return directory.path


@pytest.fixture(scope="module")
def runs(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    found: Runs = {}
    for name in METHODS:
        changes: dict[str, Any] = {} if name == "forever" else {"method.name": name}
        config = small_config.override(
            {**changes, "evaluation.forward_transfer": name == "finetune"}
        )
        execute(config, folder / name, keep_stages=True)
        found[name] = config, folder / name
    return found


@pytest.fixture(scope="module")
def whole(runs: Runs) -> dict[str, Outcome]:
    return {name: outcome(path) for name, (_, path) in runs.items()}


@pytest.mark.parametrize("at", ["1", "shape"])
@pytest.mark.parametrize("method", METHODS)
def test_unchanged_it_ends_as_the_run_did(
    runs: Runs, whole: dict[str, Outcome], method: str, at: str, tmp_path: Path
) -> None:
    config, path = runs[method]
    forked = fork(config, f"{path}@{at}", tmp_path)
    assert forked.name.startswith(config.key() + "-after")
    assert whole[method].differences(outcome(forked)) == []
    about = json.loads((forked / "fork.json").read_text())
    assert (about["run"], about["task"], about["changes"]) == (
        method,
        {"1": "colour"}.get(at, at),
        [],
    )


def test_only_the_future_changes(runs: Runs, whole: dict[str, Outcome], tmp_path: Path) -> None:
    config, path = runs["forever"]
    changed = config.override({"optim.lr": 0.05, "data.order": ["colour", "shape"]})
    forked = outcome(fork(changed, f"{path}@1", tmp_path))
    past = [line for line in lines(path / "steps.jsonl") if line["task"] == "colour"]
    assert lines(next(tmp_path.glob("*/steps.jsonl")))[: len(past)] == past
    assert {line["lr"] for line in lines(next(tmp_path.glob("*/steps.jsonl")))[len(past) :]} == {
        0.05
    }
    assert forked.result["matrix"][0][0] == whole["forever"].result["matrix"][0][0]
    assert forked.result["stages"] == ["colour", "shape"]
    (about,) = tmp_path.glob("*/fork.json")
    assert json.loads(about.read_text())["changes"][-1] == "optim.lr is 0.01 there, 0.05 here"


def test_experts_can_be_said_where_the_number_of_tasks_does_not(runs: Runs, tmp_path: Path) -> None:
    config, path = runs["moelora"]
    fewer = config.override({"data.order": ["colour", "shape"], "method.experts": 3})
    assert (fork(fewer, f"{path}@1", tmp_path) / "result.json").is_file()


def test_fine_tuning_is_followed_by_forever(runs: Runs, tmp_path: Path) -> None:
    config, path = runs["finetune"]
    after = config.override({"method.name": "forever", "method.warmup_steps": 1})
    forked = fork(after, f"{path}@2", tmp_path)
    assert {event["task"] for event in lines(forked / "events.jsonl")} == {"weight"}
    again = fork(after, f"{path}@1", tmp_path)
    assert again != forked  # two pasts, two directories


def test_importance_is_a_mean_over_the_tasks_that_it_was_measured_in(
    runs: Runs, tmp_path: Path
) -> None:
    """After a fork from a run without: not over those before, which would count the first one
    several times."""
    config, path = runs["forever"]
    forked = fork(config.override({"method.regularizer": "importance"}), f"{path}@1", tmp_path)
    saved = checkpoint.latest(forked / "checkpoints")
    assert saved is not None
    assert (
        saved.state["method"]["fisher_tasks"]
        == len(json.loads((forked / "result.json").read_text())["tasks"]) - 1
    )


def test_a_report_tells_a_fork_from_the_run(runs: Runs, tmp_path: Path) -> None:
    """Even from one of the same settings, which a report would take for the same run."""
    config, path = runs["forever"]
    whole = shutil.copytree(path, tmp_path / "whole")
    forked = fork(config, f"{whole}@2", tmp_path)
    rows = {row.variant: [run.key for run in row.runs] for row in read_study(tmp_path).rows}
    assert rows == {"forever": ["whole"], "forever from whole@2": [forked.name]}


def test_a_fork_of_a_fork_is_told_from_a_fork_of_the_run(runs: Runs, tmp_path: Path) -> None:
    config, path = runs["forever"]
    other = config.override({"optim.lr": 0.05})
    origin = find_origin(f"{path}@1")
    target = RunDirectory(tmp_path / origin.key(other))
    plant(origin, other, check(other, target, resume=False), target)
    execute(other, target.path, keep_stages=True)
    first, second = find_origin(f"{target.path}@2"), find_origin(f"{path}@2")
    assert first.key(config) != second.key(config)
    assert first.key(config) != origin.key(config)


ORDER = "data.order"
REFUSED = [
    ("forever", "9", {}, "has trained 3 tasks; TASK is 1 to 3"),
    ("forever", "0", {}, "TASK is 1 to 3"),
    ("forever", "shap", {}, "did you mean 'shape'?"),
    ("forever", "3", {}, "nothing to train: the run has 3 tasks"),
    ("forever", "2", {"model.rank": 8}, "the model of its run: model.rank is 4 there, 8 here"),
    ("forever", "1", {"evaluation.max_new_tokens": 2}, "max_new_tokens is 3 there, 2 here"),
    ("forever", "1", {ORDER: ["shape", "colour", "weight"]}, "task 1 is 'colour' there, 'shape'"),
    ("forever", "1", {"data.train_rows": 6}, "the rows or the metric of colour differ"),
    ("finetune", "1", {ORDER: ["colour", "weight", "shape"]}, "all of them with evaluation.fo"),
    ("forever", "1", {"method.name": "mtl"}, "learns all tasks at once"),
    ("ewc", "1", {"method.name": "finetune"}, "ewc carries anchor, fisher from task to task"),
    ("ewc", "1", {"method.mode": "separate"}, "mode is 'online' there, 'separate' here"),
    ("olora", "2", {"method.name": "forever"}, "olora carries"),
    ("finetune", "1", {"method.name": "sapt"}, "sapt trains weights that no other method has"),
    ("forever", "1", {"method.name": "moelora"}, "moelora trains weights that no other method has"),
    ("moelora", "1", {ORDER: ["colour", "shape"]}, "moelora has 3 experts there, 2 here"),
]


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
    order = config.data.order
    execute(config.override({"data.order": order[:tasks]}), tmp_path / "run", keep_stages=True)
    with pytest.raises(
        InputError, match=rf"wrote nothing of {order[tasks - 1]}, the last task of run, .* earlier"
    ):
        fork(config, f"{tmp_path / 'run'}@{tasks}", tmp_path / "out")
    for stage in range(1, tasks):
        assert fork(config, f"{tmp_path / 'run'}@{stage}", tmp_path / "out").is_dir()


def test_a_run_that_kept_no_stages(small_config: RunConfig, tmp_path: Path) -> None:
    execute(small_config, tmp_path / "run")
    with pytest.raises(
        InputError, match=r"has no weights of stage 2 .* runs keep them with --keep-stages"
    ):
        find_origin(f"{tmp_path}/run@2")
    with pytest.raises(InputError, match="is not of the form RUN@TASK"):
        find_origin(f"{tmp_path}/run")
    with pytest.raises(InputError, match="holds no run"):
        find_origin(f"{tmp_path}@1")
    (tmp_path / "config.yaml").write_text("model: [")
    with pytest.raises(InputError, match=r"config\.yaml cannot be read"):
        find_origin(f"{tmp_path}@1")


def test_damaged_weights_are_refused(runs: Runs, tmp_path: Path) -> None:
    config, path = runs["forever"]
    (tensors,) = (path / "stages" / "1").glob("*.safetensors")
    original = tensors.read_bytes()
    tensors.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    try:
        with pytest.raises(InputError, match="stages/1 is damaged"):
            fork(config, f"{path}@1", tmp_path)
    finally:
        tensors.write_bytes(original)


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
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(runs["forever"][0].model_dump(mode="json")), encoding="utf-8")
    out = ["--out", str(tmp_path / "out"), "--mlflow", "off", "--device", "cpu"]

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["forever", "run", *arguments, *out])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        assert reads == ["toy"]
        reads.clear()
        return capsys.readouterr().out

    call(str(file), "--keep-stages", "seed=5")
    (first,) = (tmp_path / "out").iterdir()
    assert sorted(path.name for path in (first / "stages").iterdir()) == ["1", "2", "3"]
    branch = ["--fork", f"{first}@shape", "optim.lr=0.05"]
    shown = call(*branch)
    assert "after 3/3 weight" in shown
    assert "optim.lr is 0.01 there, 0.05 here" in shown
    assert "seed is" not in shown  # it is that of the run
    (forked,) = (path for path in (tmp_path / "out").iterdir() if path != first)
    assert not (forked / "stages").exists()
    assert "is finished; nothing to do" in call(*branch)
    assert "is finished; nothing to do" in call(
        str(file), "seed=5", "optim.lr=0.05", "--fork", f"{first}@shape"
    )


def test_a_fork_misses_the_answers_that_its_run_lost(runs: Runs, tmp_path: Path) -> None:
    """Those of stages before the one where it begins; for the others it has the weights."""
    config, path = runs["forever"]
    damaged = Path(shutil.copytree(path, tmp_path / "damaged"))
    shutil.rmtree(damaged / "predictions" / "2")
    assert fork(config, f"{damaged}@2", tmp_path / "out").is_dir()
    shutil.rmtree(damaged / "predictions" / "1")
    with pytest.raises(InputError, match=r"predictions/1/1\.jsonl is missing"):
        fork(config, f"{damaged}@2", tmp_path / "again")
