"""A run that is killed anywhere ends bit-equal to one that was not: adapter, matrix, journal,
answers.

Most kills happen inside this process: a private exception that nothing catches is raised at a
chosen point, and the next life starts from what is on disk. Some are real SIGKILLs.
"""

import gc
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CONFIGS, KILLED_CLOSES_NO_FILES, Outcome, canned_sample, execute, outcome

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.evaluation import decoding
from forever.launch.local import Placement, run_local
from forever.models import lora
from forever.runs import checkpoint, session
from forever.runs.tracking import Tracker
from forever.sweeps.checks import check_finished
from forever.sweeps.sweep import Sweep
from forever.training import loop
from forever.training import step as step_module

pytestmark = KILLED_CLOSES_NO_FILES

METHODS: dict[str, dict[str, Any]] = {
    "forever": {**CONFIGS["forever both"], "beta": 0.1},
    **{name: CONFIGS[name] for name in (
        "ewc separate", "mix_replay", "fixed_interval", "olora", "moelora", "sapt", "migu", "ssr",
        "recurrent_kif", "aimmerging", "vbm",
    )},
}  # fmt: skip

# What else than a tracker's calls may be the last thing that happens: before it, or after it.
BEFORE = {
    (step_module, "probe"): "probe", (session, "write_lines"): "answers",
    (loop, "evaluate"): "evaluate", (session.Session, "end_training"): "end_task",
}  # fmt: skip
AFTER = {
    (checkpoint, "save"): "saved", (lora, "save_peft"): "finish", (lora, "save_mixture"): "finish",
}  # fmt: skip


class Killed(BaseException):
    """Stands for SIGKILL: neither trackers nor anything else may catch it."""


class Trap(Tracker):
    """Kills at the `at`-th thing that happens."""

    def __init__(self, at: int | None, kill: Callable[[], None]) -> None:
        self.at, self.kill = at, kill
        self.passed: list[str] = []

    def point(self, name: str) -> None:
        self.passed.append(name)
        if len(self.passed) == self.at:
            self.kill()

    def step(self, line: Any) -> None:
        self.point(line["kind"])

    def event(self, event: Any) -> None:
        self.point("event")

    def stage(self, number: int, scores: Any) -> None:
        self.point("stage")

    def watch(self, function: Callable[..., Any], name: str, after: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not after:
                self.point(name)
            result = function(*arguments, **options)
            if after:
                self.point(name)
            return result

        return call


def raise_killed() -> None:
    raise Killed


def live(
    config: RunConfig,
    path: Path,
    at: int | None = None,
    checkpoint_s: float = 0.0,
    kill: Callable[[], None] = raise_killed,
) -> list[str]:
    """One life of a run, killed at its `at`-th point if it gets there; what it passed."""
    trap = Trap(at, kill)
    with pytest.MonkeyPatch.context() as patch:
        for points, after in ((BEFORE, False), (AFTER, True)):
            for (owner, function), name in points.items():
                patch.setattr(owner, function, trap.watch(getattr(owner, function), name, after))
        try:
            placement = Placement(device="cpu", checkpoint_s=checkpoint_s)
            run_local(config, path, resume=True, trackers=[trap], placement=placement)
        except Killed:
            trap.passed.append("killed")
    return trap.passed


@pytest.fixture(scope="module", autouse=True)
def written() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "sample", canned_sample)
        yield
    gc.collect()  # here, and not in whichever test comes next


@dataclass
class Runs:
    """Runs that nobody interrupts: by method the configuration, the outcome, and the points that a
    run with checkpoints after every update passes."""

    configs: dict[str, RunConfig]
    whole: dict[str, Outcome]
    points: dict[str, list[str]]

    def place(self, kind: str, which: int, name: str = "forever") -> int:
        """The number of a point."""
        return [n for n, point in enumerate(self.points[name], 1) if point == kind][which]

    def die(self, path: Path, at: int, name: str = "forever", **options: Any) -> list[str]:
        passed = live(self.configs[name], path, at, **options)
        assert passed[-1] == "killed"
        assert not (path / "result.json").exists()
        return passed

    def finish(self, path: Path, name: str = "forever") -> list[str]:
        """Go on to the end, which is that of the uninterrupted run, bit for bit."""
        passed = live(self.configs[name], path)
        assert self.whole[name].differences(outcome(path)) == [], path.name
        return passed


@pytest.fixture(scope="module")
def runs(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Two tasks; with dropout, so that random streams have to be found again too, and scores that
    are not all zero."""
    changes = {"data.order": ["shape", "colour"], "model.dropout": 0.1, "optim.lr": 0.05}
    changes["data.metrics"] = {"shape": "rouge_l", "colour": "rouge_l"}
    values = small_config.override(changes).model_dump(mode="json")
    runs = Runs({}, {}, {})
    for name, method in METHODS.items():
        config = runs.configs[name] = RunConfig.parse(values | {"method": method})
        folder = tmp_path_factory.mktemp(name)
        result = execute(config, folder / "whole")
        assert any(score for row in result["matrix"] for score in row), name
        runs.whole[name] = outcome(folder / "whole")
        runs.points[name] = runs.finish(folder / "points", name)  # checkpoints change nothing
    return runs


def test_every_kind_of_point_is_covered(runs: Runs) -> None:
    assert {*runs.points["forever"]} == {
        "task", "replay", "consolidation", "event", "stage", *BEFORE.values(), *AFTER.values(),
    }  # fmt: skip
    assert {"replay", "consolidation"} <= {*runs.points["fixed_interval"]}


EVERY_POINT = [
    pytest.param(name, 1, id=name, marks=[] if name == "forever" else pytest.mark.slow)
    for name in METHODS
]
EVERY_SIXTH_POINT = [pytest.param(name, 6, id=f"{name}-some") for name in METHODS]


@pytest.mark.parametrize(("name", "stride"), EVERY_POINT + EVERY_SIXTH_POINT)
def test_killed_again_and_again(runs: Runs, tmp_path: Path, name: str, stride: int) -> None:
    """One run of many lives, each killed at the `stride`-th new thing; with 1, every point is a
    point of death once.

    A life must get further than the last; the point of its death is counted from where it starts.
    """
    at, lives, passed = stride, 1, set[str]()
    while (life := live(runs.configs[name], tmp_path, at))[-1:] == ["killed"]:
        passed.update(life)
        lives += 1
        # Killed before anything new was on disk: the next life has to be allowed one more step.
        new = "saved" in life[:-2] or "answers" in life[:-2]
        at = stride if new else at + 1
        assert lives < 3 * len(runs.points[name])
    assert runs.whole[name].differences(outcome(tmp_path)) == []
    assert lives > (20 if stride == 1 else 2)
    assert {*passed, *life} >= {*runs.points[name]}


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["forever.training.loop", "helpers"])


def live_and_die(config: RunConfig, path: Path, at: int, threads: int) -> None:
    torch.set_num_threads(threads)
    live(config, path, at, kill=lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.parametrize(
    ("kind", "which"),
    [("task", 1), ("replay", -1), ("consolidation", 0), ("evaluate", 1), ("saved", 5)],
)
def test_sigkill(runs: Runs, tmp_path: Path, kind: str, which: int) -> None:
    """In a process of its own."""
    process = PROCESSES.Process(
        target=live_and_die,
        args=(runs.configs["forever"], tmp_path, runs.place(kind, which), torch.get_num_threads()),
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    runs.finish(tmp_path)


@pytest.mark.parametrize(
    "kind", ["task", "consolidation", "probe", "end_task", "evaluate", "finish"]
)
def test_without_checkpoints_within_a_task_it_begins_again(
    runs: Runs, tmp_path: Path, kind: str
) -> None:
    """The last task is repeated from its start, or only scored, if it was trained."""
    config = runs.configs["forever"]
    passed = [point for point in runs.points["forever"] if point != "saved"]
    at = len(passed) - passed[::-1].index(kind) + 1  # one was saved: the first task
    at += kind in ("evaluate", "finish")  # and the second
    assert runs.die(tmp_path, at, checkpoint_s=1e9)[-2] == kind
    again = live(config, tmp_path, checkpoint_s=1e9)
    assert runs.whole["forever"].differences(outcome(tmp_path)) == []
    assert again.count("end_task") == (0 if kind in ("evaluate", "finish") else 1)


# ---- damage


@pytest.mark.parametrize("kind", ["replay", "end_task", "stage"])
def test_damaged_newest_checkpoint_falls_back(runs: Runs, tmp_path: Path, kind: str) -> None:
    runs.die(tmp_path, runs.place(kind, -1))
    newest = max((tmp_path / "checkpoints").iterdir())
    data = (newest / "tensors.safetensors").read_bytes()
    (newest / "tensors.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    # Dies soon after: what it saved must be found by the third life.
    assert newest.exists() or "saved" in runs.die(tmp_path, 4)
    runs.finish(tmp_path)


def test_all_checkpoints_damaged_begins_anew(runs: Runs, tmp_path: Path) -> None:
    runs.die(tmp_path, runs.place("consolidation", -1))
    for folder in (tmp_path / "checkpoints").iterdir():
        (folder / "state.json").write_text("{", encoding="utf-8")
    runs.die(tmp_path, 3)
    runs.die(tmp_path, 9)
    runs.finish(tmp_path)


@pytest.mark.parametrize("checkpoint_s", [0.0, 1e9])
def test_torn_journal_line(runs: Runs, tmp_path: Path, checkpoint_s: float) -> None:
    """Also of a run that has no checkpoint yet, and begins again."""
    at = 3 if checkpoint_s else runs.place("replay", -1)
    runs.die(tmp_path, at, checkpoint_s=checkpoint_s)
    for name in ("steps.jsonl", "events.jsonl"):
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write('{"task": "sha')
    runs.finish(tmp_path)


@pytest.mark.parametrize(
    ("changes", "points"),
    [
        # The untrained model's scores are not measured again with trained weights.
        ({"evaluation.forward_transfer": True}, [("evaluate", 0), ("evaluate", 1), ("replay", 0)]),
        ({"model.tuning": "full", "optim.lr": 1e-3}, [("replay", 2)]),
    ],
    ids=["forward transfer", "full fine-tuning"],
)
def test_other_runs_resume(
    runs: Runs, tmp_path: Path, changes: dict[str, Any], points: list[tuple[str, int]]
) -> None:
    config = runs.configs["forever"].override(changes)
    execute(config, tmp_path / "whole")
    passed = live(config, tmp_path / "points")
    for kind, which in points:
        path = tmp_path / f"{kind} {which}"
        at = [n for n, point in enumerate(passed, 1) if point == kind][which]
        assert live(config, path, at)[-1] == "killed"
        live(config, path)
        assert outcome(tmp_path / "whole").differences(outcome(path)) == []


# ---- data and folder


def test_unfinished_run_needs_resume(runs: Runs, tmp_path: Path) -> None:
    runs.die(tmp_path, 4)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match=r"holds an unfinished run; .*--resume"):
        execute(runs.configs["forever"], tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("finished", [False, True])
def test_another_configuration_in_the_folder(runs: Runs, tmp_path: Path, finished: bool) -> None:
    config = runs.configs["mix_replay"]
    live(config, tmp_path, None if finished else 4)
    with pytest.raises(
        InputError, match=r"a run of another configuration \(optim.lr is 0.05 there, 0.5 here\)"
    ):
        run_local(config.override({"optim.lr": 0.5}), tmp_path, resume=True)
    with pytest.raises(InputError, match=r"another configuration \(method"):
        run_local(runs.configs["forever"], tmp_path, resume=True)


def test_changed_data_is_refused(runs: Runs, data_root: Path, tmp_path: Path) -> None:
    """The same rows in another place are the same data; a finished run that learned other rows has
    other scores."""
    moved, path = tmp_path / "data", tmp_path / "run"
    config = runs.configs["forever"].override({"data.root": str(moved)})
    shutil.copytree(data_root / "toy", moved / "toy")
    changed = moved / "toy" / "colour" / "test.jsonl"
    rows = changed.read_text()
    runs.die(path, 4)
    changed.write_text(rows.replace("red", "green"))
    with pytest.raises(InputError, match=r"this changed .*: data of colour is .* there, .* here; "):
        live(config, path)
    changed.write_text(rows)
    live(config, path)
    assert runs.whole["forever"].differences(outcome(path)) == []

    result = execute(config, path)
    changed.write_text(rows.replace("red", "green"))
    with pytest.raises(InputError, match=r"finished, and the rows of task colour are no longer"):
        execute(config, path)
    (trial,) = Sweep("s", config, {"base": {}}).trials()
    check_finished([trial], tmp_path)  # nothing is finished there
    path.rename(tmp_path / trial.key)
    with pytest.raises(InputError, match="rows of task colour"):
        check_finished([trial], tmp_path)
    changed.write_text(rows)
    check_finished([trial], tmp_path)  # its tasks are the same
    path = tmp_path / trial.key / "result.json"
    path.write_text(path.read_text().replace('"shape"', '"smell"'))
    with pytest.raises(InputError, match="another version of the benchmark 'toy', with the tasks"):
        check_finished([trial], tmp_path)
    shutil.rmtree(moved)
    check_finished([trial], tmp_path)  # rows that are gone say nothing
    assert result["data"].keys() == {"shape", "colour"}


def test_a_run_that_goes_on_elsewhere_says_where_it_was(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.die(tmp_path, 4)
    first = json.loads((tmp_path / "environment.json").read_text())
    assert "resumed" not in first
    monkeypatch.setattr("forever.runs.environment.revision", lambda: "later")
    runs.die(tmp_path, 2)
    runs.finish(tmp_path)  # the same place again is no news
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert [life["revision"] for life in environment.pop("resumed")] == ["later"]
    assert environment == first


# ---- answers that are lost


@pytest.mark.parametrize("lost", ["predictions/1/1.jsonl", "predictions"])
@pytest.mark.parametrize("kind", ["task", "evaluate"])
def test_lost_answers_of_a_past_stage_are_not_given_again_by_later_weights(
    runs: Runs, tmp_path: Path, lost: str, kind: str
) -> None:
    runs.die(tmp_path, runs.place(kind, -1, "mix_replay"), "mix_replay")
    target = tmp_path / lost
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    for _ in range(2):  # the first refusal leaves nothing behind that would pass for answers
        with pytest.raises(InputError, match=r"1/1\.jsonl is missing, .* give another --out"):
            live(runs.configs["mix_replay"], tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_lost_answers_for_forward_transfer_are_missed(runs: Runs, tmp_path: Path) -> None:
    """Before training, and of the task that came next."""
    config = runs.configs["mix_replay"].override({"evaluation.forward_transfer": True})
    passed = live(config, tmp_path / "points")
    live(config, tmp_path / "run", len(passed) - passed[::-1].index("task"))
    for lost in ("0/2.jsonl", "1/2.jsonl"):
        damaged = Path(shutil.copytree(tmp_path / "run", tmp_path / lost[0]))
        (damaged / "predictions" / lost).unlink()
        with pytest.raises(InputError, match=rf"predictions/{lost} is missing"):
            live(config, damaged)


def test_lost_answers_of_the_stage_whose_weights_are_there_are_given_again(
    runs: Runs, tmp_path: Path
) -> None:
    runs.die(tmp_path, runs.place("finish", -1))
    shutil.rmtree(tmp_path / "predictions" / "2")
    runs.finish(tmp_path)


@pytest.mark.parametrize(("name", "kind"), [("forever", "replay"), ("mix_replay", "task")])
def test_a_budget_is_kept_over_two_lives(runs: Runs, tmp_path: Path, name: str, kind: str) -> None:
    """Killed right after its last update of a kind: what was spent before that still counts."""
    config = runs.configs[name].override({"budget.examples": 3})
    points = live(config, tmp_path / "whole")
    at = len(points) - points[::-1].index(kind)
    assert live(config, tmp_path / "killed", at)[-1] == "killed"
    live(config, tmp_path / "killed")
    whole, killed = outcome(tmp_path / "whole"), outcome(tmp_path / "killed")
    assert whole.differences(killed) == []
    assert killed.result["examples"] == whole.result["examples"]
    assert (killed.result["examples"]["replayed"], killed.result["budget"]) == (3, "exact")


@pytest.mark.parametrize(
    ("second_life_s", "replayed_s"),
    [(1.0, 4.0), (0.5, 3.5)],  # 2 + 1 + 1, and 2 + 3 * 0.5, of a budget of 3.5
)
def test_seconds_are_what_they_were_in_an_earlier_life(
    runs: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    second_life_s: float,
    replayed_s: float,
) -> None:
    """Killed after two replays, when an update took a second. If it takes as long afterwards,
    nothing differs."""
    config = runs.configs["fixed_interval"].override({"budget.seconds": 3.5})

    def live_with(update_s: float, path: Path, at: int | None = None) -> list[str]:
        monkeypatch.setattr(step_module, "perf_counter", count(step=update_s).__next__)
        return live(config, path, at)

    points = live_with(1.0, tmp_path / "whole")
    whole = outcome(tmp_path / "whole")
    replays = [i for i, point in enumerate(points, 1) if point in ("replay", "consolidation")]
    assert len(replays) == 4
    assert live_with(1.0, tmp_path / "killed", replays[1])[-1] == "killed"
    live_with(second_life_s, tmp_path / "killed")
    killed = outcome(tmp_path / "killed")
    assert (killed.differences(whole) == []) == (second_life_s == 1.0)
    last = killed.result["notes"]["colour"]
    assert (last["replay_seconds"], last["longest_replay_seconds"]) == (replayed_s, 1.0)
    assert killed.result["budget"] == "exact"
