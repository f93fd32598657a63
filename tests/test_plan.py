"""What a plan says equals what a run does, where updates decide."""

import math
import os
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import execute, saved
from typer.testing import CliRunner

from forever.cli.main import app
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoder
from forever.errors import InputError
from forever.launch import cluster
from forever.launch.checks import planned_runs, without_failed
from forever.launch.local import Placement
from forever.launch.resources import Resources
from forever.models.backbone import load
from forever.plan import Counts, count_work, plan_table, runs_at_once
from forever.replay.times import day_seven
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import SCALES, load_run

CPU = Resources(placement=Placement("cpu"))
METHODS = [
    {"method.name": "finetune"},
    {"method.name": "finetune", "method.probe_every": 5},
    {"method.name": "mtl"},
    {"method.name": "mix_replay"},
    {"method.name": "fixed_interval", "method.day_steps": 3},
    {"method.clock": "steps"},
    {"method.clock": "steps", "method.days": "end_only", "method.consolidation_epochs": "matched"},
    # AIMMerging's merges follow its losses, and SSR may write fewer examples than memory keeps.
    {"method.name": "ewc"},
    {"method.name": "olora"},
    {"method.name": "moelora"},
    {"method.name": "sapt"},
    {"method.name": "migu"},
    {"method.name": "recurrent_kif"},
    {"method.name": "migu", "method.replay": False},
    {"method.name": "vbm", "method.views": 2, "method.day_steps": 3},
]


def encoder_of(config: RunConfig) -> Encoder:
    tokenizer = load(config.model.name, torch.float32, torch.device("cpu")).tokenizer
    return Encoder(tokenizer, config.model.max_length)


def planned(config: RunConfig, **arguments: Any) -> Counts:
    return count_work(config, load_benchmark(config.data), **arguments)


def fired(result: dict[str, Any]) -> dict[str, int]:
    """Events of a run by kind."""
    return dict(sum(map(Counter, result["events"].values()), Counter[str]()))


@pytest.mark.parametrize("changes", METHODS, ids=lambda c: "-".join(str(v) for v in c.values()))
def test_updates_and_tokens_equal_those_of_the_run(
    changes: dict[str, Any], base_config: RunConfig, tmp_path: Path
) -> None:
    config = base_config.override(changes)
    result = execute(config, tmp_path / "run")
    counted = planned(config, encoder=encoder_of(config))
    assert counted.updates == result["updates"]
    assert counted.total(*counted.updates)[1] == result["tokens"]
    assert counted.events == fired(result)
    assert counted.examples == Counter(result["examples"])
    other = planned(config.override({"seed": 7}))
    assert (other.updates, other.events) == (counted.updates, counted.events)


def test_the_arena_has_one_budget() -> None:
    """At scale mini 13 batches of 8 in seven tasks, for all but bounds and what keeps to none."""
    spent: dict[str, int] = {}
    for trial in load_sweep("arena").expand(load_run(SCALES["mini"]), (0,)).trials():
        examples = planned(trial.config).examples
        spent[trial.variant] = examples["replayed"] + examples["padded"]
    others = {name: spent.pop(name) for name in ("recurrent_kif", "aimmerging", "finetune", "mtl")}
    assert {*spent.values()} == {7 * 13 * 8}
    assert others["finetune"] == others["mtl"] == 0
    assert min(others["recurrent_kif"], others["aimmerging"]) > 7 * 13 * 8


@pytest.mark.parametrize("name", ["aimmerging", "ssr"])
def test_an_estimate_where_training_has_a_say(name: str, base_config: RunConfig) -> None:
    plain = planned(base_config.override({"method.name": "finetune"}))
    counted = planned(base_config.override({"method.name": name}))
    assert sum(counted.updates.values()) > plain.updates["task"]
    if name == "aimmerging":  # it probes after every update from the second task on
        assert counted.calls["probe"] == counted.updates["task"] - 3 * 6


def test_the_model_clock_is_an_estimate(small_config: RunConfig, tmp_path: Path) -> None:
    """It is that of the step clock, of which a run whose updates shrink has less."""
    config = small_config.override({"method.clock": "model", "optim.epochs": 6})
    level = planned(config)
    assert level == planned(config.override({"method.clock": "steps"}))
    result = execute(config, tmp_path / "run")
    assert level.updates["task"] == result["updates"]["task"]
    assert 0 < fired(result)["replay"] < level.events["replay"]


def test_the_papers_setting_by_hand() -> None:
    """T = 1260 updates of equal length and S = 24: six events of two passes and one consolidation
    pass, from task 2."""
    tasks = ["sentiment", "happened", "advice", "topic", "rain"]
    data = {"benchmark": "mini", "order": tasks}
    config = RunConfig.parse({"data": data, "method": {"name": "forever"}})
    counted = planned(config.override({"optim.epochs": 63, "memory.fraction": 0.05}))
    assert counted.updates["task"] == 5 * 63 * 20
    assert counted.events == {"replay": 4 * 6, "consolidation": 4}
    # 8 kept examples of each task are one batch.
    assert counted.updates["replay"] == sum(6 * 2 * k for k in (1, 2, 3, 4))
    assert counted.updates["consolidation"] == 1 + 2 + 3 + 4
    assert counted.calls["probe"] == 2 * 28  # before and after each event


# ---- work that is no update


def test_what_a_method_does_at_the_end_of_a_task(base_config: RunConfig) -> None:
    """Fisher information takes each example once; SSR writes a text from each ordered pair of kept
    examples in each turn, and nothing after the last task."""
    size, tasks = base_config.optim.batch_size, load_benchmark(base_config.data).tasks
    batches = sum(math.ceil(len(task.train) / size) for task in tasks)
    for changes in ({"method.name": "ewc"}, {"method.regularizer": "importance"}):
        counted = planned(base_config.override(changes))
        assert counted.calls["single"] == batches < counted.tokens["single"]
    assert "single" not in planned(base_config).calls
    ssr = {"method.name": "ssr", "method.max_tokens": 100, "memory.fraction": 0.125}
    config = base_config.override({**ssr, "data.order": ["colour", "weight"]})
    written = planned(config, encoder=encoder_of(config))  # 3 kept: 6 ordered pairs, 3 turns
    assert written.calls["openings"] == 3
    assert 3 * 6 * 1 <= written.tokens["texts"] <= 3 * 6 * 99  # up to 100 tokens with the prompt
    assert "texts" not in planned(config.override({"data.order": ["colour"]})).calls


def test_what_an_evaluation_decodes(base_config: RunConfig) -> None:
    """Six examples a task, scored after each stage from its own on: prompts at once, then a step
    for each further token."""
    config = base_config.override({"method.name": "finetune"})
    encoder = encoder_of(config)
    counted = planned(config, encoder=encoder)
    prompts = 0
    for task, stages in zip(load_benchmark(config.data).tasks, (3, 2, 1), strict=True):
        prompts += stages * sum(len(encoder.encode_prompt(e).prompt) for e in task.test)
    assert counted.total("prompts") == (3 + 2 + 1, prompts)
    # References have 1, 1 and 2 tokens and EOS, of which the prompt gives the first.
    assert counted.total("answers") == (3 + 2 + 2, 6 * (3 + 2 + 2))
    ahead = planned(config.override({"evaluation.forward_transfer": True}), encoder=encoder)
    # All before training, up to the limit of 3; then those seen and the next one.
    assert ahead.calls["prompts"] == 3 + (2 + 3 + 3)
    assert ahead.calls["answers"] == 3 * 2 + (1 + 1) + 2 * (1 + 1 + 2)


# ---- time


def test_all_work_as_trained_tokens() -> None:
    """A forward pass is a third of an update; a decoded token counts as a trained one."""
    counted = Counts()
    tokens = {"task": 900, "probe": 300, "single": 50, "prompts": 600, "answers": 40, "texts": 20}
    for kind, number in tokens.items():
        counted.add(kind, 1, number)
    assert counted.trained_tokens == pytest.approx(950 + 60 + (300 + 600) / 3)


# ---- the table


def cells(table: Any) -> dict[str, dict[str, str]]:
    """The rows of a table by their first cell."""
    texts = [list(map(str, column.cells)) for column in table.columns]
    names = [str(column.header) for column in table.columns][1:]
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in zip(*texts, strict=True)}


def test_what_is_done_is_skipped_and_lends_its_speed(
    small_config: RunConfig, tmp_path: Path
) -> None:
    run = saved(small_config, tmp_path / "run.yaml")
    seeds = (0, 1, 2)
    before = plan_table(run, planned_runs(run, "", {}, seeds, tmp_path), CPU, price_per_hour=3600)
    assert (cells(before)["to do"]["runs"], cells(before)["to do"]["cost"]) == ("3", "-")
    result = execute(small_config, tmp_path / small_config.key())
    after = plan_table(run, planned_runs(run, "", {}, seeds, tmp_path), CPU, price_per_hour=3600)
    rows = cells(after)
    done, seconds = rows["done, skipped"], sum(result["seconds"].values())
    assert (rows[run]["runs"], done["runs"], rows["to do"]["runs"]) == ("3", "1", "2")
    assert done["events"] == str(sum(fired(result).values()))
    assert done["replay"] == str(result["updates"]["replay"])
    assert float(done["cost"]) == pytest.approx(seconds, abs=0.01)
    assert float(rows["to do"]["cost"]) == pytest.approx(2 * seconds, abs=0.01)


@pytest.mark.parametrize("method", ["finetune", "forever", "mix_replay", "recurrent_kif"])
def test_a_budget_of_seconds_is_added_to_what_the_rest_takes(
    method: str, base_config: RunConfig, tmp_path: Path
) -> None:
    """In the two tasks that have a memory, beside about one update."""
    changes = {"method.name": method, "budget.seconds": 30.0}
    run = saved(base_config.override(changes), tmp_path / "run.yaml")
    counted = planned(base_config.override(changes))
    assert counted.updates["task"] == planned(base_config).updates["task"]
    assert counted.budget_s == (0 if method == "finetune" else 2 * 30)
    if method != "recurrent_kif":  # which keeps to no budget
        assert counted.examples["replayed"] < 2 * 2 * base_config.optim.batch_size
    table = plan_table(run, planned_runs(run, "", {}, None, tmp_path), CPU, 1e9, 3600)
    assert float(cells(table)["to do"]["cost"]) == pytest.approx(counted.budget_s, abs=0.01)


def test_the_table_says_when_day_7_comes(small_config: RunConfig, tmp_path: Path) -> None:
    """On a clock of updates it is known, on the model's as soon as a run is finished."""
    captions: list[str] = []
    for clock in ("steps", "model", "model"):
        config = small_config.override({"method.clock": clock, "optim.epochs": 20})
        run = saved(config, tmp_path / f"{clock}.yaml")
        runs = planned_runs(run, "", {}, (0, 1), tmp_path)
        captions.append(str(plan_table("run", runs, CPU).caption))
        if len(captions) == 2:
            result = execute(config, tmp_path / config.key())
            noted = {note["day_7"] for note in result["notes"].values()}
            assert 7 <= min(noted) < max(noted) <= 40
    assert "day 7 comes: " + str(tmp_path / "steps.yaml") + " 7 (18 %)" in captions[0]
    assert "day 7" not in captions[1]
    assert f"model.yaml {day_seven([result])}." in captions[2]


def test_a_sweep_has_a_row_for_each_variant(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    on = saved(small_config, tmp_path / "run.yaml")
    runs = planned_runs("components", on, {}, (0, 1), tmp_path)
    table = plan_table("components", runs, Resources(2, placement=Placement("cpu")))
    rows = cells(table)
    assert (len(rows), rows["+STC"]["runs"], rows["to do"]["runs"]) == (13 + 1, "2", "26")
    assert int(rows["+STC"]["task"]) == 2 * planned(small_config).updates["task"]


def test_what_failed_and_a_search(small_config: RunConfig, tmp_path: Path) -> None:
    """What failed is planned when it will be run again; a search is so many runs of its base."""
    on = saved(small_config, tmp_path / "run.yaml")
    planned_runs("memory_epochs", on, {}, (0,), tmp_path)[0].directory.end("failed", "no memory")
    runs = planned_runs("memory_epochs", on, {}, (0,), tmp_path)
    assert (len(runs), len(without_failed(runs))) == (3, 2)
    with pytest.raises(InputError):
        without_failed(runs[:1])
    runs = planned_runs("search", on, {}, (3,), tmp_path, trials=5)
    assert (len(runs), {run.config.seed for run in runs}) == (5, {3})
    table = cells(plan_table("search", runs, CPU))
    assert int(table["to do"]["task"]) == 5 * planned(runs[0].config).updates["task"]
    with pytest.raises(InputError):
        planned_runs("search", on, {}, (0, 1), tmp_path)


def test_how_many_runs_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cluster says what it has; a run that may begin with fewer workers begins with those."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(InputError):
        runs_at_once(8, Resources(3, placement=Placement("cpu")))
    command = ["plan", "mini/forever", "--out", str(tmp_path), "--device", "cpu", "--workers"]
    assert CliRunner().invoke(app, [*command, "1-4"]).exit_code == 0
    with pytest.raises(InputError):
        CliRunner().invoke(app, [*command, "4"], catch_exceptions=False)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(cluster, "connected", lambda **_: nullcontext())
    monkeypatch.setattr(cluster, "capacity", lambda: ({"CPU": 64.0, "GPU": 8.0}, 3))
    assert runs_at_once(20, Resources()) == 8
    assert runs_at_once(20, Resources(workers=2)) == 4


def test_more_runs_than_anybody_means_are_refused(tmp_path: Path) -> None:
    base, seeds = SCALES["mini"], tuple(range(20_000))
    for name in ("components", "mini/forever"):
        with pytest.raises(InputError, match="20000"):
            planned_runs(name, base, {}, seeds, tmp_path)
    with pytest.raises(InputError, match="20000"):
        planned_runs("search", base, {}, None, tmp_path, trials=20_000)
    with pytest.raises(InputError, match="10000"):
        load_sweep("components").expand(load_run(base), seeds[:2000]).trials()
