"""A run that is killed anywhere ends bit-equal to one that was not: adapter, matrix, journal,
answers.

Most kills happen inside this process: a private exception that nothing catches is raised at a
point (see faults/inject.py), and the next life starts from what is on disk. Some are real SIGKILLs.
"""

import gc
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from faults.inject import SEAMS, Point, watched
from helpers import (
    CONFIGS,
    KILLED_CLOSES_NO_FILES,
    ONE_EACH,
    Outcome,
    canned_sample,
    execute,
    outcome,
)
from hypothesis import strategies
from made_up import rewrite

from forever.config.methods import METHOD_CONFIGS
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.evaluation import decoding
from forever.launch.checks import check_finished
from forever.launch.local import Placement, run_local
from forever.runs import checkpoint
from forever.sweeps.sweep import Sweep
from forever.training import step as step_module

pytestmark = KILLED_CLOSES_NO_FILES

METHODS: dict[str, dict[str, Any]] = {
    **ONE_EACH,
    "forever": {**CONFIGS["forever both"], "beta": 0.1},
}
KILLED = Point("killed")


class Killed(BaseException):
    """Stands for SIGKILL: neither trackers nor anything else may catch it."""


def raise_killed() -> None:
    raise Killed


def live(
    config: RunConfig,
    path: Path,
    at: int | Point | None = None,
    checkpoint_s: float = 0.0,
    kill: Callable[[], None] = raise_killed,
) -> list[Point]:
    """One life of a run, killed at this point, or at its `at`-th one, if it gets there.

    What it passed; a last point of the phase "killed" says that it was.
    """
    passed: list[Point] = []

    def listen(point: Point) -> None:
        passed.append(point)
        if at in (point, len(passed)):
            kill()

    placement = Placement(device="cpu", checkpoint_s=checkpoint_s)
    try:
        with watched(listen):
            run_local(config, path, resume=True, placement=placement)
    except Killed:
        passed.append(KILLED)
    return passed


def phases(points: Iterable[Point]) -> list[str]:
    return [point.phase for point in points]


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
    points: dict[str, list[Point]]

    def place(self, phase: str, which: int, name: str = "forever") -> Point:
        """A point of this phase."""
        return [point for point in self.points[name] if point.phase == phase][which]

    def die(
        self, path: Path, at: int | Point, name: str = "forever", **options: Any
    ) -> list[Point]:
        passed = live(self.configs[name], path, at, **options)
        assert passed[-1] == KILLED, at
        assert not (path / "result.json").exists()
        return passed

    def finish(self, path: Path, name: str = "forever") -> list[Point]:
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
        scored = any(score for row in result["matrix"] for score in row)
        assert scored or name == "mtl", name  # which learns too little in one stage
        runs.whole[name] = outcome(folder / "whole")
        runs.points[name] = runs.finish(folder / "points", name)  # checkpoints change nothing
    return runs


def test_every_phase_is_covered(runs: Runs) -> None:
    """Every method of the registry, and every phase that is known, by some method at least."""
    assert {config.method.name for config in runs.configs.values()} == METHOD_CONFIGS.keys()
    passed = {phase for points in runs.points.values() for phase in phases(points)}
    assert passed == {
        *("warm-up", "task", "replay", "consolidation", "probe", "reading"),
        *("journal", "event", "stage"),
        *(seam.phase for seam in SEAMS if isinstance(seam.phase, str)),
    }


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "forever" else pytest.mark.slow) for n in METHODS]
)
def test_killed_at_every_point(runs: Runs, tmp_path: Path, name: str) -> None:
    """One run of many lives: each point is a point of death once."""
    for point in dict.fromkeys(runs.points[name]):
        runs.die(tmp_path, point, name)
    runs.finish(tmp_path, name)


@pytest.mark.parametrize("name", METHODS)
def test_killed_once_in_each_phase(runs: Runs, tmp_path: Path, name: str) -> None:
    """For the last time that it occurs, when there is most to lose."""
    last = {point.phase: place for place, point in enumerate(runs.points[name])}
    for place in sorted(last.values()):
        runs.die(tmp_path, runs.points[name][place], name)
    runs.finish(tmp_path, name)


ANYWHERE = hypothesis.settings(
    deadline=None,
    derandomize=True,  # make soak draws others
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.mark.parametrize(
    "examples", [2, pytest.param(10, marks=pytest.mark.slow)], ids=["some", "many"]
)
@pytest.mark.parametrize("name", METHODS)
def test_killed_anywhere(
    runs: Runs, tmp_path_factory: pytest.TempPathFactory, name: str, examples: int
) -> None:
    """Two deaths at points that nobody chose, with checkpoints always or after tasks only."""
    points = strategies.sampled_from(runs.points[name])
    checkpoint_s = strategies.sampled_from([0.0, 1e9])

    @hypothesis.settings(ANYWHERE, max_examples=examples)
    @hypothesis.given(points, points, checkpoint_s)
    def survives(first: Point, second: Point, checkpoint_s: float) -> None:
        path = tmp_path_factory.mktemp("anywhere")
        for point in (first, second):
            live(runs.configs[name], path, point, checkpoint_s)
        runs.finish(path, name)

    survives()


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["forever.training.loop", "peft", "transformers.models.qwen3.modeling_qwen3"]
)


def live_and_die(config: RunConfig, path: Path, at: Point, threads: int) -> None:
    torch.set_num_threads(threads)
    decoding.sample = canned_sample  # this process ends with the function
    live(config, path, at, kill=lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("forever", "warm-up"), ("forever", "replay"), ("forever", "consolidation"),
        ("forever", "memory"), ("forever", "scoring"), ("forever", "checkpoint"),
        ("ewc separate", "fisher"), ("recurrent_kif", "merge"), ("ssr", "synthesis"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_sigkill(runs: Runs, tmp_path: Path, name: str, phase: str) -> None:
    """In a process of its own."""
    process = PROCESSES.Process(
        target=live_and_die,
        args=(runs.configs[name], tmp_path, runs.place(phase, -1, name), torch.get_num_threads()),
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    runs.finish(tmp_path, name)


@pytest.mark.parametrize(
    "phase", ["task", "consolidation", "probe", "end of task", "scoring", "adapter"]
)
def test_without_checkpoints_within_a_task_it_begins_again(
    runs: Runs, tmp_path: Path, phase: str
) -> None:
    """The last task is repeated from its start, or only scored, if it was trained."""
    runs.die(tmp_path, runs.place(phase, -1), checkpoint_s=1e9)
    again = live(runs.configs["forever"], tmp_path, checkpoint_s=1e9)
    assert runs.whole["forever"].differences(outcome(tmp_path)) == []
    assert phases(again).count("end of task") == (0 if phase in ("scoring", "adapter") else 1)


# ---- damage


@pytest.mark.parametrize("phase", ["replay", "end of task", "stage"])
def test_damaged_newest_checkpoint_falls_back(runs: Runs, tmp_path: Path, phase: str) -> None:
    runs.die(tmp_path, runs.place(phase, -1))
    newest = max((tmp_path / "checkpoints").iterdir())
    data = (newest / "tensors.safetensors").read_bytes()
    (newest / "tensors.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    # Dies soon after: what it saved must be found by the third life.
    assert newest.exists() or "saved" in phases(runs.die(tmp_path, 5))
    runs.finish(tmp_path)


@pytest.mark.parametrize(
    ("method", "name", "change", "problem"),
    [
        ("forever", "theta", lambda tensor: tensor[1:], "trained numbers, this model"),
        ("forever", "theta", None, "the checkpoint has 0 trained numbers"),
        ("forever", "adam/exp_avg", lambda tensor: tensor[1:], "moments of AdamW"),
        ("forever", "adam/step", None, "moments of AdamW"),
        ("olora", "frozen/", lambda tensor: tensor[..., 1:], "which are not of this model"),
        ("olora", "frozen/", lambda tensor: tensor[0, 0, 0], "which are not of this model"),
    ],
)
def test_tensors_that_are_not_of_the_model_are_refused(
    runs: Runs,
    tmp_path: Path,
    method: str,
    name: str,
    change: Callable[[torch.Tensor], torch.Tensor] | None,
    problem: str,
) -> None:
    """As a checkpoint has them whose digests hold, from a strange hand."""
    runs.die(tmp_path, runs.place("journal", -1, method), method)
    path = sorted((tmp_path / "checkpoints").glob("[!.]*"))[-1]
    saved = checkpoint.read(path)
    assert saved is not None
    chosen = min(key for key in saved.tensors if key.startswith(name))
    tensor = saved.tensors.pop(chosen)
    if change:
        saved.tensors[chosen] = change(tensor)
    checkpoint.write(path, saved.tensors, saved.state)
    with pytest.raises(InputError, match=problem):
        live(runs.configs[method], tmp_path)


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
        ({"evaluation.forward_transfer": True}, [("scoring", 0), ("scoring", 1), ("replay", 0)]),
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
    for phase, which in points:
        path = tmp_path / f"{phase} {which}"
        at = [point for point in passed if point.phase == phase][which]
        assert live(config, path, at)[-1] == KILLED
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
    rewrite(path, path.read_text().replace('"shape"', '"smell"'))
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
@pytest.mark.parametrize("phase", ["task", "scoring"])
def test_lost_answers_of_a_past_stage_are_not_given_again_by_later_weights(
    runs: Runs, tmp_path: Path, lost: str, phase: str
) -> None:
    runs.die(tmp_path, runs.place(phase, -1, "mix_replay"), "mix_replay")
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
    live(config, tmp_path / "run", [point for point in passed if point.phase == "task"][-1])
    for lost in ("0/2.jsonl", "1/2.jsonl"):
        damaged = Path(shutil.copytree(tmp_path / "run", tmp_path / lost[0]))
        (damaged / "predictions" / lost).unlink()
        with pytest.raises(InputError, match=rf"predictions/{lost} is missing"):
            live(config, damaged)


@pytest.mark.parametrize(("name", "phase"), [("forever", "replay"), ("mix_replay", "task")])
def test_a_budget_is_kept_over_two_lives(runs: Runs, tmp_path: Path, name: str, phase: str) -> None:
    """Killed right after its last update of a kind: what was spent before that still counts."""
    config = runs.configs[name].override({"budget.examples": 3})
    points = phases(live(config, tmp_path / "whole"))
    after = len(points) - points[::-1].index(phase) + 1
    assert live(config, tmp_path / "killed", after)[-1] == KILLED
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
        return phases(live(config, path, at))

    points = live_with(1.0, tmp_path / "whole")
    whole = outcome(tmp_path / "whole")
    replays = [i for i, point in enumerate(points, 1) if point in ("replay", "consolidation")]
    assert len(replays) == 4
    assert live_with(1.0, tmp_path / "killed", replays[1] + 1)[-1] == "killed"
    live_with(second_life_s, tmp_path / "killed")
    killed = outcome(tmp_path / "killed")
    assert (killed.differences(whole) == []) == (second_life_s == 1.0)
    last = killed.result["notes"]["colour"]
    assert (last["replay_seconds"], last["longest_replay_seconds"]) == (replayed_s, 1.0)
    assert killed.result["budget"] == "exact"
