"""The generators of the methods, driven by hand: no model, every update norm invented.

What a method does depends only on (config, data, records), so Algorithm 1 can be checked against a
script on paper. T_k planned updates, S warm-up, M memory of finished tasks, J events.
"""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from helpers import Driven, drive, rows_task, stub_learner

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.methods.base import Method
from forever.methods.registry import build_method
from forever.training.steps import Probe, Step

# At fraction 0.25 and batch 4: 10 + 7 rows, 5 batches a pass.
OLD = [rows_task("old", 40), rows_task("older", 30)]
SMALL: dict[str, Any] = {"memory.fraction": 0.25, "optim.batch_size": 4, "optim.epochs": 2}
REPLAYING = ["mix_replay", "fixed_interval", "forever"]


def method_of(name: str, **fields: Any) -> Method:
    return build_method(
        RunConfig.parse({"data": {"benchmark": "toy"}, "method": {"name": name, **fields}}).method
    )


def forever(**fields: Any) -> Method:
    return method_of(
        "forever", **{"warmup_steps": 2, "days": [1, 2, 4], "smoothing": 0.5, **fields}
    )


def driven(
    method: Method, rows: int = 16, old: Any = OLD, norm: Any = lambda t: 1.0, **changes: Any
) -> Driven:
    """A task of `rows` rows; T = epochs * ceil(rows / batch), 8 by default."""
    return drive(method, stub_learner(old, **{**SMALL, **changes}), rows_task("new", rows), norm)


# ---- FOREVER


def test_hand_worked_script() -> None:
    # A day is 4, mu0 is 2.
    norms = {1: 1.0, 2: 3.0, 3: 2.0, 4: 4.0, 5: 6.0, 6: 20.0, 7: 0.0, 8: 0.0}
    run = driven(forever(), norm=norms.__getitem__)
    taus = [1, 4, 6, 10, 16, 36, 36, 36]
    mus = [None, 2, 2, 3, 4.5, 12.25, 6.125, 3.0625]
    days = [0, 1, 1.5, 2.5, 4, 9, 9, 9]
    assert [gauge["tau"] for gauge in run.gauges] == taus
    assert [gauge["mu"] for gauge in run.gauges] == mus
    assert [gauge["days"] for gauge in run.gauges] == days
    assert run.learner.notes["tau_day"] == 4
    #        kind             step day   tau  r        s
    script = [
        ("replay", 2, 1.0, 4.0, 1.0, 1.0),
        ("replay", 4, 2.0, 10.0, 1.5, 1.5),
        ("replay", 5, 4.0, 16.0, 2.25, 2.25),
        ("consolidation", 8, None, 36.0, 1.53125, 1.53125),
    ]
    for event, (kind, step, day, tau, ratio, strength) in zip(
        run.learner.events, script, strict=True
    ):
        assert (event.kind, event.step, event.day, event.tau) == (kind, step, day, tau)
        assert event.ratio == pytest.approx(ratio, rel=1e-10)
        assert event.strength == pytest.approx(strength, rel=1e-10)
        assert event.beta == pytest.approx(1e-3 * strength, rel=1e-10)
        assert (event.updates, event.rows) == ((10, 34) if kind == "replay" else (5, 17))
    kinds = [f"{s.kind[0]}" for s in run.steps]  # t(ask), r(eplay), c(onsolidation)
    assert "".join(kinds) == "tt" + 10 * "r" + "tt" + 10 * "r" + "t" + 10 * "r" + "ttt" + 5 * "c"


def test_strength_is_clipped() -> None:
    fast = driven(forever(), norm=lambda t: 1.0 if t <= 2 else 100.0)
    slow = driven(forever(consolidation_epochs=1), norm=lambda t: 1.0 if t <= 2 else 1e-6)
    assert fast.learner.events[-1].beta == pytest.approx(3e-3, rel=1e-12)
    assert slow.learner.events[-1].beta == pytest.approx(5e-4, rel=1e-12)


def test_default_events_of_a_long_task() -> None:
    """The paper's setting with constant movement: 24, 48, 96, 168, 360, 720, and the step clock
    fires at the same."""
    runs = [
        drive(
            method_of("forever", clock=clock),
            stub_learner([rows_task("old", 100)]),
            rows_task("new", 1000),
            lambda t: 0.003,
        )
        for clock in ("model", "steps")
    ]
    for run in runs:
        assert run.learner.planned_steps == 1250
        assert run.event_steps == [24, 48, 96, 168, 360, 720]
        assert len(run.of_kind("replay")) == 6 * 2 * 1  # 2 rows of memory: one batch a pass
        assert len(run.of_kind("consolidation")) == 1
    assert runs[0].ids("task", "replay", "consolidation") == runs[1].ids(
        "task", "replay", "consolidation"
    )


@pytest.mark.parametrize(
    ("rows", "events"), [(1000, 6), (400, 5), (338, 5), (250, 4), (160, 4), (142, 4), (126, 3)]
)
def test_events_by_task_size(rows: int, events: int) -> None:
    """docs/protocol.md: expected events at constant movement for each size of the paper."""
    run = drive(method_of("forever"), stub_learner([rows_task("old", 100)]), rows_task("new", rows))
    assert run.learner.planned_steps == 10 * math.ceil(rows / 8)
    assert len(run.event_steps) == events


@pytest.mark.parametrize("scale", [2.0**-12, 2.0**9])
def test_scaling_all_movements_changes_no_decision(scale: float) -> None:
    norm = lambda t: 1 + (7 * t % 5) / 3  # noqa: E731
    base, scaled = (
        driven(forever(), 40, norm=norm),
        driven(forever(), 40, norm=lambda t: scale * norm(t)),
    )
    assert base.event_steps == scaled.event_steps
    assert [e.beta for e in scaled.learner.events] == pytest.approx(
        [e.beta for e in base.learner.events], rel=1e-8
    )


def test_replay_does_not_age_the_learner() -> None:
    """The same movements with and without events give the same clock readings, however far replays
    move."""
    norm = lambda t: 1 + t % 3  # noqa: E731
    with_events = drive(
        forever(), stub_learner(OLD, **SMALL), rows_task("new", 16), norm, replay_norm=1e9
    )
    without = drive(forever(days=[]), stub_learner(OLD, **SMALL), rows_task("new", 16), norm)
    assert with_events.event_steps
    assert not without.event_steps
    for name in ("tau", "mu", "days"):
        assert [g[name] for g in with_events.gauges] == [g[name] for g in without.gauges]
    assert with_events.learner.step == without.learner.step == 8


def test_thresholds_crossed_at_once_fire_on_consecutive_updates() -> None:
    days = [1, 1.1, 1.2, 1.3]  # update 3 jumps over three of them
    run = driven(forever(days=days), norm=lambda t: 1000.0 if t == 3 else (1.0 if t < 3 else 0.0))
    assert run.event_steps == [2, 3, 4, 5]
    assert [e.day for e in run.learner.events[:-1]] == days


def test_warmup_longer_than_the_task_leaves_consolidation_only() -> None:
    run = driven(forever(warmup_steps=9))
    assert run.event_steps == []
    assert [e.kind for e in run.learner.events] == ["consolidation"]
    assert run.learner.events[0].beta == 1e-3  # no pace yet: r = 1
    assert run.learner.notes["tau_day"] is None


def test_a_threshold_on_the_last_update_fires_before_consolidation() -> None:
    run = driven(forever(days=[4]))
    assert [(e.kind, e.step) for e in run.learner.events] == [("replay", 8), ("consolidation", 8)]


def test_each_task_has_its_own_clock() -> None:
    method = forever()
    learner = stub_learner(OLD, **SMALL)
    first = drive(method, learner, rows_task("a", 16), lambda t: 5.0)
    events = [e.step for e in first.learner.events]
    second = drive(method, learner, rows_task("b", 16), lambda t: 0.01)
    assert [e.step for e in second.learner.events] == events == [2, 4, 8, 8]
    assert second.gauges[0]["tau"] == 0.01


def test_first_task_reaches_days_but_does_not_replay() -> None:
    run = driven(forever(), old=())
    assert run.gauges[-1]["days"] == 4
    assert all(g["next_day"] is None for g in run.gauges)
    assert run.learner.notes["tau_day"] == 2


def test_strength_and_anchor_hold_for_a_whole_event() -> None:
    run = driven(forever(), norm=lambda t: float(t))
    events = list(run.learner.events)
    penalties = [s.penalty for s in run.steps if s.kind != "task"]
    assert all(s.penalty is None for s in run.of_kind("task"))
    betas = [p.beta for p in penalties if p is not None]
    assert betas == [e.beta for e in events for _ in range(e.updates)]
    assert len({e.beta for e in events}) > 1


def test_anchor_is_a_copy_taken_when_the_task_begins() -> None:
    method, learner = forever(), stub_learner(OLD, **SMALL)
    learner.begin(2, rows_task("new", 16))
    method.begin_task(learner, rows_task("new", 16))
    learner.parameters.flat.data += 10  # training moves Theta in place
    assert torch.equal(method.tensors["anchor"], torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("method", "anchored", "noted"),
    [
        (forever(), True, True),
        (forever(regularizer="importance"), True, True),
        (forever(clock="steps"), True, False),
        (forever(regularizer="none"), False, True),
        (forever(beta=0.0), False, True),
        (method_of("fixed_interval"), False, False),
        (method_of("vbm"), False, False),
    ],
    ids=["model", "importance", "steps", "none", "beta 0", "fixed_interval", "vbm"],
)
def test_an_anchor_where_there_is_a_penalty_and_a_day_where_it_is_a_distance(
    method: Method, anchored: bool, noted: bool
) -> None:
    learner, task = stub_learner(OLD, **SMALL), rows_task("new", 16)
    learner.begin(2, task)
    method.begin_task(learner, task)
    assert ("anchor" in method.tensors) == anchored
    run = drive(method, stub_learner(OLD, **SMALL), task)
    assert ("tau_day" in run.learner.notes) == noted


def test_an_event_is_shuffled_passes_over_the_whole_memory() -> None:
    run = driven(forever(memory_epochs=3))
    kept = Counter(e.id for e in run.learner.memory.examples)
    size = 3 * math.ceil(17 / 4)
    replays = run.ids("replay")
    for i in range(len(run.event_steps)):
        event = replays[i * size : (i + 1) * size]
        for start in range(0, size, 5):
            assert Counter(id_ for batch in event[start : start + 5] for id_ in batch) == kept
    assert replays[:5] != replays[5:10] != replays[10:15]  # each pass is shuffled anew
    assert replays[:size] != replays[size : 2 * size]  # and each event
    assert Counter(id_ for batch in run.ids("consolidation") for id_ in batch) == kept


def test_loss_is_probed_on_the_same_batch_before_and_after_an_event() -> None:
    run = driven(forever())
    probes = [i for i, action in enumerate(run.actions) if isinstance(action, Probe)]
    assert len(probes) == 2 * len(run.learner.events)
    for before, after in zip(probes[::2], probes[1::2], strict=True):
        assert (
            run.actions[before].batch == run.actions[after].batch == run.actions[before + 1].batch
        )
        assert all(
            isinstance(a, Step) and a.kind != "task" for a in run.actions[before + 1 : after]
        )


@pytest.mark.parametrize(
    "days",
    ["ebbinghaus", "exponential", "polynomial", "uniform", "decreasing", "end_only", [40.0], []],
)
@pytest.mark.parametrize(
    "norm", [lambda t: 1.0, lambda t: 1 / t, lambda t: float(t)], ids=["equal", "shrink", "grow"]
)
def test_matched_schedules_spend_equal_budgets(days: Any, norm: Any) -> None:
    """Whatever fires in the task, 2 J + 1 passes over memory: the rest comes at the end, and no
    more than J fire."""
    method = method_of("forever", days=days, consolidation_epochs="matched")
    run = drive(method, stub_learner([rows_task("old", 1000)]), rows_task("new", 1000), norm)
    assert len(run.of_kind("replay") + run.of_kind("consolidation")) == (2 * 6 + 1) * math.ceil(
        20 / 8
    )
    assert len(run.event_steps) <= 6


# ---- the main stream


@pytest.mark.parametrize("name", ["fixed_interval", "forever"])
def test_main_batches_are_those_of_fine_tuning(name: str) -> None:
    fields = {"warmup_steps": 2}
    plain, run = driven(method_of("finetune")), driven(method_of(name, **fields))
    assert run.event_steps
    assert run.of_kind("task") == plain.of_kind("task")


def test_each_row_once_an_epoch_shuffled_anew_and_none_dropped() -> None:
    run = driven(method_of("finetune"), rows=18)
    assert run.learner.planned_steps == len(run.steps) == 10
    epochs = [run.ids("task")[:5], run.ids("task")[5:]]
    assert [[len(batch) for batch in epoch] for epoch in epochs] == [[4, 4, 4, 4, 2]] * 2
    for epoch in epochs:
        assert Counter(id_ for batch in epoch for id_ in batch) == Counter(
            e.id for e in rows_task("new", 18).train
        )
    assert epochs[0] != epochs[1]
    assert [s.batch.epoch for s in run.steps] == [0] * 5 + [1] * 5


def test_the_seed_decides_the_order() -> None:
    same, other = driven(method_of("finetune")), driven(method_of("finetune"), seed=1)
    assert driven(method_of("finetune")).actions == same.actions
    assert other.ids("task") != same.ids("task")


# ---- Fixed-interval replay


def test_fixed_interval_events() -> None:
    run = drive(
        method_of("fixed_interval"), stub_learner([rows_task("old", 1000)]), rows_task("new", 1000)
    )
    assert run.event_steps == [208, 416, 624, 832, 1040, 1248]
    assert len(run.of_kind("replay")) == 6 * 2 * math.ceil(20 / 8)
    assert len(run.of_kind("consolidation")) == math.ceil(20 / 8)
    assert all(s.penalty is None for s in run.steps)


def test_fixed_interval_ignores_movement() -> None:
    fields = {"warmup_steps": 2}
    still, wild = (
        driven(method_of("fixed_interval", **fields), norm=n)
        for n in (lambda t: 0.0, lambda t: t**5.0)
    )
    # T = 8, S = 2: J = #{1, 2, 4}, I = floor(8 / 3).
    assert still.event_steps == wild.event_steps == [2, 4, 6]


# ---- MixReplay and MTL

LONG_SIZES = [1000] * 13 + [250, 400]
SUPERNI_SIZES = [1000] * 10 + [975, 338, 160, 142, 126]


@pytest.mark.parametrize(
    ("sizes", "steps"), [(LONG_SIZES, 1707), (SUPERNI_SIZES, 1468), ([1000] * 4, 500)]
)
def test_mtl_epoch(sizes: list[int], steps: int) -> None:
    """docs/protocol.md: batches an epoch over the union of all tasks, each row once."""
    tasks = [rows_task(f"t{i}", n) for i, n in enumerate(sizes)]
    joint = Benchmark.sequence("sizes", "1", tasks).joint()
    assert len(joint.stages) == 1
    run = drive(method_of("mtl"), stub_learner((), **{"optim.epochs": 2}), joint.stages[0])
    assert len(run.steps) == 2 * steps
    rows = Counter(e.id for task in tasks for e in task.train)
    assert Counter(id_ for batch in run.ids("task")[:steps] for id_ in batch) == rows
    assert set(rows.values()) == {1}
    assert RunConfig.parse({"method": {"name": "mtl"}}).method.joint


def test_mtl_does_not_depend_on_the_order_of_tasks() -> None:
    """Up to the seed, which does shuffle: all orders of a benchmark have one and the same upper
    bound."""
    tasks = [rows_task("b", 9), rows_task("c", 5), rows_task("a", 7)]
    runs = []
    for order, seed in ((tasks, 0), (tasks[::-1], 0), (tasks, 1)):
        joint = Benchmark.sequence("orders", "1", order).joint()
        # They are scored as they came.
        assert [task.name for task in joint.tasks] == [task.name for task in order]
        runs.append(
            (
                joint.stages,
                drive(method_of("mtl"), stub_learner((), **SMALL, seed=seed), joint.stages[0]),
            )
        )
    assert runs[0][0] == runs[1][0] == runs[2][0]
    assert runs[0][1].actions == runs[1][1].actions
    assert runs[0][1].actions != runs[2][1].actions


def test_mix_replay_epoch_is_data_and_memory_once() -> None:
    run = driven(method_of("mix_replay"))
    union = 16 + 17
    assert run.learner.planned_steps == len(run.steps) == 2 * math.ceil(union / 4)
    expected = Counter(e.id for e in (*rows_task("new", 16).train, *run.learner.memory.examples))
    assert sum(expected.values()) == union
    for epoch in (0, 1):
        seen = Counter(e.id for s in run.steps if s.batch.epoch == epoch for e in s.batch.examples)
        assert seen == expected
    assert {s.kind for s in run.steps} == {"task"}
