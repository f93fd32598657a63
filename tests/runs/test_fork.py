"""A fork has the past of another run and a future of its own; with the same configuration it is the
same run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import Call
from helpers import Outcome, canned_sample, execute, lines, make_task, outcome, save_data, saved

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.evaluation import decoding
from forever.launch.local import prepare
from forever.report.study import read_study
from forever.runs import checkpoint
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin, plant
from forever.runs.progress import stage_scores

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
    ("forever", "1", {"data.prompt": "none"}, r"data\.prompt"),
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
    for at in (f"{tmp_path}", f"{tmp_path}@1"):
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


# ---- growing: the tasks of a run and one more, without the training examples of the old ones

FIVE = ["colour", "shape", "weight", "age", "touch"]
LABELS = [
    ("red", "blue"),
    ("round", "square"),
    ("heavy", "light"),
    ("old", "new"),
    ("soft", "hard"),
]


@pytest.fixture(scope="module")
def five(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run of five tasks of eight training and two test examples."""
    tasks = [
        make_task(name, f"What is it? Options: {', '.join(labels)}.", labels, rows=8, test=2)
        for name, labels in zip(FIVE, LABELS, strict=True)
    ]
    root = save_data(tmp_path_factory.mktemp("five"), Benchmark.sequence("toy", "1", tasks))
    metrics = dict.fromkeys(FIVE, "exact_match")
    return small_config.override(
        {ORDER: FIVE, "data.root": str(root), "data.metrics": metrics, "optim.epochs": 1}
    )


def without(config: RunConfig, root: Path, *lost: str) -> RunConfig:
    """A run whose `data.root` is a new folder in which these files are gone."""
    shutil.copytree(str(config.data.root), root)
    for name in lost:
        (root / "toy" / f"{name}.jsonl").unlink()
    return config.override({"data.root": str(root)})


def grow(config: RunConfig, run: Path, out: Path) -> Path:
    """What `forever run next.yaml --fork RUN` does; returns the directory of the new run."""
    origin = find_origin(str(run))
    directory = RunDirectory(out / origin.key(config))
    prepared = prepare(config, directory.path, past=origin.learned())
    plant(origin, config, prepared.benchmark, directory)
    execute(config, directory.path)
    return directory.path


@pytest.mark.parametrize(
    "method",
    [
        {"name": "forever", "regularizer": "intensity_importance", "day_steps": 1},
        {"name": "ewc"},
        {"name": "olora"},
        {"name": "mix_replay"},
    ],
    ids=lambda method: method["name"],
)
def test_five_growths_are_one_sequence_of_five(
    method: dict[str, Any], five: RunConfig, tmp_path: Path
) -> None:
    """Each from the last one's folder, with the training examples of the newest task alone."""
    config = RunConfig.parse(five.model_dump(mode="json") | {"method": method})
    execute(config, tmp_path / "whole")
    run = tmp_path / "first"
    execute(config.override({ORDER: FIVE[:1]}), run)
    for count in range(2, 6):
        old = [f"{name}/train" for name in FIVE[: count - 1]]
        here = without(config, tmp_path / f"data{count}", *old)
        run = grow(here.override({ORDER: FIVE[:count]}), run, tmp_path / "out")
    assert outcome(tmp_path / "whole").differences(outcome(run)) == []
    replayed = [line for line in lines(run / "steps.jsonl") if line["kind"] == "replay"]
    assert bool(replayed) == (method["name"] == "forever")


def test_a_task_without_test_examples_has_empty_cells_until_they_are_back(
    five: RunConfig, tmp_path: Path, call: Call
) -> None:
    runs, lost = tmp_path / "out", ["colour/train", "colour/test", "shape/train"]
    execute(five.override({ORDER: FIVE[:2]}), tmp_path / "first", keep_stages=True)
    here = without(five, tmp_path / "data", *lost)
    run = grow(here.override({ORDER: FIVE[:3]}), tmp_path / "first", runs)
    result = outcome(run).result
    first, second, third = result["matrix"]
    assert first == [None, None, None]
    assert second[0] is None
    assert None not in (*second[1:], third[2])
    assert result["op"] == pytest.approx((second[2] + third[2]) / 2)
    assert (result["bwt"], result["forgetting"]) == (None, None)
    assert result["rows"]["colour"] == {"train": 8, "test": 0}
    for command in ("show", "report"):
        code, printed, _ = call(command, str(run if command == "show" else runs))
        assert code == 0
        assert "no BWT: the test examples of colour were not at hand" in " ".join(printed.split())
    assert call("export", str(run), "--to", str(tmp_path / "card"))[0] == 0
    card = (tmp_path / "card" / "README.md").read_text("utf-8")
    assert "no BWT: the test examples of colour" in card
    assert [stage["acc/colour"] for stage in stage_scores(RunDirectory(run))] == [None] * 3
    # The next run has them again: what the first one scored when it was learned still counts.
    here = without(five, tmp_path / "again", "colour/train", "shape/train", "weight/train")
    last = grow(here.override({ORDER: FIVE[:4]}), run, runs)
    again = outcome(last).result
    whole = outcome(tmp_path / "first").result
    assert again["matrix"][0][:2] == [whole["matrix"][0][0], None]
    assert None not in again["matrix"][0][2:]  # the stage that it begins after is scored again
    changes = [again["matrix"][i][3] - again["matrix"][i][i] for i in range(3)]
    assert again["bwt"] == pytest.approx(sum(changes) / 3)
    scores = stage_scores(RunDirectory(last))
    assert [stage["acc/colour"] for stage in scores] == again["matrix"][0]
    assert scores[-1]["bwt"] == again["bwt"]


def test_without_the_old_examples_a_growth_keeps_what_was_kept_of_them(
    five: RunConfig, tmp_path: Path
) -> None:
    run = tmp_path / "first"
    execute(five.override({ORDER: FIVE[:2]}), run)
    here = without(five, tmp_path / "data", "colour/train").override({ORDER: FIVE[:3]})
    for changes in ({"seed": 1}, {"memory.fraction": 0.5}):
        with pytest.raises(InputError, match=next(iter(changes))):
            grow(here.override(changes), run, tmp_path / "out")
    assert grow(here.override({"optim.lr": 0.02}), run, tmp_path / "out").is_dir()
    # With the old examples at hand another memory is chosen from them, and not handed on.
    whole = five.override({ORDER: FIVE[:3], "seed": 1})
    other = grow(whole, run, tmp_path / "out")
    assert [path.name for path in (other / "memory").iterdir()] == ["3.jsonl"]
    further = without(five, tmp_path / "less", "shape/train").override({ORDER: FIVE[:4], "seed": 1})
    with pytest.raises(InputError, match=r"kept examples of task shape"):
        grow(further, other, tmp_path / "out")
    memory = run / "memory" / "1.jsonl"
    memory.write_text(memory.read_text("utf-8").replace("red", "blue"), "utf-8")
    with pytest.raises(InputError, match=str(memory)):
        grow(here, run, tmp_path / "more")
    # Other test examples than those that were scored are refused.
    file = tmp_path / "data" / "toy" / "colour" / "test.jsonl"
    file.write_text("\n".join(reversed(file.read_text("utf-8").splitlines())), "utf-8")
    with pytest.raises(InputError, match="colour: its test examples"):
        grow(here, run, tmp_path / "more")


def test_a_run_grows_from_the_command_line(five: RunConfig, tmp_path: Path, call: Call) -> None:
    options = ["--out", str(tmp_path / "out"), "--mlflow", "off", "--device", "cpu"]
    first = saved(five.override({ORDER: FIVE[:2]}), tmp_path / "first.yaml")
    assert call("run", first, *options)[0] == 0
    (run,) = (tmp_path / "out").iterdir()
    here = without(five, tmp_path / "data", "colour/train", "colour/test", "shape/train")
    more = saved(here.override({ORDER: FIVE[:3]}), tmp_path / "next.yaml")
    code, printed, _ = call("run", more, "--fork", str(run), *options)
    assert code == 0
    assert "data.order is ['colour', 'shape'] there, ['colour', 'shape', 'weight'] here" in printed
    assert call("run", more, "--fork", str(run), *options)[0] == 0
    (run / "result.json").unlink()
    code, _, error = call("run", more, "--fork", str(run), "optim.lr=0.5", *options)
    assert (code, "not finished" in error) == (2, True)
