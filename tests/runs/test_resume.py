"""A run that is killed anywhere ends bit-equal to one that was not: adapter, matrix, journal,
answers.

Most kills happen inside this process: a private exception that nothing catches is raised at a
chosen point, and the next life starts from what is on disk. Some are real SIGKILLs of a forked
process.
"""

import gc
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import CONFIGS, KILLED_CLOSES_NO_FILES, Outcome, canned_sample, execute, lines, outcome

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
from forever.training.step import probe

pytestmark = KILLED_CLOSES_NO_FILES

METHODS: dict[str, dict[str, Any]] = {
    "forever": {**CONFIGS["forever both"], "beta": 0.1},
    "ewc": CONFIGS["ewc separate"],
    **{
        name: CONFIGS[name]
        for name in (
            "mix_replay", "fixed_interval", "olora", "moelora", "sapt", "migu", "ssr",
            "recurrent_kif", "aimmerging", "vbm",
        )
    },
}  # fmt: skip


class Killed(BaseException):
    """Stands for SIGKILL: neither trackers nor anything else may catch it."""


class Trap(Tracker):
    """Kills at the n-th thing that happens: anything a tracker is told, any checkpoint, any file
    written whole."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.passed: list[str] = []

    def point(self, name: str) -> None:
        self.passed.append(name)
        if len(self.passed) == self.at:
            raise Killed

    def step(self, line: Any) -> None:
        self.point(line["kind"])

    def event(self, event: Any) -> None:
        self.point("event")

    def stage(self, number: int, scores: Any) -> None:
        self.point("stage")


def wrapped(trap: Trap, name: str, function: Callable[..., Any], after: bool) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if not after:
            trap.point(name)
            return function(*arguments, **options)
        result = function(*arguments, **options)
        trap.point(name)
        return result

    return call


def live(config: RunConfig, path: Path, at: int | None, checkpoint_s: float = 0.0) -> Trap:
    """One life of a run, killed at its `at`-th point if it gets there."""
    trap = Trap(at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", wrapped(trap, "saved", checkpoint.save, after=True))
        patch.setattr(step_module, "probe", wrapped(trap, "probe", probe, after=False))
        patch.setattr(
            session, "write_lines", wrapped(trap, "answers", session.write_lines, after=False)
        )
        patch.setattr(loop, "evaluate", wrapped(trap, "evaluate", loop.evaluate, after=False))
        end = session.Session.end_training
        patch.setattr(session.Session, "end_training", wrapped(trap, "end_task", end, after=False))
        for save in ("save_peft", "save_mixture"):
            patch.setattr(lora, save, wrapped(trap, "finish", getattr(lora, save), after=True))
        try:
            placement = Placement(device="cpu", checkpoint_s=checkpoint_s)
            run_local(config, path, resume=True, trackers=[trap], placement=placement)
        except Killed:
            trap.passed.append("killed")
    return trap


@pytest.fixture(scope="module", autouse=True)
def written() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "sample", canned_sample)
        yield
    gc.collect()  # here, and not in whichever test comes next


@pytest.fixture(scope="module")
def configs(small_config: RunConfig) -> dict[str, RunConfig]:
    """Two tasks; with dropout, so that random streams have to be found again too, and scores that
    are not all zero."""
    metrics = {"shape": "rouge_l", "colour": "rouge_l"}
    base = small_config.override(
        {
            "data.order": ["shape", "colour"],
            "data.metrics": metrics,
            "model.dropout": 0.1,
            "optim.lr": 0.05,
        }
    )
    values = base.model_dump(mode="json")
    return {name: RunConfig.parse(values | {"method": method}) for name, method in METHODS.items()}


@dataclass
class Runs:
    """Runs that nobody interrupts: by method the configuration, the outcome, and the points that a
    run with checkpoints after every update passes."""

    configs: dict[str, RunConfig]
    whole: dict[str, Outcome]
    points: dict[str, list[str]]

    def check(self, name: str, path: Path) -> None:
        """The run in `path` ended as the uninterrupted one, bit for bit."""
        assert self.whole[name].differences(outcome(path)) == [], path.name


@pytest.fixture(scope="module")
def runs(configs: dict[str, RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    runs = Runs(configs, {}, {})
    for name, config in configs.items():
        folder = tmp_path_factory.mktemp(name)
        execute(config, folder / "whole")
        runs.whole[name] = outcome(folder / "whole")
        assert any(score for row in runs.whole[name].result["matrix"] for score in row), name
        runs.points[name] = live(config, folder / "points", None).passed
        runs.check(name, folder / "points")  # checkpoints do not change a run
    return runs


def test_every_kind_of_point_is_covered(runs: Runs) -> None:
    assert {*runs.points["forever"]} == {
        "task", "replay", "consolidation", "probe", "event", "saved", "end_task", "evaluate",
        "answers", "stage", "finish",
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
    lives, passed = 0, []
    at = stride
    while True:
        trap = live(runs.configs[name], tmp_path, at)
        lives += 1
        passed += trap.passed
        if trap.passed[-1:] != ["killed"]:
            break
        # Killed before anything new was on disk: the next life has to be allowed one more step.
        new = "saved" in trap.passed[:-2] or "answers" in trap.passed[:-2]
        at = stride if new else at + 1
        assert lives < 3 * len(runs.points[name])
    runs.check(name, tmp_path)
    assert lives > (20 if stride == 1 else 2)
    assert {*passed} >= {*runs.points[name]}


def deaths(kinds: list[str], every: bool) -> list[int]:
    """Points at which to be killed: all, or the first and the last of each kind.

    Saves are left out, since the point after a save is the point before what follows it.
    """
    chosen = [n for n, kind in enumerate(kinds, 1) if kind not in ("saved", "answers")]
    if every:
        return chosen
    first = {kinds[n - 1]: n for n in reversed(chosen)}
    last = {kinds[n - 1]: n for n in chosen}
    return sorted({*first.values(), *last.values()})


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_once(runs: Runs, tmp_path: Path, every: bool) -> None:
    """Independent runs of the method with the most state, each killed at one point."""
    for at in deaths(runs.points["forever"], every):
        path = tmp_path / str(at)
        assert live(runs.configs["forever"], path, at).passed[-1] == "killed"
        assert not (path / "result.json").exists()
        live(runs.configs["forever"], path, None)
        runs.check("forever", path)


@pytest.fixture(scope="module")
def plan(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The points of a run that saves at the end of each task only."""
    passed = live(runs.configs["forever"], tmp_path_factory.mktemp("plan"), None, 1e9).passed
    assert passed.count("saved") == 2
    return passed


@pytest.mark.parametrize(
    "kind", ["task", "consolidation", "probe", "end_task", "evaluate", "finish"]
)
def test_without_checkpoints_within_a_task_it_begins_again(
    runs: Runs, plan: list[str], tmp_path: Path, kind: str
) -> None:
    """The last task is repeated from its start, or only scored, if it was trained."""
    config, at = runs.configs["forever"], len(plan) - plan[::-1].index(kind)
    assert live(config, tmp_path, at, checkpoint_s=1e9).passed[-1] == "killed"
    again = live(config, tmp_path, None, checkpoint_s=1e9).passed
    runs.check("forever", tmp_path)
    assert again.count("end_task") == (0 if kind in ("evaluate", "finish") else 1)


# ---- damage


def damage_newest(path: Path) -> str:
    """Flip a bit in the newest checkpoint; its name."""
    newest = max((path / "checkpoints").iterdir())
    file = newest / "tensors.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    return newest.name


def at_kind(kinds: list[str], kind: str, which: int) -> int:
    return [n for n, name in enumerate(kinds, 1) if name == kind][which]


@pytest.mark.parametrize("kind", ["replay", "end_task", "stage"])
def test_damaged_newest_checkpoint_falls_back(runs: Runs, tmp_path: Path, kind: str) -> None:
    at = at_kind(runs.points["forever"], kind, -1)
    live(runs.configs["forever"], tmp_path, at)
    damaged = damage_newest(tmp_path)
    # Dies soon after: what it saved must be found by the third life.
    again = live(runs.configs["forever"], tmp_path, 4)
    assert again.passed[-1] == "killed"
    assert (
        damaged in {p.name for p in (tmp_path / "checkpoints").iterdir()} or "saved" in again.passed
    )
    live(runs.configs["forever"], tmp_path, None)
    runs.check("forever", tmp_path)


def test_all_checkpoints_damaged_begins_anew(runs: Runs, tmp_path: Path) -> None:
    live(runs.configs["forever"], tmp_path, at_kind(runs.points["forever"], "consolidation", -1))
    for folder in (tmp_path / "checkpoints").iterdir():
        (folder / "state.json").write_text("{", encoding="utf-8")
    for at in (3, 9, None):
        live(runs.configs["forever"], tmp_path, at)
    runs.check("forever", tmp_path)


@pytest.mark.parametrize("call", ["save_file", "_digests", "sync"])
def test_torn_checkpoint(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Killed while a checkpoint is being written, twice in a row at different places."""
    original = getattr(checkpoint, call)
    for place in (3, 9):
        count = iter(range(1, 10**6))

        def torn(*arguments: Any, count: Iterator[int] = count, place: int = place) -> Any:
            if next(count) == place:
                raise Killed
            return original(*arguments)

        monkeypatch.setattr(checkpoint, call, torn)
        assert live(runs.configs["forever"], tmp_path, None).passed[-1] == "killed"
        assert any(p.name.startswith(".") for p in (tmp_path / "checkpoints").iterdir())
    monkeypatch.setattr(checkpoint, call, original)
    live(runs.configs["forever"], tmp_path, None)
    runs.check("forever", tmp_path)
    assert not any(p.name.startswith(".") for p in (tmp_path / "checkpoints").iterdir())


def test_torn_journal_line(runs: Runs, tmp_path: Path) -> None:
    live(runs.configs["forever"], tmp_path, at_kind(runs.points["forever"], "replay", -1))
    for name in ("steps.jsonl", "events.jsonl"):
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write('{"task": "sha')
    live(runs.configs["forever"], tmp_path, None)
    runs.check("forever", tmp_path)


def test_interrupted_before_the_first_checkpoint(runs: Runs, tmp_path: Path) -> None:
    assert live(runs.configs["forever"], tmp_path, 3, checkpoint_s=1e9).passed == [
        "task",
        "task",
        "task",
        "killed",
    ]
    assert len(lines(tmp_path / "steps.jsonl")) == 3
    live(runs.configs["forever"], tmp_path, None)
    runs.check("forever", tmp_path)


def test_scores_before_training_survive(runs: Runs, tmp_path: Path) -> None:
    """Forward transfer: the untrained model's scores are not measured again with trained
    weights."""
    config = runs.configs["forever"].override({"evaluation.forward_transfer": True})
    execute(config, tmp_path / "whole")
    plan = live(config, tmp_path / "plan", None).passed
    evaluations = [n for n, kind in enumerate(plan, 1) if kind == "evaluate"]
    for at in (*evaluations[:2], at_kind(plan, "replay", 0)):
        path = tmp_path / str(at)
        live(config, path, at)
        live(config, path, None)
        assert outcome(tmp_path / "whole").differences(outcome(path)) == []
    assert outcome(tmp_path / "whole").result["fwt"] is not None


def test_full_fine_tuning_resumes(runs: Runs, tmp_path: Path) -> None:
    config = runs.configs["forever"].override({"model.tuning": "full", "optim.lr": 1e-3})
    execute(config, tmp_path / "whole")
    live(config, tmp_path / "run", at_kind(runs.points["forever"], "replay", 2))
    live(config, tmp_path / "run", None)
    assert outcome(tmp_path / "whole").differences(outcome(tmp_path / "run")) == []


# ---- data and folder


def interrupted(config: RunConfig, path: Path) -> None:
    assert live(config, path, 4).passed[-1] == "killed"


def test_unfinished_run_needs_resume(runs: Runs, tmp_path: Path) -> None:
    interrupted(runs.configs["forever"], tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match=r"holds an unfinished run; .*--resume"):
        execute(runs.configs["forever"], tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("finished", [False, True])
def test_another_configuration_in_the_folder(runs: Runs, tmp_path: Path, finished: bool) -> None:
    config = runs.configs["mix_replay"]
    execute(config, tmp_path) if finished else interrupted(config, tmp_path)
    with pytest.raises(
        InputError,
        match=r"holds a run of another configuration \(optim.lr is 0.05 there, 0.5 here\)",
    ):
        run_local(config.override({"optim.lr": 0.5}), tmp_path, resume=True)
    with pytest.raises(InputError, match=r"another configuration \(method"):
        run_local(runs.configs["forever"], tmp_path, resume=True)


def test_changed_data_is_refused(runs: Runs, data_root: Path, tmp_path: Path) -> None:
    config, moved = runs.configs["forever"], tmp_path / "data"
    interrupted(config, tmp_path / "run")
    for source in (data_root / "toy").rglob("*.jsonl"):
        target = moved / source.relative_to(data_root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    changed = moved / "toy" / "colour" / "test.jsonl"
    records = lines(changed)
    original = changed.read_bytes()
    changed.write_text(
        "".join(json.dumps(r | {"output": "green"}) + "\n" for r in records), encoding="utf-8"
    )
    elsewhere = config.override({"data.root": str(moved)})
    with pytest.raises(
        InputError, match=r"the data changed since this run began; give another --out"
    ):
        live(elsewhere, tmp_path / "run", None)
    changed.write_bytes(original)  # the same rows in another place are the same data
    live(elsewhere, tmp_path / "run", None)
    execute(config, tmp_path / "whole")
    assert outcome(tmp_path / "whole").differences(outcome(tmp_path / "run")) == []


def test_changed_data_of_a_finished_run_is_refused(
    runs: Runs, data_root: Path, tmp_path: Path
) -> None:
    """Its scores are not those of the rows that are there now."""
    config, moved = runs.configs["mix_replay"], tmp_path / "data"
    result = execute(config, tmp_path / "run")
    shutil.copytree(data_root / "toy", moved / "toy")
    elsewhere = config.override({"data.root": str(moved)})
    assert execute(elsewhere, tmp_path / "run") == result
    changed = moved / "toy" / "colour" / "train.jsonl"
    changed.write_text(
        "".join(json.dumps(r | {"output": "green"}) + "\n" for r in lines(changed)),
        encoding="utf-8",
    )
    with pytest.raises(
        InputError, match=r"run is finished, and the rows of task colour are no longer those"
    ):
        execute(elsewhere, tmp_path / "run")
    sweep = Sweep("s", elsewhere, {"base": {}})
    (trial,) = sweep.trials()
    check_finished([trial], tmp_path)  # nothing is finished there
    (tmp_path / "run").rename(tmp_path / trial.key)
    with pytest.raises(InputError, match="rows of task colour"):
        check_finished([trial], tmp_path)
    shutil.rmtree(moved)
    check_finished([trial], tmp_path)  # rows that are gone say nothing


def test_a_run_that_goes_on_elsewhere_says_where_it_was(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(runs.configs["forever"], tmp_path)
    first = json.loads((tmp_path / "environment.json").read_text())
    assert "resumed" not in first
    monkeypatch.setattr("forever.runs.environment.revision", lambda: "later")
    live(runs.configs["forever"], tmp_path, 2)
    live(runs.configs["forever"], tmp_path, None)  # the same place again is no news
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert [life["revision"] for life in environment.pop("resumed")] == ["later"]
    assert environment == first


# ---- real kills

KILLER = """
import json, os, signal, sys, torch
torch.set_num_threads(1)
from pathlib import Path
from forever.runs import checkpoint
from forever.training import loop as train
from forever.config.run import RunConfig
from forever.launch.local import Placement, run_local
from forever.evaluation.metrics import rouge_l
from forever.models.backbone import load
from forever.runs.tracking import Tracker

config, folder = RunConfig.parse(json.loads(sys.argv[1])), Path(sys.argv[2])
points = json.loads(sys.argv[3])
# These two import what every child needs.
load(config.model.name, torch.float32, torch.device("cpu"))
rouge_l("a", "a")

class Kill(Tracker):
    def __init__(self, kind, count): self.kind, self.count = kind, count
    def reach(self, kind):
        if kind == self.kind:
            self.count -= 1
            if self.count == 0: os.kill(os.getpid(), signal.SIGKILL)
    def step(self, line): self.reach(line["kind"])
    def stage(self, number, scores): self.reach("stage")

def child(path, kind, count):
    kill = Kill(kind, count)
    for owner, name in ((checkpoint, "sync"), (train, "evaluate"), (checkpoint, "_complete")):
        def call(*arguments, name=name, original=getattr(owner, name)):
            kill.reach(name)
            return original(*arguments)
        setattr(owner, name, call)
    placement = Placement(device="cpu", checkpoint_s=0.0)
    run_local(config, path, resume=True, trackers=[kill], placement=placement)

def life(path, kind, count):
    process = os.fork()
    if process == 0:
        try:
            child(path, kind, count)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

codes = []
for kind, count in points:
    path = folder / f"{kind}{count}"
    codes.append([life(path, kind, count), life(path, "", 0)])
print(json.dumps(codes))
"""
KILLS = [
    ("task", 2),
    ("task", 7),
    ("replay", 3),
    ("consolidation", 1),
    ("evaluate", 2),
    ("sync", 27),
    ("_complete", 9),
    ("stage", 1),
]


@pytest.fixture(scope="module")
def killed(
    runs: Runs, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, list[int]]]:
    """Runs killed by SIGKILL and gone on with, each life in a process of its own (forked after the
    imports)."""
    folder = tmp_path_factory.mktemp("killed")
    config = runs.configs["forever"].model_dump_json()
    command = [sys.executable, "-c", KILLER, config, str(folder), json.dumps(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.strip().splitlines()[-1])
    return folder, {
        f"{kind}{count}": pair for (kind, count), pair in zip(KILLS, codes, strict=True)
    }


@pytest.mark.parametrize("name", [f"{kind}{count}" for kind, count in KILLS])
def test_sigkill(killed: tuple[Path, dict[str, list[int]]], runs: Runs, name: str) -> None:
    folder, codes = killed
    assert codes[name] == [-9, 0]
    runs.check("forever", folder / name)


# ---- answers that are lost


@pytest.fixture(scope="module")
def stopped(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that died at the last point of a kind: their first stage is over."""
    paths: dict[str, Path] = {}
    for kind in ("task", "evaluate"):
        paths[kind] = tmp_path_factory.mktemp(kind) / "run"
        at = at_kind(runs.points["mix_replay"], kind, -1)
        assert live(runs.configs["mix_replay"], paths[kind], at).passed[-1] == "killed"
    return paths


@pytest.mark.parametrize("lost", ["predictions/1/1.jsonl", "predictions/1", "predictions"])
@pytest.mark.parametrize("kind", ["task", "evaluate"])
def test_lost_answers_of_a_past_stage_are_not_given_again_by_later_weights(
    runs: Runs, stopped: dict[str, Path], tmp_path: Path, lost: str, kind: str
) -> None:
    path = Path(shutil.copytree(stopped[kind], tmp_path / "run"))
    target = path / lost
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    for _ in range(2):  # the first refusal leaves nothing behind that would pass for answers
        with pytest.raises(InputError, match=r"1/1\.jsonl is missing, .* give another --out"):
            live(runs.configs["mix_replay"], path, None)
    assert not (path / "result.json").exists()


def test_lost_answers_for_forward_transfer_are_missed(runs: Runs, tmp_path: Path) -> None:
    """Before training, and of the task that came next."""
    config = runs.configs["mix_replay"].override({"evaluation.forward_transfer": True})
    path = tmp_path / "run"
    passed = live(config, tmp_path / "plan", None).passed
    assert live(config, path, at_kind(passed, "task", -1)).passed[-1] == "killed"
    for lost in ("0/2.jsonl", "1/2.jsonl"):
        damaged = Path(shutil.copytree(path, tmp_path / lost[0]))
        (damaged / "predictions" / lost).unlink()
        with pytest.raises(InputError, match=rf"predictions/{lost} is missing"):
            live(config, damaged, None)


def test_lost_answers_of_the_stage_whose_weights_are_there_are_given_again(
    runs: Runs, tmp_path: Path
) -> None:
    assert (
        live(runs.configs["forever"], tmp_path, len(runs.points["forever"])).passed[-2] == "finish"
    )
    shutil.rmtree(tmp_path / "predictions" / "2")
    live(runs.configs["forever"], tmp_path, None)
    runs.check("forever", tmp_path)
