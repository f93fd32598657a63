"""A search: its space, Optuna's study of it in the folder, and a small one on a real local Ray."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import execute
from made_up import put_result
from marks import RAY_WARNS

from forever.config.methods import METHOD_CONFIGS
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import Placement
from forever.launch.resources import Resources
from forever.runs.directory import RunDirectory
from forever.sweeps.files import load_sweep
from forever.sweeps.search import (
    JOURNAL,
    Search,
    SearchStudy,
    find_search,
    front_table,
    importances,
)
from forever.sweeps.sweep import Trial, read_manifest

optuna = pytest.importorskip("optuna")
pytestmark = RAY_WARNS
STATES = optuna.trial.TrialState


@pytest.fixture
def small_search(small_config: RunConfig) -> Search:
    return searched(small_config)


def searched(base: RunConfig, **changes: Any) -> Search:
    return find_search(load_sweep("search"), base.override(changes))


def draws(search: Search, count: int) -> list[dict[str, Any]]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [search.ask(study.ask()) for _ in range(count)]


def begun(search: Search, folder: Path, again: Any = ()) -> SearchStudy:
    study = SearchStudy(search, folder)
    study.begin(list(again))
    return study


def asked(study: SearchStudy, count: int) -> list[Trial]:
    trials = [study.ask() for _ in range(count)]
    return [trial for trial in trials if trial is not None]


def stop(study: SearchStudy, trial: Trial) -> None:
    RunDirectory(study.folder / trial.key).end("stopped", "after 2 of 3 tasks")
    study.tell(trial.key, "stopped")


# ---- the space


def test_the_space_asks_only_what_acts(small_search: Search) -> None:
    """And all of it: every choice comes, numbers stay within their range and have two digits."""
    points = draws(small_search, 200)
    keys = {point["method.regularizer"]: {*point} for point in points}
    always = {"method.days", "method.day_steps", "method.memory_epochs", "method.regularizer"}
    assert keys["none"] == always
    assert keys["importance"] == always | {"method.beta"}
    assert keys["intensity"] == always | {"method.beta", "method.gamma", "method.smoothing"}
    assert keys["intensity_importance"] == keys["intensity"]
    assert {point["method.days"] for point in points} == {*small_search.space[0].choices}
    assert {point["method.memory_epochs"] for point in points} == {1, 2, 3, 4}
    betas = [point["method.beta"] for point in points if "method.beta" in point]
    assert 1e-5 <= min(betas) < 1e-4 < 1e-2 < max(betas) <= 1e-1  # evenly in the logarithm
    assert all(beta == float(f"{beta:.1e}") for beta in betas)
    for point in points:
        assert small_search.trial(point).config == small_search.base.override(point)


def test_the_base_lies_in_the_space_or_not(small_search: Search, small_config: RunConfig) -> None:
    point = small_search.own_point
    assert point is not None
    trial = small_search.trial(point)
    assert (trial.variant, trial.config) == ("base", small_search.base)
    other = small_search.trial({**point, "method.beta": 1.1e-3})
    assert other.variant == "ebbinghaus S1 E2 intensity β0.0011 γ1 λ0.05"
    assert other.key != trial.key
    outside = {"method.memory_epochs": 9, "method.days": [1.0, 2.0], "method.beta": 1.234e-3}
    for key, value in outside.items():
        assert searched(small_config, **{key: value}).own_point is None
    with pytest.raises(InputError, match="one seed"):
        find_search(load_sweep("search"), small_config, (0, 1))


@pytest.mark.parametrize("method", METHOD_CONFIGS)
def test_every_method_has_a_space(method: str, small_config: RunConfig) -> None:
    """The shipped one, around its defaults, and as many trials on the same held-out examples."""
    file = load_sweep("search")
    search = searched(small_config, **{"method.name": method, "optim.batch_size": 8})
    (axes,) = [file.spaces.get(method) or file.space]
    assert [axis.key for axis in search.space] == [*axes]
    assert (search.trials, search.base.data.validation) == (file.trials, 0.2)
    assert (search.own_point is None) == (method == "migu")  # T = None has no number
    for point in draws(search, 20):
        assert search.trial(point).config.method.name == method


def test_a_method_without_a_space_is_refused(small_config: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("method: forever\nspace:\n  method.beta: {from: 0.1, to: 1.0}\n")
    search = find_search(load_sweep(str(path)), small_config)
    assert [axis.key for axis in search.space] == ["method.beta"]
    with pytest.raises(InputError, match="'ewc'"):
        find_search(load_sweep(str(path)), small_config.override({"method.name": "ewc"}))


# ---- the study


def test_a_study_resumes_where_it_was_interrupted(small_search: Search, tmp_path: Path) -> None:
    first = begun(small_search, tmp_path)
    trials = asked(first, 3)
    keys = [trial.key for trial in trials]
    assert trials[0].config == small_search.base
    assert len({*keys}) == 3
    execute(trials[0].config, tmp_path / keys[0])  # and before Optuna was told, the power went
    stop(first, trials[1])
    runs = SearchStudy(small_search, tmp_path).known()
    assert [run.state for run in runs] == ["finished", "stopped", "interrupted"]
    assert [run.trial for run in runs] == trials
    manifest = read_manifest(tmp_path)
    assert manifest["reference"] == "base"
    assert [trial["key"] for trial in manifest["trials"]] == keys

    again = begun(small_search, tmp_path, runs[2:])
    third, fourth = asked(again, 2)
    assert third == trials[2]
    assert fourth.key not in keys
    values = {trial.state: trial.values for trial in again.study.trials}
    assert values[STATES.COMPLETE] == list(runs[0].objectives or ())
    assert values[STATES.PRUNED] is None  # OP over two tasks is no OP over three
    assert len(again.known()) == 4
    assert [run.trial for run in again.best()] == trials[:1]


def test_a_kill_in_mid_write_costs_one_trial_at_most(small_search: Search, tmp_path: Path) -> None:
    trials = asked(begun(small_search, tmp_path), 3)
    journal = tmp_path / JOURNAL
    sound = journal.read_bytes()
    journal.write_bytes(sound[:-30])  # of the third trial's point
    trials[2:] = asked(begun(small_search, tmp_path), 2)
    assert [run.trial for run in SearchStudy(small_search, tmp_path).known()] == trials
    assert journal.read_bytes().startswith(sound[: sound[:-1].rfind(b"\n") + 1])


def test_a_damaged_study_is_named(small_search: Search, tmp_path: Path) -> None:
    begun(small_search, tmp_path).ask()
    journal = tmp_path / JOURNAL
    journal.write_bytes(b"{}\n" + journal.read_bytes())
    for read in (partial(SearchStudy, small_search), importances):
        with pytest.raises(InputError) as error:
            read(tmp_path)
        assert error.value.path == journal


def test_a_small_space_is_used_up(small_config: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text("space:\n  method.days: {among: [uniform, ebbinghaus]}\n")
    study = begun(find_search(load_sweep(str(path)), small_config), tmp_path / "tiny")
    days = {trial.config.method.model_dump()["days"] for trial in asked(study, 2)}
    assert days == {"uniform", "ebbinghaus"}
    assert study.ask() is None
    assert (tmp_path / "tiny" / "sweep.yaml").read_text() == path.read_text()


def test_runs_in_the_worse_half_after_as_many_tasks_are_stopped(
    small_search: Search, tmp_path: Path
) -> None:
    """Not before memory plays a part, by the scores of earlier calls, too, and never the base, with
    which all others are compared."""
    first = begun(small_search, tmp_path)
    for op, trial in zip((50.0, 40.0, 45.0), asked(first, 3), strict=True):
        first.falls_behind(trial.key, 1, 90.0)
        first.falls_behind(trial.key, 2, op)
        stop(first, trial)
    later = begun(small_search, tmp_path)
    good, bad = asked(later, 2)
    assert not later.falls_behind(good.key, 1, 0.0)
    assert not later.falls_behind(good.key, 2, 51.0)
    assert not later.falls_behind(bad.key, 1, 99.0)
    assert later.falls_behind(bad.key, 2, 35.0)
    assert not later.falls_behind(bad.key, 3, 35.0)
    again = begun(small_search, tmp_path, later.known()[:1])
    (base,) = asked(again, 1)
    assert base.config == small_search.base
    assert not again.falls_behind(base.key, 2, 1.0)


def test_the_front_and_what_matters(small_search: Search, tmp_path: Path) -> None:
    assert importances(tmp_path) == {}
    study = begun(small_search, tmp_path)
    scores = [(50, -9, 30), (40, -1, 30), (30, -9, 5), (40, -9, 30), (50, -9, 31), (20, -20, 40)]
    trials = []
    for op, bwt, seconds in scores:
        trials += asked(study, 1)
        directory = RunDirectory(tmp_path / trials[-1].key)
        directory.create(trials[-1].config, {})
        put_result(directory.path, {"op": op, "bwt": bwt, "seconds": {"task": seconds}})
        study.tell(trials[-1].key, "done")
    assert [run.trial for run in study.best()] == trials[:3]
    table = front_table(small_search, tmp_path)
    assert str(next(iter(table.columns[0].cells))) == "base"
    assert "6 finished" in str(table.caption)
    weights = importances(tmp_path)
    assert {"method.days", "method.day_steps"} <= weights.keys()
    assert list(weights.values()) == sorted(weights.values(), reverse=True)


# ---- on Ray


@pytest.mark.ray
def test_a_search_finds_stops_and_resumes(
    two_cores: None,
    small_search: Search,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("ray")
    from forever.launch.start import run_search

    def call(trials: int, **resources: Any) -> Any:
        spread = Resources(placement=Placement("cpu"), **resources)
        return run_search(small_search, tmp_path, trials, spread)

    def matrix(directory: RunDirectory) -> Any:
        return (directory.finished() or {})["matrix"]

    monkeypatch.setattr(SearchStudy, "falls_behind", lambda *arguments: False)
    outcome = call(3)
    assert (len(outcome.finished), outcome.failed, outcome.stopped) == (3, {}, [])
    base, second, _ = [run.trial for run in SearchStudy(small_search, tmp_path).known()]
    assert base.config == small_search.base
    execute(small_search.base, tmp_path / "alone")
    assert matrix(RunDirectory(tmp_path / base.key)) == matrix(RunDirectory(tmp_path / "alone"))

    monkeypatch.setattr(SearchStudy, "falls_behind", lambda self, key, stage, op: stage == 2)
    outcome = call(5)
    assert (len(outcome.skipped), len(outcome.stopped)) == (3, 2)
    assert (outcome.finished, outcome.failed) == ([], {})
    for key in outcome.stopped:
        ended = RunDirectory(tmp_path / key).end_without_result() or {}
        assert ended["reason"] == "after 2 of 3 tasks"
        assert not RunDirectory(tmp_path / key).predictions(2, 0).exists()

    directory = RunDirectory(tmp_path / second.key)
    before = matrix(directory)
    directory.result.unlink()  # as if it had been interrupted
    monkeypatch.setattr(SearchStudy, "falls_behind", lambda *arguments: False)
    assert call(5).finished == [second.key]
    assert matrix(directory) == before

    directory.result.unlink()
    directory.end("failed", "ValueError: boom")
    capsys.readouterr()
    outcome = call(5)  # what failed waits for the flag
    assert outcome.failed == {second.key: "ValueError: boom"}
    assert "--retry-failed" in capsys.readouterr().out
    assert call(5, retry_failed=True).finished == [second.key]
    monkeypatch.setattr(SearchStudy, "ask", lambda self: pytest.fail("nothing is left to run"))
    assert len(call(3).skipped) == 3
