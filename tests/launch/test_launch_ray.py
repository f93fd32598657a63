"""Sweeps and worker groups on a real local Ray: same numbers as alone, whatever dies on the way."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("mlflow")
import torch
from faults.inject import children
from helpers import Outcome, outcome, wait_until
from machines import this_cluster
from marks import ON_RAY
from ray_commands import begin, statuses, sweep_command
from rich.console import Console
from safetensors.torch import load_file, save_file

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch import cluster, tune
from forever.launch.local import prepare
from forever.launch.resources import (
    Allocation,
    Placement,
    Resources,
    SweepOutcome,
    divide,
    require_ray,
)
from forever.launch.start import run_sweep
from forever.launch.train import run_workers
from forever.launch.tune import fan_out, trial_resources
from forever.runs.console import ConsoleTracker
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress
from forever.runs.progress import stage_scores
from forever.sweeps.sweep import Sweep, Trial
from forever.sweeps.table import SweepTable

pytestmark = ON_RAY

CPU = Placement(device="cpu")


# ---- what fits


@pytest.mark.parametrize(
    ("total", "wanted", "share"),
    [
        ({"CPU": 2}, (1, 10, None, 0, "auto"), (2, 0, "cpu", {"CPU": 1}, 1)),
        ({"CPU": 8}, (1, 2, None, 0, "auto"), (2, 0, "cpu", {"CPU": 4}, 4)),
        ({"CPU": 64, "GPU": 8}, (2, 99, None, 4, "auto"), (2, 4, "cuda", {"GPU": 1}, None)),
        ({"CPU": 64, "GPU": 8}, (2, 99, None, 4, "cpu"), (16, 4, "cpu", {"CPU": 1}, 1)),
        ({"CPU": 8, "GPU": 4}, (1, 99, 3, 0, "cuda"), (3, 0, "cuda", {"GPU": 1}, None)),
        ({"CPU": 8, "GPU": 2}, (1, 10, None, 4, "auto"), None),
        ({"CPU": 8}, (1, 10, None, 0, "cuda"), None),
        ({"CPU": 2}, (1, 10, 3, 1, "cpu"), None),
        # Two runs share a GPU; a run may hold one and compute on the CPU.
        ({"GPU": 2}, (1, 99, None, 1, "auto", None, 0.5), (4, 1, "cuda", {"GPU": 0.5}, None)),
        ({"GPU": 2}, (1, 99, None, 0, "cpu", None, 0.5), (4, 0, "cpu", {"GPU": 0.5}, None)),
        ({"GPU": 2}, (1, 99, None, 2, "auto", None, 0.5), None),
        ({"GPU": 2}, (1, 99, None, 0, "auto", None, 3), None),
        # With fewer workers for a while.
        ({"GPU": 2}, (1, 99, None, 4, "auto", 1), (1, 4, "cuda", {"GPU": 1}, None, 1)),
        ({"GPU": 9}, (1, 99, None, 4, "auto", 1), (2, 4, "cuda", {"GPU": 1}, None, 1)),
        ({"CPU": 2}, (1, 1, None, 4, "cpu", 2), (1, 4, "cpu", {"CPU": 1}, 1, 2)),
        ({"GPU": 1}, (1, 9, None, 4, "auto", 2), None),
    ],
)
def test_runs_are_spread_over_what_is_present(total: Any, wanted: Any, share: Any) -> None:
    """What can never fit is refused."""
    machines, runs, concurrent, workers, device, *rest = wanted
    least, gpus = (*rest, None, None)[:2]
    resources = Resources(concurrent, workers, least, gpus, placement=Placement(device))
    if share is not None:
        at_once, number, where, *others = share
        expected = Allocation(at_once, number, Placement(where), *others)
        assert divide(total, machines, runs, resources) == expected
    else:
        with pytest.raises(InputError):
            divide(total, machines, runs, resources)


def test_trials_that_wait_hold_nothing_that_their_workers_need() -> None:
    held = trial_resources
    assert held(Allocation(2, 0, CPU, {"CPU": 2}, 2), {"CPU": 4}) == {"CPU": 2}
    waiting = Allocation(1, 1, Placement("cuda"), {"GPU": 1}, None)
    assert held(waiting, {"CPU": 2, "trial_slot": 4}) == {"trial_slot": 1}
    assert not {"CPU", "GPU"} & held(waiting, {"CPU": 2, "GPU": 1}).keys()


def test_a_cluster_that_grows_says_how_many_gpus_it_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def room(**resources: float) -> tuple[dict[str, float], int]:
        monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: resources)
        monkeypatch.setattr(cluster.ray, "nodes", lambda: [{"Alive": True}, {"Alive": False}])
        return cluster.capacity()

    assert room(CPU=4.0) == ({"CPU": 4.0}, 1)
    total, machines = room(CPU=4.0, later_gpus=8.0)
    assert (total["GPU"], machines) == (8.0, 2)
    assert room(CPU=4.0, GPU=9.0, later_gpus=8.0)[0]["GPU"] == 9.0


def test_without_ray_a_sweep_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    require_ray()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError):
        require_ray()


# ---- why something failed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Failure # 1\nTraceback\n  ...\na.FloatingPointError: diverged\n\n",
         "a.FloatingPointError: diverged"),
        ("KeyError: 1\nFailure # 2\nValueError: boom\nmore of it\n", "ValueError: boom"),
        ("OSError: no answer from http://me:pw@host", "OSError: no answer from http://***@host"),
        ("The actor died.\n", "The actor died."),
        (None, "ended by an error"),
    ],
)  # fmt: skip
def test_the_reason_of_a_failure(text: str | None, reason: str, tmp_path: Path) -> None:
    """A file that is gone ends no sweep."""
    if text is not None:
        (tmp_path / "error.txt").write_text(text, encoding="utf-8")
    assert cluster.last_error(str(tmp_path / "error.txt")) == reason


def test_an_error_is_shown_without_what_ray_wraps_around_it() -> None:
    from ray.train import ControllerError, WorkerGroupError
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback

    boom = UserExceptionWithTraceback(ValueError("boom\nmore"), "Traceback (most recent ...): ...")
    assert cluster.reason(WorkerGroupError("long", {1: boom})) == "ValueError: boom"
    assert cluster.reason(ControllerError(InputError("give another"))) == "give another"


# ---- sweeps in this process


NO_TARGET = {"model.targets": ["nothing"]}  # which only the model itself can refuse
REFUSED = "model.targets"  # the key


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The key of a trial each time that one begins or is tried again."""
    keys: list[str] = []

    def started(table: SweepTable, key: str) -> None:
        keys.append(key)
        tell(table, key)

    tell = SweepTable.started
    monkeypatch.setattr(SweepTable, "started", started)
    return keys


def make_too_large(weights: Path) -> None:
    """Let a model have weights that are finite, and with which nothing can be computed."""
    large = {name: weight * 1e30 for name, weight in load_file(weights).items()}
    save_file(large, weights, {"format": "pt"})


def test_a_sweep_gives_the_runs_numbers_and_keeps_failures_apart(
    two_cores: None,
    tmp_path: Path,
    base_config: RunConfig,
    alone: Callable[[RunConfig], Outcome],
    starts: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = Path(shutil.copytree(base_config.model.name, tmp_path / "broken"))
    make_too_large(broken / "model.safetensors")
    variants = {
        "base": {},
        "no data": {"data.root": str(tmp_path / "nowhere")},
        "broken": {"model.name": str(broken)},
        "no target": NO_TARGET,
        "slow": {"optim.lr": 1e-3},
    }
    sweep, out = Sweep("toys", base_config, variants), tmp_path / "toys"
    with pytest.raises(InputError, match="198"):
        run_sweep(sweep, tmp_path / "large", Resources(concurrent=99, workers=2, show=False))
    with pytest.raises(InputError, match="nowhere"):
        run_sweep(Sweep("toys", base_config, {"no data": variants["no data"]}), tmp_path / "none")
    base, no_data, bad, refused, slow = (trial.key for trial in sweep.trials())
    dead = "http://127.0.0.1:9"  # nothing listens there: every tracker fails, no run does
    capsys.readouterr()
    first = run_sweep(sweep, out, Resources(mlflow=dead, retries=1, placement=CPU))
    assert sorted(first.finished) == sorted([base, slow])
    assert set(first.failed) == {no_data, bad, refused}
    assert "nowhere" in first.failed[no_data]
    assert "the run diverged" in first.failed[bad]
    assert "\n" not in first.failed[bad]
    assert first.failed[refused].startswith(REFUSED)
    assert {key: starts.count(key) for key in starts} == {base: 1, slow: 1, bad: 2, refused: 1}
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "no target" in line)
    assert line.endswith(first.failed[refused])
    for trial in sweep.trials():
        if trial.key in first.finished:
            assert outcome(out / trial.key).differences(alone(trial.config)) == []
            where = json.loads((out / trial.key / "environment.json").read_text())
            # And not that of Ray's own worker.
            assert where["argv"] == [Path(sys.argv[0]).name, *sys.argv[1:]]
    assert not list(out.glob(".tune/*"))

    # What failed for good is left alone without --retry-failed; what was refused is checked again.
    starts.clear()
    ended = json.loads((out / bad / "ended.json").read_text())
    assert (ended["state"], ended["reason"]) == ("failed", first.failed[bad])
    again = run_sweep(sweep, out, Resources(retries=0, placement=CPU))
    assert (again.finished, sorted(again.skipped)) == ([], sorted([base, slow]))
    assert again.failed == first.failed
    assert starts == [refused]
    shown = capsys.readouterr().out
    assert "--retry-failed" in shown
    assert f"broken, order custom, seed 0: failed, 0 s: {ended['reason']}" in shown
    starts.clear()
    shutil.copy(Path(base_config.model.name) / "model.safetensors", broken)
    mended = run_sweep(sweep, out, Resources(retries=0, placement=CPU, retry_failed=True))
    assert mended.finished == [bad]
    assert sorted(starts) == sorted([bad, refused])
    assert not (out / bad / "ended.json").exists()


@pytest.mark.slow
def test_trials_of_workers_are_taken_one_by_one_and_may_be_stopped(
    two_cores: None, tmp_path: Path, base_config: RunConfig, alone: Callable[..., Outcome]
) -> None:
    """The workers of a stopped run are not the trial's process: left alone they would train to the
    end, on what the next run waits for."""
    long = {"optim.epochs": 50}  # seconds a task: time to be stopped in
    stopped, other = Sweep("toys", base_config, {"stopped": long, "other": {}}).trials()
    heard: list[tuple[Any, ...]] = []

    def ask() -> Iterator[Trial]:
        for trial in (stopped, other):
            heard.append((trial.key, "taken"))
            yield trial

    class Watch:
        def falls_behind(self, key: str, stage: int, op: float) -> bool:
            heard.append((key, stage, op))
            return key == stopped.key or stage == 3  # when it is too late

        def tell(self, key: str, state: str) -> None:
            heard.append((key, state))

    watch: Any = Watch()
    resources, ends = Resources(workers=1, concurrent=1, placement=CPU, retries=0), SweepOutcome()
    with SweepTable([], show=False) as table:
        fan_out(ask(), tmp_path, resources, table, ends, count=2, study=watch)
    assert (ends.finished, ends.stopped, ends.failed) == ([other.key], [stopped.key], {})
    directory = RunDirectory(tmp_path / stopped.key)
    ended = directory.end_without_result() or {}
    assert (ended["state"], ended["reason"]) == ("stopped", "after 1 of 3 tasks")
    assert not in_progress(directory.path)
    steps = directory.steps.read_text(encoding="utf-8").splitlines()
    assert 0 < len(steps) < 2 * (24 // 4) * 50
    assert outcome(tmp_path / other.key).differences(alone(other.config, threads=2)) == []
    assert [entry[1] for entry in heard] == ["taken", 1, "stopped", "taken", 1, 2, 3, "done"]
    scores = stage_scores(RunDirectory(tmp_path / other.key))
    assert [entry[2] for entry in heard[4:7]] == [score["op"] for score in scores]
    assert this_cluster().living() == []


def test_a_trial_that_tune_wants_no_more_of_ends_there(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune says so by a SystemExit in the report; the process is for the next trial."""
    reports: list[dict[str, Any]] = []

    def report(content: dict[str, Any]) -> None:
        reports.append(content)
        raise SystemExit(0)

    monkeypatch.setattr(tune.tune, "report", report)
    monkeypatch.setattr(cluster, "prepare_process", lambda allocation: None)
    config = small_config.override({"data.order": ["colour", "shape"]})
    params = {"run": config.model_dump(mode="json"), "key": "run"}
    allocation = Allocation(1, 0, Placement("cpu"), {"CPU": 1}, threads=None)
    with pytest.raises(SystemExit):
        tune.train_trial(params, str(tmp_path), allocation)
    assert [content["stage"] for content in reports] == [1]
    directory = RunDirectory(tmp_path / "run")
    assert directory.steps.is_file()
    assert not directory.result.exists()


def test_two_workers_equal_one(
    two_cores: None, tmp_path: Path, base_config: RunConfig, alone: Callable[[RunConfig], Outcome]
) -> None:
    text = io.StringIO()
    watcher = ConsoleTracker(Console(file=text, width=120))
    resources = Resources(workers=2, placement=CPU)
    both = run_workers(prepare(base_config, tmp_path / "run"), resources, [watcher])
    single = alone(base_config)
    assert both["world_size"] == 2
    assert both["matrix"] == single.result["matrix"]
    assert both["events"] == single.result["events"]
    for name, tensor in outcome(tmp_path / "run").adapter.items():
        torch.testing.assert_close(tensor, single.adapter[name], rtol=1e-3, atol=1e-4)
    lines = text.getvalue().splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["after", f"{stage}/3", task] for stage, task in enumerate(both["stages"], 1)
    ]
    assert run_workers(prepare(base_config, tmp_path / "run"), resources) == both
    with pytest.raises(InputError, match="5 workers"):
        run_workers(prepare(base_config, tmp_path / "many"), Resources(workers=5, placement=CPU))


def test_what_a_worker_refuses_is_not_retried(
    two_cores: None, tmp_path: Path, base_config: RunConfig
) -> None:
    def workers() -> int:
        classes = [actor["class_name"] for actor in this_cluster().states("actors")]
        return classes.count("RayTrainWorker")

    before = workers()
    resources = Resources(workers=1, placement=CPU)
    with pytest.raises(InputError, match=f"^{REFUSED}"):
        run_workers(prepare(base_config.override(NO_TARGET), tmp_path / "run"), resources)
    assert workers() == before + 1


# ---- commands


@pytest.mark.slow
def test_a_sweep_is_resumed_however_it_was_ended(
    tmp_path: Path, store: Path, base_config: RunConfig, alone: Callable[[RunConfig], Outcome]
) -> None:
    """Nothing finished is repeated, no number moves, nothing lives on."""
    variants = {f"v{number}": {"optim.lr": 1e-3 * (number + 1)} for number in range(4)}
    command = sweep_command(tmp_path, store, base_config, variants)
    written: dict[Path, int] = {}
    for number in (signal.SIGKILL, signal.SIGINT):
        process = begin(command, tmp_path, "out/*/*/result.json", len(written) + 1)
        if number == signal.SIGINT:  # a terminal sends it to the whole group
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        errors = process.communicate(timeout=60)[1]
        # Workers of a killed driver may finish a run before they end, and Ray's own agents notice
        # within a minute that it is gone.
        wait_until(lambda pid=process.pid: not children(pid), within_s=120)
        before = written
        written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/*/*/result.json")}
        assert before.items() <= written.items()
        assert len(written) < len(variants)
        assert not list(tmp_path.glob("out/*/*/ended.json"))  # interrupted is not failed
        if number != signal.SIGKILL:
            assert process.returncode == 128 + number
            assert "interrupted" in errors
            assert "Traceback" not in errors
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stdout[-3000:]
    assert finished.stdout.splitlines()[-1].startswith("compare  http")
    assert all(path.stat().st_mtime_ns == when for path, when in written.items())
    for path in tmp_path.glob("out/*/*/result.json"):
        config = RunDirectory(path.parent).read_config()
        assert outcome(path.parent).differences(alone(config)) == []
    assert statuses(tmp_path, "toys") == ["FINISHED"] * (len(variants) + 1)
