"""What a plan says equals what a run does: exactly where updates decide, and by the model clock at
the run's pace."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import execute, lines

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoder
from forever.errors import InputError
from forever.models.backbone import load
from forever.planning import table as plans
from forever.planning.costs import Plan, Rate, Speed, Work
from forever.planning.counts import pace_of, plan
from forever.planning.pilot import pilot
from forever.planning.places import Place, calibrated, find_place, group
from forever.planning.table import Terms, plan_table
from forever.runs.directory import RunDirectory
from forever.sweeps.files import load_sweep
from forever.training.optim import learning_rate

METHODS = [
    {"method.name": "finetune"},
    {"method.name": "finetune", "method.probe_every": 5},
    {"method.name": "mtl"},
    {"method.name": "mix_replay"},
    {"method.name": "fixed_interval", "method.warmup_steps": 3},
    {"method.clock": "steps"},
    {"method.clock": "steps", "method.days": "end_only", "method.consolidation_epochs": "matched"},
    # AIMMerging's merges follow its losses, and SSR may write fewer rows than memory would keep.
    *(
        {"method.name": name}
        for name in ("ewc", "olora", "moelora", "sapt", "migu", "recurrent_kif")
    ),
    {"method.name": "sapt", "method.memory_prompts": "pseudo", "method.generator_steps": 3},
    {"method.name": "migu", "method.replay": False},
    {"method.name": "vbm", "method.views": 2, "method.warmup_steps": 3},
    {"method.name": "vbm", "method.variant": "mix"},
]


def encoder_of(config: RunConfig) -> Encoder:
    tokenizer = load(config.model.name, torch.float32, torch.device("cpu")).tokenizer
    return Encoder(tokenizer, config.model.max_length)


def planned(config: RunConfig, **arguments: Any) -> Plan:
    return plan(config, load_benchmark(config.data), **arguments)


def fired(result: dict[str, Any]) -> dict[str, int]:
    """Events of a run by kind."""
    found: dict[str, int] = {}
    for by_kind in result["events"].values():
        for kind, count in by_kind.items():
            found[kind] = found.get(kind, 0) + count
    return found


@pytest.mark.parametrize("changes", [{"method.name": "aimmerging"}, {"method.name": "ssr"}])
def test_an_estimate_where_training_has_a_say(changes: dict, base_config: RunConfig) -> None:
    config = base_config.override(changes)
    plain = planned(config.override({"method.name": "finetune"}))
    assert sum(planned(config).updates.values()) > plain.updates["task"]


@pytest.mark.parametrize("changes", METHODS, ids=lambda c: "-".join(str(v) for v in c.values()))
def test_updates_and_tokens_equal_those_of_the_run(
    changes: dict, base_config: RunConfig, tmp_path: Path
) -> None:
    config = base_config.override(changes)
    result = execute(config, tmp_path / "run")
    counted = planned(config, encoder=encoder_of(config))
    assert counted.updates == result["updates"]
    assert counted.rows == result["rows_seen"]
    assert counted.train_tokens == result["tokens"]
    assert counted.events == fired(result)


def test_the_model_clock_at_the_pace_of_the_run(base_config: RunConfig, tmp_path: Path) -> None:
    """At a constant pace a plan by the model clock is that of the step clock; at the run's own it
    is the run."""
    config = base_config.override({"method.clock": "model", "optim.epochs": 6})
    assert planned(config) == planned(config.override({"method.clock": "steps"}))
    result = execute(config, tmp_path / "run")
    pace = pace_of(lines(tmp_path / "run" / "steps.jsonl"))
    counted = planned(config, encoder=encoder_of(config), pace=pace)
    assert (counted.updates, counted.events, counted.train_tokens) == (
        result["updates"],
        fired(result),
        result["tokens"],
    )
    assert counted.updates != planned(config).updates  # or the pace would not have mattered


def test_a_pilot_begins_as_the_run_does(base_config: RunConfig, tmp_path: Path) -> None:
    """Its updates are those of the run's first task, to the last bit; where it stops, the learning
    rate goes on."""
    config = base_config.override(
        {"method.clock": "model", "optim.epochs": 6, "optim.schedule": "linear"}
    )
    benchmark = load_benchmark(config.data)
    execute(config, tmp_path / "run")
    first = pace_of(lines(tmp_path / "run" / "steps.jsonl"))[benchmark.tasks[0].name]
    whole = pilot(config, benchmark, torch.device("cpu"), 600)
    assert list(whole) == [task.name for task in benchmark.tasks]
    assert all(norms == first for norms in whole.values())
    short = pilot(config, benchmark, torch.device("cpu"), 0)[benchmark.tasks[0].name]
    rates = [learning_rate(config.optim, step, len(first)) for step in range(len(first))]
    assert short == pytest.approx([first[0] * rate / rates[0] for rate in rates])


def test_the_pace_of_another_seed_gives_the_replays_of_a_run(
    small_config: RunConfig, tmp_path: Path
) -> None:
    """A plan is made before its run: by the pace of a run that is not it, events of a task differ
    by one at most."""
    config = small_config.override({"method.clock": "model", "optim.epochs": 6})
    execute(config, tmp_path / "run")
    pace = pace_of(lines(tmp_path / "run" / "steps.jsonl"))
    result = execute(config.override({"seed": 1}), tmp_path / "other")
    counted = planned(config.override({"seed": 1}), pace=pace)
    later = len(result["tasks"]) - 1  # the first task has no memory to replay
    assert 0 < fired(result)["replay"] < planned(config).events["replay"]
    assert abs(counted.events["replay"] - fired(result)["replay"]) <= later
    assert counted.updates["task"] == result["updates"]["task"]


def test_counts_do_not_hang_on_the_seed(base_config: RunConfig) -> None:
    one, other = (planned(base_config.override({"seed": seed})) for seed in (0, 7))
    assert (one.updates, one.events, one.rows) == (other.updates, other.events, other.rows)


def test_the_papers_setting_by_hand() -> None:
    """T = 1250 updates of equal length and S = 24: six events of two passes and one consolidation
    pass, from task 2."""
    config = RunConfig.parse({"data": {"benchmark": "mini"}, "method": {"name": "forever"}})
    counted = planned(config.override({"optim.epochs": 50, "memory.fraction": 0.04}))
    assert counted.updates["task"] == 5 * 50 * 25
    assert counted.events == {"replay": 4 * 6, "consolidation": 4}
    # 8 kept rows of each task, one batch.
    assert counted.updates["replay"] == sum(6 * 2 * k for k in (1, 2, 3, 4))
    assert counted.updates["consolidation"] == 1 + 2 + 3 + 4
    assert counted.work["probe"].calls == 2 * 28  # before and after each event


# ---- work that is no update


def test_fisher_information_takes_each_row_once_a_task(base_config: RunConfig) -> None:
    rows = [len(task.train) for task in load_benchmark(base_config.data).tasks]
    for changes in ({"method.name": "ewc"}, {"method.regularizer": "importance"}):
        work = planned(base_config.override(changes)).work
        assert work["single"].calls == sum(rows)
        assert work["single"].tokens == work["single"].padded > 0
    assert "single" not in planned(base_config).work


def test_aimmerging_probes_after_every_update_from_the_second_task_on(
    base_config: RunConfig,
) -> None:
    counted = planned(base_config.override({"method.name": "aimmerging"}))
    first = 3 * 6  # epochs of 24 rows in batches of 4
    assert counted.work["probe"].calls == counted.updates["task"] - first


def test_what_ssr_writes(base_config: RunConfig) -> None:
    """No more than quota * (quota - 1) prompts in each turn, and an answer to each row that is
    kept."""
    config = base_config.override(
        {"method.name": "ssr", "method.max_tokens": 100, "memory.fraction": 0.125}
    )
    tasks = [task for task in load_benchmark(config.data).tasks if len(task.train) == 24]
    assert len(tasks) == 1
    two = config.override({"data.train_rows": 24, "data.order": ["colour", "weight"]})
    written = planned(two).work  # 3 rows kept: 6 ordered pairs, 3 turns
    assert written["openings"].calls == 3 + 1
    # Prompts are shorter than 100 tokens and go on up to there; answers have 3 tokens, the first
    # from the prompt.
    assert 3 * 6 * 1 <= written["texts"].tokens - 3 * 2 <= 3 * 6 * 99
    assert not planned(two.override({"data.order": ["colour"]})).work.keys() & {"openings", "texts"}


def test_what_an_evaluation_decodes(base_config: RunConfig) -> None:
    """Six rows a task, scored after each stage from its own on: prompts at once, then a step for
    each further token."""
    config = base_config.override({"method.name": "finetune"})
    encoder = encoder_of(config)
    work = planned(config, encoder=encoder).work
    tasks = load_benchmark(config.data).tasks
    prompts = [
        sum(len(encoder.encode_prompt(example).prompt) for example in task.test) for task in tasks
    ]
    assert work["prompts"].calls == 3 + 2 + 1
    assert work["prompts"].tokens == sum(
        count * stages for count, stages in zip(prompts, (3, 2, 1), strict=True)
    )
    longest = [max(encoder.count(example.output) for example in task.test) for task in tasks]
    assert longest == [1, 1, 2]  # and EOS, of which the prompt gives the first
    assert work["answers"] == Work(3 + 2 + 2, 6 * (3 + 2 + 2), 6 * (3 + 2 + 2))
    ahead = planned(config.override({"evaluation.forward_transfer": True}), encoder=encoder).work
    # All before training; then those seen and the next one.
    assert ahead["prompts"].calls == 3 + (2 + 3 + 3)
    # Untrained: up to the limit of 3.
    assert ahead["answers"].calls == 3 * 2 + (1 + 1) + (1 + 1 + 2) + (1 + 1 + 2)


# ---- time


def test_seconds_at_a_stated_throughput() -> None:
    kinds = {
        "task": 900,
        "probe": 300,
        "single": 50,
        "prompts": 600,
        "answers": 40,
        "openings": 30,
        "texts": 20,
    }
    counted = Plan({kind: Work(1, tokens, 2 * tokens) for kind, tokens in kinds.items()}, {}, {})
    assert (counted.train_tokens, counted.other_tokens, counted.evaluation_tokens) == (
        900,
        400,
        640,
    )
    assert counted.seconds_at(10) == pytest.approx((900 + 50 + 40 + 20 + (300 + 600 + 30) / 3) / 10)


def test_rates() -> None:
    assert Rate.fit([(10, 3.0), (20, 5.0)]) == Rate(1.0, 0.2)
    assert Rate.fit([(10, 3.0), (20, 2.0)]) == Rate(2.5, 0.0)  # longer calls cannot be faster
    # An empty call cannot take less than none.
    assert Rate.fit([(10, 1.0), (20, 3.0)]) == Rate(0.0, 2 / 15)
    assert Rate.fit([(5, 2.0)]) == Rate(2.0, 0.0)
    speed = Speed({"task": Rate(1.0, 0.1), "probe": Rate(0.5, 0.0)}, start=7.0)
    assert (
        speed.seconds(Plan({"task": Work(3, 10, 20), "probe": Work(2, 9, 9)}, {}, {}))
        == 7 + (3 + 2) + 1
    )


@pytest.mark.parametrize("method", ["forever", "aimmerging", "sapt", "ssr", "mtl", "vbm", "ewc"])
def test_a_calibration_times_every_kind_of_work(method: str, small_config: RunConfig) -> None:
    """No wall-clock is compared: only that all work has a rate, and that one update is not faster
    than light."""
    config = small_config.override({"method.name": method})
    threads = torch.get_num_threads()
    measured = calibrated([config, config.override({"seed": 1})], Place(1, "cpu", 1, ""))
    speeds, encoders = measured.speeds, measured.encoders
    assert torch.get_num_threads() == threads
    speed = speeds[group(config)]
    assert len(speeds) == len(encoders) == 1
    counted = planned(config, encoder=next(iter(encoders.values())))
    assert speed.rates["task"].seconds(Work(1, 100, 100)) > 1e-5
    assert speed.rates["single"].seconds(Work(1, 20, 20)) > 1e-5
    assert speed.rates["prompts"].seconds(Work(1, 20, 20)) > 1e-5
    assert speed.start < speed.seconds(counted) < 600


@pytest.fixture(autouse=True)
def _short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forever.planning.places.CALIBRATION_S", 0.2)


# ---- the table


def cells(table: Any) -> dict[str, dict[str, str]]:
    """The rows of a table by their first cell."""
    texts = [list(column.cells) for column in table.columns]
    names = [str(column.header) for column in table.columns][1:]
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in zip(*texts, strict=True)}


def saved(config: RunConfig, path: Path) -> str:
    import yaml

    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return str(path)


def test_what_is_done_is_skipped_and_lends_its_pace(
    small_config: RunConfig, tmp_path: Path
) -> None:
    run = saved(small_config, tmp_path / "run.yaml")
    terms = Terms(tokens_per_second=1000, price_per_hour=3600)
    before = plan_table(run, "", {}, (0, 1, 2), tmp_path, terms)
    assert cells(before)["to do"]["runs"] == "3"
    assert "finished runs" not in str(before.caption)
    result = execute(small_config, tmp_path / small_config.key())
    after = plan_table(run, "", {}, (0, 1, 2), tmp_path, terms)
    rows = cells(after)
    assert (rows[run]["runs"], rows[run]["done"]) == ("3", "1")
    assert rows["done, skipped"]["runs"] == "1"
    assert rows["done, skipped"]["events"] == str(sum(fired(result).values()))
    assert rows["done, skipped"]["cost"] == f"{sum(result['seconds'].values()):.2f}"
    assert {kind: rows["done, skipped"][kind] for kind in ("task", "replay")} == {
        kind: str(result["updates"].get(kind, 0)) for kind in ("task", "replay")
    }
    assert rows["to do"]["runs"] == "2"
    assert "at the pace of finished runs" in str(after.caption)
    each = planned(small_config, pace=pace_of(lines(tmp_path / small_config.key() / "steps.jsonl")))
    assert rows["to do"]["cost"] == f"{2 * each.seconds_at(1000):.2f}"


def test_a_sweep_has_a_row_for_each_variant(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    counted = []
    monkeypatch.setattr("forever.planning.counts.plan", lambda *a: counted.append(a) or plan(*a))
    on = saved(small_config, tmp_path / "run.yaml")
    table = plan_table("components", on, {}, (0, 1), tmp_path, Terms(device="cpu", concurrent=2))
    rows = cells(table)
    assert len(rows) == 8 + 1
    assert rows["+STC"]["runs"] == "2"
    assert int(rows["+STC"]["task"]) == 2 * planned(small_config).updates["task"]
    assert len(counted) == 8  # seeds share a plan
    assert rows["to do"]["runs"] == "16"
    assert rows["to do"]["hours"] == "-"
    assert "2 at a time with 2 threads on Ray's 4 CPUs" in str(table.caption)


def test_what_failed_is_planned_when_it_will_be_run_again(
    small_config: RunConfig, tmp_path: Path
) -> None:
    on = saved(small_config, tmp_path / "run.yaml")
    first = load_sweep("memory_epochs").expand(small_config, (0,)).trials()[0]
    RunDirectory(tmp_path / "memory_epochs" / first.key).end("failed", "no memory")
    table = plan_table("memory_epochs", on, {}, (0,), tmp_path, Terms(device="cpu"))
    assert cells(table)["to do"]["runs"] == "2"
    assert "1 that failed before" in str(table.caption)
    again = plan_table(
        "memory_epochs", on, {}, (0,), tmp_path, Terms(device="cpu", retry_failed=True)
    )
    assert cells(again)["to do"]["runs"] == "3"


def test_a_search_is_planned_as_so_many_runs_of_its_base(
    small_config: RunConfig, tmp_path: Path
) -> None:
    on = saved(small_config, tmp_path / "run.yaml")

    def runs(trials: int | None) -> str:
        terms = Terms(trials=trials, device="cpu")
        return cells(plan_table("search", on, {}, (3,), tmp_path, terms))["to do"]["runs"]

    assert runs(None) == str(load_sweep("search").trials)
    assert runs(5) == "5"
    with pytest.raises(InputError, match="one seed"):
        plan_table("search", on, {}, (0, 1), tmp_path, Terms())


def test_a_calibrated_table(small_config: RunConfig, tmp_path: Path) -> None:
    on = saved(small_config, tmp_path / "run.yaml")
    table = plan_table(on, "", {}, None, tmp_path, Terms(calibrate=True, device="cpu"))
    assert float(cells(table)["to do"]["hours"]) >= 0
    assert "measured here on cpu" in str(table.caption)
    assert "own tokenizer" in str(table.caption)
    assert "at the pace of the first task, measured here" in str(table.caption)


def test_a_table_says_what_it_can_only_estimate(small_config: RunConfig, tmp_path: Path) -> None:
    captions = {}
    for name in ("finetune", "ssr", "forever"):
        on = saved(small_config.override({"method.name": name}), tmp_path / f"{name}.yaml")
        captions[name] = str(plan_table(on, "", {}, None, tmp_path, Terms(device="cpu")).caption)
    assert "Estimates: SSR keeps what it manages to write." in captions["ssr"]
    assert "equally far" in captions["forever"]
    assert "Estimates" not in captions["finetune"] + captions["forever"]
    assert "pace" not in captions["finetune"] + captions["ssr"]


def test_runs_take_their_places_in_order() -> None:
    assert plans._wall([3, 1, 1, 1], 2) == 3
    assert plans._wall([1, 1, 1, 3], 2) == 4
    assert plans._wall([1, 2], 1) == 3


def test_a_place_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cluster has is asked of it; with GPUs there, a run has a worker of its own unless
    told otherwise."""
    from forever.launch import ray_cluster

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray_cluster, "cluster", lambda **_: nullcontext())
    monkeypatch.setattr(ray_cluster, "capacity", lambda: ({"CPU": 64.0, "GPU": 8.0}, 3))
    place = find_place(20, True, "auto", None)
    assert (place.concurrent, place.device, place.threads) == (8, "cuda", None)
    assert place.text == "8 at a time on Ray's 64 CPUs and 8 GPUs"
    place = find_place(20, True, "auto", None, workers=2)
    assert place.text == "4 at a time, 2 workers each, on Ray's 64 CPUs and 8 GPUs"
    assert find_place(3, True, "auto", None).concurrent == 3
    with pytest.raises(InputError, match="9 workers with 1 GPU each"):
        find_place(1, True, "auto", None, workers=9)


def test_a_place_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(InputError, match="3 runs at once"):
        find_place(8, True, "cpu", 3)
    with pytest.raises(InputError, match="give one of them"):
        Terms(calibrate=True, tokens_per_second=5)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="state --tokens-per-second"):
            calibrated([RunConfig()], Place(1, "cuda", None, ""))
