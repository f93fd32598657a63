"""A first task that another run of the sweep trained: the same files as if trained alone, whoever
dies on the way."""

import gc
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import CONFIGS, KILLED_CLOSES_NO_FILES, Outcome, canned_sample, execute, outcome

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.evaluation import decoding
from forever.launch import sharing
from forever.launch.local import Placement, run_local
from forever.launch.sharing import SHARED, first_task, first_task_key, trainers_first
from forever.report.facts import facts
from forever.report.study import read_study
from forever.runs import checkpoint, session
from forever.runs.directory import RunDirectory
from forever.runs.progress import Follower, stage_scores
from forever.runs.tracking import Tracker
from forever.sweeps.sweep import Sweep
from forever.training import loop

pytestmark = KILLED_CLOSES_NO_FILES

SHARING = [
    name
    for name, fields in CONFIGS.items()
    if RunConfig.parse({"method": fields}).method.plain_beginning
]
ALONE = [name for name in CONFIGS if name not in SHARING]
# What may differ between runs that share, and what of the first task could go wrong unseen.
OTHER: dict[str, Any] = {"memory.fraction": 0.4, "budget.examples": 5}
SEVERE: dict[str, Any] = {"model.dropout": 0.2, "evaluation.forward_transfer": True}


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it."""


class Trained(Tracker):
    """Hears which tasks a run trains itself, and how many stages it tells of."""

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.stages: list[int] = []

    def step(self, line: Any) -> None:
        if line["task"] not in self.tasks:
            self.tasks.append(line["task"])

    def stage(self, number: int, scores: Any) -> None:
        self.stages.append(number)


def configured(base: RunConfig, name: str, **changes: Any) -> RunConfig:
    method = {"method": CONFIGS[name]}
    return RunConfig.parse(base.override(changes).model_dump(mode="json") | method)


def key(config: RunConfig, *place: Any) -> str | None:
    return first_task_key(config, load_benchmark(config.data), *place)


def trial(config: RunConfig, path: Path, *more: Tracker) -> Trained:
    """A run of a sweep in the folder above `path`, as `train_trial` does it; which tasks it trained
    itself."""
    trained = Trained()
    with first_task(key(config, "cpu"), RunDirectory(path)) as left:
        place = Placement("cpu", first_task=left)
        run_local(config, path, resume=True, trackers=[trained, *more], placement=place)
    return trained


def alone(config: RunConfig, folder: Path) -> Outcome:
    path = folder / "alone" / config.key()
    if not path.exists():
        execute(config, path)
    return outcome(path)


def files(path: Path) -> set[str]:
    """Of a run, without those of checkpoints, whose names count updates, and the lock."""
    names = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    return {name for name in names if not name.startswith(("checkpoints/", "."))}


@pytest.fixture(scope="module", autouse=True)
def written() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "sample", canned_sample)
        yield
    gc.collect()


@pytest.fixture(scope="module")
def left(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep's folder in which `first`, fine-tuning, has trained a severe first task."""
    folder = tmp_path_factory.mktemp("sweep")
    config = configured(small_config, "finetune", **SEVERE)
    assert trial(config, folder / "first").tasks == ["colour", "shape", "weight"]
    assert outcome(folder / "first").differences(alone(config, folder)) == []
    return folder


# ---- who shares, and that nobody can tell


@pytest.mark.parametrize("name", SHARING)
def test_it_ends_as_if_it_had_run_alone(
    small_config: RunConfig, left: Path, name: str, tmp_path: Path
) -> None:
    config = configured(small_config, name, **SEVERE, **OTHER)
    path = left / name
    trained = trial(config, path)
    assert trained.tasks == ["shape", "weight"]
    assert trained.stages == [0, 1, 2]
    assert outcome(path).differences(alone(config, tmp_path)) == []
    assert files(path) - files(tmp_path / "alone" / config.key()) == {"shared.json"}
    assert json.loads((path / "shared.json").read_text()) == {"run": "first", "task": "colour"}


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_another_method_may_be_the_first(
    small_config: RunConfig, tmp_path: Path, tuning: str
) -> None:
    """With moments of its own, and the weights of the importance of its first task."""
    first = configured(small_config, "forever both", **SEVERE, **{"model.tuning": tuning})
    second = first.override({"method.warmup_steps": 3, "method.days": "uniform"})
    trial(first, tmp_path / "first")
    assert trial(second, tmp_path / "second").tasks == ["shape", "weight"]
    assert outcome(tmp_path / "second").differences(alone(second, tmp_path)) == []
    told = facts(read_study(tmp_path / "second"))["first task"]
    assert told == "1 run took it from first, which agrees until its end"
    assert "first task" not in facts(read_study(tmp_path / "first"))


def test_its_seconds_are_those_of_a_run_alone(left: Path) -> None:
    """Else a variant would look cheap that only came later."""
    first = json.loads((left / "first" / "result.json").read_text())["seconds"]
    (saved,) = left.glob(f"{SHARED}/*/checkpoints/*")
    shared = json.loads((saved / "state.json").read_text())["seconds"]
    assert {"task", "evaluation"} <= shared.keys() <= first.keys() - {"end_task"}
    assert all(0 < shared[phase] < first[phase] for phase in shared)


@pytest.mark.parametrize("name", ALONE)
def test_a_method_with_a_beginning_of_its_own_never_shares(
    small_config: RunConfig, name: str
) -> None:
    assert key(configured(small_config, name)) is None


def test_what_acts_in_the_first_task_must_agree(small_config: RunConfig, tmp_path: Path) -> None:
    keys = {key(small_config, "cpu", 1), key(small_config, "cpu", 2)}
    changes: list[dict[str, Any]] = [{"optim.lr": 0.1}, {"seed": 1}, {"model.rank": 2}]
    changes += [{"data.train_rows": 6}, {"data.order": ["colour", "weight", "shape"]}]
    changes += [{"evaluation.forward_transfer": True}, {"model.packing": "padded"}]
    keys |= {key(small_config.override(change), "cpu", 1) for change in changes}
    root = shutil.copytree(small_config.data.root or "", tmp_path / "data")
    moved = small_config.override({"data.root": str(root)})
    assert key(moved, "cpu", 1) in keys
    (rows,) = root.glob("*/colour/train.jsonl")
    rows.write_text(rows.read_text().replace("old", "new"))
    assert key(moved, "cpu", 1) not in keys
    assert len(keys) == 2 + len(changes)
    for same in ({"memory.fraction": 0.5}, {"method.name": "ewc"}, {"method.days": "uniform"}):
        assert key(small_config.override(same), "cpu", 1) in keys


# ---- interruptions


@pytest.mark.parametrize(
    ("owner", "function"),
    [(session.Session, "end_training"), (checkpoint, "save"), (loop, "score_tasks")],
)
def test_a_run_that_shares_may_be_killed_like_any_other(
    small_config: RunConfig, left: Path, owner: Any, function: str, tmp_path: Path
) -> None:
    """In its first task, before anything is its own; with a damaged checkpoint it does it again."""
    config = configured(small_config, "forever both", **SEVERE, **OTHER)
    path = left / f"killed in {function}"
    original = getattr(owner, function)

    def die(*arguments: Any) -> None:
        if function == "score_tasks" and arguments[2] < 0:
            return  # before training there are answers already
        if function == "save":
            original(*arguments)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, function, die)
        with pytest.raises(Killed):
            trial(config, path)
    if function == "save":
        newest = max((path / "checkpoints").iterdir())
        (newest / "tensors.safetensors").write_bytes(b"damaged")
    assert trial(config, path).tasks == ["shape", "weight"]
    assert outcome(path).differences(alone(config, tmp_path)) == []


def test_a_run_that_has_begun_is_not_planted_over(
    small_config: RunConfig, left: Path, tmp_path: Path
) -> None:
    config = configured(small_config, "forever", **SEVERE)
    path = left / "begun"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.Session, "end_training", lambda self: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            execute(config, path)
    trial(config, path)
    assert not (path / "shared.json").exists()
    assert outcome(path).differences(alone(config, tmp_path)) == []


class Gate(Tracker):
    """Holds a run at its first update until it is opened, and may kill it then."""

    def __init__(self, kill: bool = False) -> None:
        self.reached, self.open, self.kill = Event(), Event(), kill

    def step(self, line: Any) -> None:
        self.reached.set()
        assert self.open.wait(60)
        if self.kill:
            raise Killed


@pytest.mark.parametrize("dies", [False, True])
def test_others_wait_for_who_trains_it_or_for_its_end(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Without dropout, whose masks two threads would draw from one stream."""
    first, second = configured(small_config, "finetune"), configured(small_config, "ewc")
    gate, looked, pause = Gate(kill=dies), Event(), time.sleep

    def look_again(seconds: float) -> None:
        looked.set()
        pause(seconds)

    monkeypatch.setattr(sharing, "time", SimpleNamespace(sleep=look_again))
    with ThreadPoolExecutor(2) as pool:
        training = pool.submit(trial, first, tmp_path / "first", gate)
        assert gate.reached.wait(60)
        waiting = pool.submit(trial, second, tmp_path / "second")
        assert looked.wait(60)
        assert not (tmp_path / "second").exists()
        gate.open.set()
        own = waiting.result().tasks
        if dies:
            with pytest.raises(Killed):
                training.result()
    assert ("colour" in own) == dies
    assert (tmp_path / "second" / "shared.json").exists() != dies
    if dies:  # what it had trained itself it has no need of
        assert trial(first, tmp_path / "first").tasks == ["colour", "shape", "weight"]
    for config, name in ((first, "first"), (second, "second")):
        assert outcome(tmp_path / name).differences(alone(config, tmp_path)) == []


def test_a_search_hears_of_a_shared_stage(left: Path, small_config: RunConfig) -> None:
    """From the moment it is planted, as of one that an earlier call trained; with workers as soon
    as they begin, which makes it a run."""
    config, path = configured(small_config, "mix_replay", **SEVERE), left / "heard"
    heard: list[int] = []

    class Listen(Tracker):
        def started(self, directory: RunDirectory, benchmark: Any) -> None:
            heard.append(len(stage_scores(directory)))

    trial(config, path, Listen())
    assert heard == [1]
    directory, watcher = RunDirectory(left / "watched"), Trained()
    follower = Follower(config, directory, load_benchmark(config.data), [watcher])
    with first_task(key(config, "cpu"), directory) as own:
        assert own is None
        with suppress(FileNotFoundError):
            follower.look()
        directory.create(config, {})
        follower.look()
    assert watcher.stages == [0]


def test_who_trains_a_first_task_comes_before_those_that_take_it(base_config: RunConfig) -> None:
    variants = {"base": {}, "slow": {"method.gamma": 2.0}, "joint": {"method.name": "mtl"}}
    trials = Sweep("toys", base_config, variants, seeds=(3, 1)).trials()
    names = [(trial.seed, trial.variant) for trial in trainers_first(trials)]
    of_a_seed = ("base", "joint", "slow")
    assert names == [(seed, variant) for seed in (3, 1) for variant in of_a_seed]


def test_a_first_task_that_cannot_be_left_ends_no_run(
    small_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another run may have left it meanwhile: workers outlive the process that held the lock."""
    (tmp_path / "left" / "by another").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for number, folder in enumerate(("left", "file/left")):
        placement = Placement("cpu", first_task=tmp_path / folder)
        result = run_local(small_config, tmp_path / f"run {number}", placement=placement)
        assert result["op"] is not None
        said = "other runs train the task themselves" in capsys.readouterr().err
        assert said == (folder != "left")
    assert {path.name for path in tmp_path.iterdir()} == {"left", "file", "run 0", "run 1"}
