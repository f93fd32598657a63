"""A search: what its space asks, what is told of the runs in its folder, and a small one on a real
local Ray."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import execute

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.fleet import Fleet
from forever.runs.directory import RunDirectory
from forever.sweeps.builtin.search import SPACINGS, search
from forever.sweeps.front import front_table
from forever.sweeps.search import Draws, Known, Search, front, known, remember
from forever.sweeps.sweep import read_manifest


@pytest.fixture
def small_search(small_config: RunConfig) -> Search:
    return search(small_config)


# ---- the space


def test_the_space_asks_only_what_acts(small_search: Search) -> None:
    asked: dict[str, set[str]] = {}
    for seed in range(60):
        answers = Draws(Random(seed))
        changes = small_search.space(answers)
        assert small_search.trial(answers.params).config == small_search.base.override(changes)
        asked.setdefault(changes["method.regularizer"], set()).update(answers.params)
    always = {"method.days", "method.warmup_steps", "method.memory_epochs", "method.regularizer"}
    assert asked["none"] == always
    assert asked["importance"] == always | {"method.beta"}
    assert asked["intensity"] == always | {"method.beta", "method.gamma", "method.smoothing"}
    assert asked["intensity_importance"] == asked["intensity"]


def test_draws_are_from_the_space(small_search: Search) -> None:
    """Every choice comes, numbers stay within their range, and the same stream draws the same
    points."""
    random = Random(0)
    configs = [small_search.draw(random).config.method.model_dump() for _ in range(200)]
    assert {c["days"] for c in configs} == set(SPACINGS)
    assert {c["memory_epochs"] for c in configs} == {1, 2, 3, 4}
    asked = [c["beta"] for c in configs if c["regularizer"] != "none"]
    assert 1e-5 <= min(asked) < 1e-4 < 1e-2 < max(asked) <= 1e-1  # evenly in the logarithm
    assert small_search.draw(Random(1)) == small_search.draw(Random(1))


def test_equal_to_two_digits_is_the_same_run(small_search: Search) -> None:
    own = small_search.own_point()
    assert own is not None
    base, near, far = (
        small_search.trial({**own, "method.beta": b}) for b in (1e-3, 1.004e-3, 1.1e-3)
    )
    assert base == near
    assert base.key != far.key
    assert base.config == small_search.base
    assert (base.variant, far.variant) == ("base", "ebbinghaus S1 E2 IAR β0.0011 γ1 λ0.05")


def test_a_base_outside_of_the_space_is_no_point_of_it(small_config: RunConfig) -> None:
    assert search(small_config.override({"method.memory_epochs": 9})).own_point() is None
    assert search(small_config.override({"method.days": [1.0, 2.0]})).own_point() is None
    # The space has two digits.
    assert search(small_config.override({"method.beta": 1.234e-3})).own_point() is None
    with pytest.raises(InputError, match="the base run's method is 'finetune'"):
        search(small_config.override({"method.name": "finetune"}))


# ---- what is in the folder


def test_what_became_of_the_runs_is_read_from_the_folder(
    small_search: Search, tmp_path: Path
) -> None:
    own = small_search.own_point() or {}
    points = [
        {**own, "method.warmup_steps": s, "method.memory_epochs": e}
        for s, e in ((1, 2), (2, 1), (2, 2), (3, 1))
    ]
    trials = [remember(small_search, point, tmp_path) for point in points]
    execute(trials[0].config, tmp_path / trials[0].key)
    RunDirectory(tmp_path / trials[1].key).end("stopped", "after 2 of 3 tasks")
    RunDirectory(tmp_path / trials[2].key).end("failed", "ValueError: boom")
    other = search(small_search.base.override({"optim.lr": 0.02}))  # searched in the same folder
    remember(other, own, tmp_path)
    found = known(small_search, tmp_path)
    assert [run.state for run in found] == ["finished", "stopped", "failed", "interrupted"]
    assert [run.trial for run in found] == trials
    assert [run.point for run in found] == points
    assert len(known(other, tmp_path)) == 1
    manifest = read_manifest(tmp_path)
    assert manifest["reference"] == trials[0].variant == "base"
    assert len(manifest["trials"]) == 5


def test_a_run_that_goes_on_has_not_ended(small_config: RunConfig, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.end("failed", "ValueError: boom")
    assert (directory.end_without_result() or {})["reason"] == "ValueError: boom"
    execute(small_config, directory.path)
    assert not directory.ended.exists()


def _done(name: str, *objectives: float) -> Any:
    return SimpleNamespace(
        trial=SimpleNamespace(variant=name), objectives=objectives, state="finished"
    )


def test_the_front_is_what_no_other_run_beats() -> None:
    runs = [
        _done("op", 50, -9, 30), _done("bwt", 40, -1, 30), _done("time", 30, -9, 5), _done("base", 40, -9, 30),
        _done("worse in one", 50, -9, 31), _done("the same", 50, -9, 30),
    ]  # fmt: skip
    best = front(runs, lambda run: run.objectives)
    assert [run.trial.variant for run in best] == ["op", "the same", "bwt", "time"]
    stopped = SimpleNamespace(state="stopped")
    table = front_table([*runs, stopped])  # type: ignore[list-item]
    assert list(table.columns[0].cells) == ["op", "the same", "bwt", "time", "[dim]base, beaten[/]"]
    assert "6 finished, 1 stopped" in str(table.caption)


# ---- Optuna and ASHA


OPTUNA = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:ray.*"),
]


def _marked(test: Any) -> Any:
    for mark in [*OPTUNA, pytest.mark.ray]:
        test = mark(test)
    return test


def _scored(folder: Path, trial: Any, ops: Sequence[float]) -> None:
    """A run directory with these OPs after its stages: the share of right answers to the first
    task, others alike."""
    directory = RunDirectory(folder / trial.key)
    directory.create(trial.config, {})
    for stage, op in enumerate(ops):
        for task, name in enumerate(["colour", "shape", "weight"][: stage + 1]):
            path = directory.predictions(stage, task)
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [{"id": f"{name}/test/{i}", "score": float(i < op)} for i in range(100)]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@_marked
def test_asha_knows_the_runs_of_earlier_calls_and_compares_after_equal_tasks(
    small_search: Search, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    from forever.launch.ray_search import scheduler

    own = small_search.own_point() or {}
    for epochs, ops in enumerate(([90, 30], [90, 40], [90, 50]), 1):
        trial = remember(small_search, {**own, "method.memory_epochs": epochs}, tmp_path)
        _scored(tmp_path, trial, ops)
        RunDirectory(tmp_path / trial.key).end("stopped", "after 2 of 3 tasks")

    def decisions(*ops: float) -> list[str]:
        asha: Any = scheduler(3, tmp_path, known(small_search, tmp_path))
        new = SimpleNamespace(trial_id="new")
        asha.on_trial_add(None, new)
        return [
            asha.on_trial_result(None, new, {"stage": n, "op": op}) for n, op in enumerate(ops, 1)
        ]

    # Not before memory plays a part, not when all is done.
    assert decisions(0.0, 45.0, 0.0) == ["CONTINUE"] * 3
    assert decisions(99.0, 35.0) == ["CONTINUE", "STOP"]
    assert scheduler(2, tmp_path, []) is None


@_marked
def test_optuna_is_told_whole_runs_only(small_search: Search, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    optuna = pytest.importorskip("optuna")
    from forever.launch.ray_experiment import Job
    from forever.launch.ray_search import Sampler
    from forever.sweeps.table import SweepTable

    own = small_search.own_point() or {}
    other = {**own, "method.warmup_steps": 3}
    states = optuna.trial.TrialState
    job = Job(tmp_path, SweepTable([], show=False))
    first = Sampler(small_search, job, [], [own, other, own])
    one, two = first.suggest("1"), first.suggest("2")
    three = first.suggest("3")  # the third is the first again, which runs: another point is drawn
    assert len({one["key"], two["key"], three["key"]}) == 3
    assert [one["run"], two["run"]] == [
        small_search.trial(p).config.model_dump(mode="json") for p in (own, other)
    ]
    execute(small_search.base, tmp_path / one["key"])
    first.on_trial_complete("1", {"stage": 3, "op": 1.0})
    first.on_trial_complete("2", {"stage": 2, "op": 99.0})
    first.on_trial_complete("3", None, error=True)
    (done,) = known(small_search, tmp_path)[:1]
    told = [(trial.state, trial.values) for trial in first.study.trials]
    whole = (states.COMPLETE, list(done.objectives))
    assert told == [whole, (states.PRUNED, None), (states.FAIL, None), (states.FAIL, None)]

    RunDirectory(tmp_path / two["key"]).end("stopped", "after 2 of 3 tasks")
    found = known(small_search, tmp_path)[:2]
    # An equal configuration is told its numbers, not run.
    second = Sampler(small_search, job, found, [own])
    assert second.suggest("4")["key"] not in (one["key"], two["key"])
    told = [(trial.state, trial.values) for trial in second.study.trials]
    assert told[:3] == [whole, (states.PRUNED, None), whole]
    assert [trial.params for trial in second.study.trials][:3] == [own, other, own]


@_marked
def test_a_small_space_is_used_up(small_config: RunConfig, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("optuna")
    from forever.launch.ray_experiment import Job
    from forever.launch.ray_search import Sampler
    from forever.sweeps.table import SweepTable

    def two(trial: Any) -> dict[str, Any]:
        return {"method.days": trial.suggest_categorical("method.days", ["uniform", "ebbinghaus"])}

    tiny = Search("search", small_config, two, lambda changes: changes["method.days"])
    sampler = Sampler(tiny, Job(tmp_path, SweepTable([], show=False)), [], [])
    assert {sampler.suggest(name)["key"] for name in "ab"} == {
        run.trial.key for run in known(tiny, tmp_path)
    }
    assert sampler.suggest("c") == "FINISHED"
    assert sampler.used_up


@_marked
def test_what_failed_waits_for_the_flag(
    small_search: Search,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("ray")
    from forever.launch import ray_search

    own = small_search.own_point() or {}
    interrupted, failed = (
        remember(small_search, {**own, "method.memory_epochs": epochs}, tmp_path).key
        for epochs in (1, 3)
    )
    RunDirectory(tmp_path / failed).end("failed", "ValueError: boom")
    asked: list[tuple[int, list[int]]] = []

    def fan_out(job: Any, count: int, space: Any, search_alg: Any, **tuning: Any) -> dict[str, str]:
        asked.append((count, [point["method.memory_epochs"] for point in search_alg.points]))
        return {}

    monkeypatch.setattr(ray_search, "fan_out", fan_out)
    outcome = ray_search.run_search(small_search, tmp_path, 4, Fleet(rounds=1))
    assert outcome.failed == {failed: "ValueError: boom", interrupted: "ended without a result"}
    printed = capsys.readouterr().out
    assert "E3 IAR β0.001 γ1 λ0.05, order custom, seed 0: failed, 0 s: ValueError: boom" in printed
    assert "1 failed before and were left as they are; --retry-failed runs them again" in printed
    ray_search.run_search(small_search, tmp_path, 4, Fleet(rounds=1, retry_failed=True))
    assert asked == [(3, [1]), (4, [1, 3])]


# ---- on Ray


@_marked
def test_a_search_finds_stops_and_goes_on(
    two_cores: None,
    small_search: Search,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from forever.launch import ray_search
    from forever.launch.local import Placement

    def call(trials: int) -> Any:
        return ray_search.run_search(
            small_search, tmp_path, trials, Fleet(placement=Placement("cpu"))
        )

    def states() -> list[str]:
        return [run.state for run in known(small_search, tmp_path)]

    asha = ray_search.scheduler
    monkeypatch.setattr(ray_search, "scheduler", lambda *arguments: None)
    outcome = call(3)
    assert (len(outcome.finished), outcome.failed, outcome.stopped) == (3, {}, [])
    runs = known(small_search, tmp_path)
    assert runs[0].trial.config == small_search.base
    assert [run.state for run in runs] == ["finished"] * 3
    execute(small_search.base, tmp_path / "alone")
    alone = RunDirectory(tmp_path / "alone").finished() or {}
    assert (runs[0].result or {})["matrix"] == alone["matrix"]

    def strict(stages: int, folder: Path, runs: Sequence[Known]) -> Any:
        """The usual one after twenty runs that nobody can follow."""
        scheduler: Any = asha(stages, folder, runs)
        for number in range(20):
            past = SimpleNamespace(trial_id=f"past{number}")
            scheduler.on_trial_add(None, past)
            scheduler.on_trial_result(None, past, {"stage": 2, "op": 1e9})
        return scheduler

    monkeypatch.setattr(ray_search, "scheduler", strict)
    capsys.readouterr()
    outcome = call(5)
    assert (len(outcome.skipped), len(outcome.stopped), outcome.finished, outcome.failed) == (
        3,
        2,
        [],
        {},
    )
    assert states() == ["finished"] * 3 + ["stopped"] * 2
    for key in outcome.stopped:
        assert (RunDirectory(tmp_path / key).end_without_result() or {})[
            "reason"
        ] == "after 2 of 3 tasks"
        assert not RunDirectory(tmp_path / key).predictions(2, 0).exists()
    assert sum(": stopped, OP" in line for line in capsys.readouterr().out.splitlines()) == 2

    (tmp_path / runs[1].trial.key / "result.json").unlink()  # as if it had been interrupted
    monkeypatch.setattr(ray_search, "scheduler", lambda *arguments: None)
    outcome = call(5)
    assert outcome.finished == [runs[1].trial.key]
    assert (known(small_search, tmp_path)[1].result or {})["matrix"] == (runs[1].result or {})[
        "matrix"
    ]
    monkeypatch.setattr(ray_search, "fan_out", None)  # nothing is left to run
    assert len(call(5).skipped) == 3
