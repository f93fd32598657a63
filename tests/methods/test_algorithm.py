"""The generators of the methods, driven by hand: no model, every update norm invented.

What a method does depends only on (config, data, records), so Algorithm 1 can be checked against a
script on paper. T planned updates, S warm-up, J events.
"""

import math
import random
from collections import Counter
from typing import Any

import pytest
import torch
from helpers import OLD, SMALL, Driven, drive, driven, method_of, rows_task, stub_learner

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.replay.schedules import SCHEDULES
from forever.training.method import Method
from forever.training.steps import Probe, Step


def forever(**fields: Any) -> Method:
    return method_of("forever", **{"day_steps": 2, "days": [1, 2, 4], "smoothing": 0.5} | fields)


def vbm(**fields: Any) -> Method:
    return method_of("vbm", **{"day_steps": 2} | fields)


def counted(batches: list[tuple[str, ...]]) -> Counter[str]:
    """How often each row is in some batches."""
    return Counter(id_ for batch in batches for id_ in batch)


# ---- FOREVER


def test_hand_worked_script() -> None:
    norms = {1: 1.0, 2: 3.0, 3: 2.0, 4: 4.0, 5: 6.0, 6: 20.0, 7: 0.0, 8: 0.0}
    run = driven(forever(), norm=norms.__getitem__)  # a day is 4, mu0 is 2
    taus = [1, 4, 6, 10, 16, 36, 36, 36]
    mus = [None, 2, 2, 3, 4.5, 12.25, 6.125, 3.0625]
    days = [0, 1, 1.5, 2.5, 4, 9, 9, 9]
    assert [gauge["tau"] for gauge in run.gauges] == taus
    assert [gauge["mu"] for gauge in run.gauges] == mus
    assert [gauge["days"] for gauge in run.gauges] == days
    assert run.learner.notes["tau_day"] == 4
    assert (run.learner.notes["day_7"], run.learner.notes["planned"]) == (6, 8)
    #        kind             step day   tau  r = s
    script = [
        ("replay", 2, 1.0, 4.0, 1.0),
        ("replay", 4, 2.0, 10.0, 1.5),
        ("replay", 5, 4.0, 16.0, 2.25),
        ("consolidation", 8, None, 36.0, 1.53125),
    ]
    for event, (kind, step, day, tau, pace) in zip(run.learner.events, script, strict=True):
        assert (event.kind, event.step, event.day, event.tau) == (kind, step, day, tau)
        assert (event.ratio, event.strength) == pytest.approx((pace, pace), rel=1e-10)
        assert event.beta == pytest.approx(1e-3 * pace, rel=1e-10)
        assert (event.updates, event.rows) == ((10, 34) if kind == "replay" else (5, 17))
    kinds = "".join(step.kind[0] for step in run.steps)  # t(ask), r(eplay), c(onsolidation)
    assert kinds == "tt" + 10 * "r" + "tt" + 10 * "r" + "t" + 10 * "r" + "ttt" + 5 * "c"


@pytest.mark.parametrize("clock", ["model", "steps"])
@pytest.mark.parametrize(
    ("rows", "events"), [(1000, 6), (400, 5), (338, 5), (250, 4), (160, 4), (142, 4), (126, 3)]
)
def test_events_by_task_size(clock: str, rows: int, events: int) -> None:
    """docs/protocol.md: the paper's sizes and settings at constant movement."""
    learner, task = stub_learner([rows_task("old", 100)]), rows_task("new", rows)
    run = drive(method_of("forever", clock=clock), learner, task, lambda t: 0.003)
    assert learner.planned_steps == 10 * math.ceil(rows / 8)
    assert run.event_steps == [24, 48, 96, 168, 360, 720][:events]
    assert len(run.of_kind("replay")) == events * 2  # 2 rows of memory: one batch a pass
    assert len(run.of_kind("consolidation")) == 1


def test_replay_does_not_age_the_learner() -> None:
    """The clock reads the same with and without events, however far replays move."""
    runs = []
    for days in ([1, 2, 4], []):
        learner, task = stub_learner(OLD, **SMALL), rows_task("new", 16)
        runs.append(drive(forever(days=days), learner, task, lambda t: 1 + t % 3, replay_norm=1e9))
    assert runs[0].event_steps
    assert not runs[1].event_steps
    for name in ("tau", "mu", "days"):
        readings = [[gauge[name] for gauge in run.gauges] for run in runs]
        assert readings[0] == readings[1]
    assert runs[0].learner.step == runs[1].learner.step == 8


LEAP = [1.0, 1.0, 1000.0, 0.0, 0.0, 0.0, 0.0, 0.0]
EVEN = [1.0] * 8
SCRIPTS: dict[str, tuple[dict[str, Any], list[float], list[tuple[int, float | None]]]] = {
    "thresholds crossed at once fire on consecutive updates":
        ({"days": [1, 1.1, 1.2, 1.3]}, LEAP, [(2, 1), (3, 1.1), (4, 1.2), (5, 1.3), (8, None)]),
    "one on the last update fires before consolidation": ({"days": [4]}, EVEN, [(8, 4), (8, None)]),
    "days are awaited in their order":
        ({"days": [2, 1, 3]}, EVEN, [(4, 2), (5, 1), (6, 3), (8, None)]),
    "no day is reached in a warm-up longer than the task": ({"day_steps": 9}, EVEN, [(8, None)]),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "norms", "script"), SCRIPTS.values(), ids=SCRIPTS)
def test_scripts(fields: dict[str, Any], norms: list[float], script: list[Any]) -> None:
    run = driven(forever(**fields), norm=lambda t: norms[t - 1])
    assert [(event.step, event.day) for event in run.learner.events] == script
    if "day_steps" in fields:
        assert run.learner.events[0].beta == 1e-3  # no pace yet: r = 1
        assert run.learner.notes["tau_day"] is run.learner.notes["day_7"] is None


def test_each_task_has_its_own_clock() -> None:
    method, learner = forever(), stub_learner(OLD, **SMALL)
    first = drive(method, learner, rows_task("a", 16), lambda t: 5.0).event_steps
    second = drive(method, learner, rows_task("b", 16), lambda t: 0.01)
    assert second.event_steps == first == [2, 4, 8]
    assert second.gauges[0]["tau"] == 0.01


def test_first_task_reaches_days_but_does_not_replay() -> None:
    run = driven(forever(), old=())
    assert run.gauges[-1]["days"] == 4
    assert all(gauge["next_day"] is None for gauge in run.gauges)
    assert run.learner.notes["tau_day"] == 2
    assert run.learner.events == []


def test_strength_holds_for_a_whole_event() -> None:
    run = driven(forever(), norm=float)
    betas = [event.beta for event in run.learner.events for _ in range(event.updates)]
    penalties = [step.penalty for step in run.steps if step.kind != "task"]
    assert [penalty.beta for penalty in penalties if penalty is not None] == betas
    assert len({*betas}) > 1
    assert all(step.penalty is None for step in run.of_kind("task"))


ANCHORED = [
    (forever(), True, True),
    (forever(regularizer="importance"), True, True),
    (forever(clock="steps"), True, False),
    (forever(regularizer="none"), False, True),
    (forever(beta=0.0), False, True),
    (method_of("fixed_interval"), False, False),
    (method_of("vbm"), False, False),
]


@pytest.mark.parametrize(("method", "anchored", "noted"), ANCHORED)
def test_an_anchor_where_there_is_a_penalty_and_a_day_where_it_is_a_distance(
    method: Method, anchored: bool, noted: bool
) -> None:
    learner, task = stub_learner(OLD, **SMALL), rows_task("new", 16)
    assert ("tau_day" in drive(method, learner, task).learner.notes) == noted
    learner.parameters.flat.data += 10  # training moves Theta in place; the anchor is a copy
    assert ("anchor" in method.tensors) == anchored
    if anchored:
        assert method.tensors["anchor"].equal(torch.tensor([1.0, 2.0, 3.0]))


def test_an_event_is_shuffled_passes_over_the_whole_memory() -> None:
    run = driven(forever(memory_epochs=3))
    replays = run.ids("replay")
    passes = [replays[start : start + 5] for start in range(0, len(replays), 5)]
    kept = Counter(example.id for example in run.learner.memory.examples)
    assert len(passes) == 3 * len(run.event_steps)
    assert all(counted(batches) == kept for batches in [*passes, run.ids("consolidation")])
    assert len({tuple(batches) for batches in passes}) == len(passes)  # each is shuffled anew


def test_loss_is_probed_on_the_same_batch_before_and_after_an_event() -> None:
    run = driven(forever())
    probes = [i for i, action in enumerate(run.actions) if isinstance(action, Probe)]
    assert len(probes) == 2 * len(run.learner.events)
    for before, after in zip(probes[::2], probes[1::2], strict=True):
        first, *event = run.actions[before:after]
        assert first.batch == event[0].batch == run.actions[after].batch
        assert all(isinstance(action, Step) and action.kind != "task" for action in event)


@pytest.mark.parametrize("days", [*SCHEDULES, [40.0], []])
@pytest.mark.parametrize("power", [0, -1, 1])
def test_matched_schedules_spend_equal_budgets(days: Any, power: int) -> None:
    """2 J + 1 passes over memory, with at most J events: what is left comes at the end."""
    method = method_of("forever", days=days, consolidation_epochs="matched")
    learner, task = stub_learner([rows_task("old", 1000)]), rows_task("new", 1000)
    run = drive(method, learner, task, lambda t: float(t) ** power)
    assert len(run.ids("replay", "consolidation")) == (2 * 6 + 1) * math.ceil(20 / 8)
    assert len(run.event_steps) <= 6


# ---- controls of a schedule

CONTROLS: dict[str, dict[str, Any]] = {
    "random times": {"days": "random"},
    "pad": {"source": "task"},
    "end only": {"days": "end_only"},
}


def controlled(seed: int = 0, **fields: Any) -> Driven:
    """A schedule on a clock of updates, with its budget, on tasks of the paper's size."""
    fields = {"clock": "steps", "consolidation_epochs": "matched"} | fields
    learner = stub_learner([rows_task("old", 1000), rows_task("older", 900)], seed=seed)
    return drive(method_of("forever", **fields), learner, rows_task("new", 1000))


@pytest.mark.parametrize("fields", CONTROLS.values(), ids=CONTROLS)
def test_a_control_spends_exactly_what_its_schedule_does(fields: dict[str, Any]) -> None:
    """Six events of two passes and one pass, over 20 + 18 kept examples: batches of 8."""
    standard, control = controlled(), controlled(**fields)
    for run in (standard, control):
        extra = [len(batch) for batch in run.ids("replay", "consolidation")]
        assert extra == [8, 8, 8, 8, 6] * 13
        assert len(run.of_kind("task")) == 1250
    if fields.get("days") != "end_only":
        assert len(control.event_steps) == len(standard.event_steps) == 6


def test_padding_is_shuffled_passes_over_the_current_task() -> None:
    run = controlled(source="task")
    shown = Counter(id_ for batch in run.ids("replay", "consolidation") for id_ in batch)
    assert {*shown} <= {example.id for example in rows_task("new", 1000).train}
    assert {*shown.values()} == {1}  # 494 of 1000 examples
    assert +run.learner.examples == {"task": 10_000, "padded": 13 * 38, "probed": 14 * 8}
    assert run.event_steps == controlled().event_steps
    assert run.ids("replay") != controlled(seed=1, source="task").ids("replay")


def test_random_times_differ_by_seed_and_repeat_by_seed() -> None:
    times = [controlled(seed, days="random").event_steps for seed in (0, 1, 2, 0)]
    assert times[0] == times[3]
    assert len({*map(tuple, times)}) == 3


# ---- how many examples a task has

# Two epochs of 16 own examples; 10 + 7 kept ones; batches of 4, of which a pass has five.
COUNTS: dict[str, tuple[Method, dict[str, int]]] = {
    "finetune": (method_of("finetune"), {}),
    "probes before updates 0, 4 and 8": (method_of("finetune", probe_every=4), {"probed": 3 * 17}),
    "mix_replay": (method_of("mix_replay"), {"replayed": 2 * 17}),
    "migu": (method_of("migu"), {"replayed": 2 * 17}),
    # Three events of two passes and one pass at the end, each between two probes of a batch.
    "forever": (forever(), {"replayed": 7 * 17, "probed": 4 * 2 * 4}),
    # Three events and the end are passes of two views, in batches of two examples.
    "vbm": (vbm(), {"replayed": 4 * 2 * 17, "probed": 4 * 4}),
    "recurrent_kif": (
        method_of("recurrent_kif", inner_steps=3, outer_steps=2), {"replayed": 2 * 2 * 4}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("method", "others"), COUNTS.values(), ids=COUNTS)
def test_examples_by_hand(method: Method, others: dict[str, int]) -> None:
    assert +driven(method).learner.examples == {"task": 2 * 16, **others}


# ---- budgets

SPENT = [
    # Of three events of 34 examples and a pass of 17 at the end.
    (forever(), 50, [("replay", 34), ("replay", 16)]),
    (forever(), 102, [("replay", 34)] * 3),
    (forever(), 150, [("replay", 34)] * 3 + [("consolidation", 48)]),
    (forever(days="end_only"), 50, [("consolidation", 50)]),
    # J = 3 events and the end divide it by four.
    (forever(memory_epochs="share"), 50, [("replay", 12)] * 3 + [("consolidation", 14)]),
    (forever(memory_epochs="share"), 200, [("replay", 50)] * 3 + [("consolidation", 50)]),
    (forever(memory_epochs="share", days=[1]), 50, [("replay", 12), ("consolidation", 38)]),
    (forever(memory_epochs="share"), 3, [("consolidation", 3)]),
    (method_of("fixed_interval", day_steps=4), 70, [("replay", 34)] * 2 + [("consolidation", 2)]),
    (
        method_of("fixed_interval", day_steps=4, events=4, memory_epochs="share"),
        20,
        [("replay", 4)] * 4 + [("consolidation", 4)],
    ),
    # Events of 17 examples in two views; the last one may be at the end.
    (vbm(), 50, [("replay", 17), ("replay", 8)]),
    (vbm(), 204, [("replay", 17)] * 3 + [("consolidation", 51)]),
    # Three days and the end have a quarter each; n = 7 recalls at equal distances a seventh.
    (vbm(memory_epochs="share"), 80, [("replay", 10)] * 3 + [("consolidation", 10)]),
    (
        vbm(memory_epochs="share", days="equal", views=1),
        35,
        [("replay", 5)] * 6 + [("consolidation", 5)],
    ),
]


@pytest.mark.parametrize(("method", "examples", "events"), SPENT)
def test_the_last_event_is_cut_short_or_what_is_left_is_spent_at_the_end(
    method: Method, examples: int, events: list[tuple[str, int]]
) -> None:
    run = driven(method, **{"budget.examples": examples})
    assert [(event.kind, event.rows) for event in run.learner.events] == events
    assert run.learner.examples["replayed"] == examples
    shown = [len(batch) for batch in run.ids("replay", "consolidation")]
    assert sum(shown) == sum(rows for _, rows in events)


@pytest.mark.parametrize("examples", [1, 16, 17, 51, 100, 333])
@pytest.mark.parametrize("name", ["ebbinghaus", "random", "end_only", "uniform", "pad", "mix"])
def test_every_schedule_and_control_spends_its_budget_exactly(name: str, examples: int) -> None:
    method = method_of("mix_replay")
    if name == "pad":
        method = forever(source="task")
    elif name != "mix":
        method = forever(days=name, clock="steps")
    run = driven(method, **{"budget.examples": examples})
    expected = {"task": 32, "padded" if name == "pad" else "replayed": examples}
    run.learner.examples["probed"] = 0
    assert +run.learner.examples == expected
    first = driven(method, old=(), **{"budget.examples": examples})
    assert +first.learner.examples == {"task": 32}


def test_interleaved_examples_are_spread_evenly() -> None:
    """Nine of 17 kept examples in two epochs: 4 and 5, and none twice."""
    run = driven(method_of("mix_replay"), **{"budget.examples": 9})
    assert run.learner.planned_steps == len(run.steps) == math.ceil(20 / 4) + math.ceil(21 / 4)
    own = {example.id for example in rows_task("new", 16).train}
    mixed: list[list[str]] = [[], []]
    for step in run.steps:
        mixed[step.batch.epoch] += [e.id for e in step.batch.examples if e.id not in own]
    assert [len(ids) for ids in mixed] == [4, 5]
    assert len({*mixed[0], *mixed[1]}) == 9
    shown = counted(driven(method_of("mix_replay"), **{"budget.examples": 40}).ids("task"))
    assert {shown[e.id] for e in run.learner.memory.examples} == {2, 3}  # 40 = 2 * 17 + 6


# With an update a second, and passes of five updates over the memory.
SECONDS = [
    (forever(), 6.5, [("replay", 7)]),
    (forever(), 25, [("replay", 10), ("replay", 10), ("replay", 5)]),
    (forever(), 45, [("replay", 10)] * 3 + [("consolidation", 15)]),
    (forever(source="task"), 45, [("replay", 10)] * 3 + [("consolidation", 15)]),
    (forever(days="end_only", consolidation_epochs=0), 12, [("consolidation", 12)]),
    # A quarter each, until 2.5, 5, 7.5 and 10 s have gone; the first reaches 3, the next 5.
    (
        forever(memory_epochs="share"),
        10,
        [("replay", 3), ("replay", 2), ("replay", 3), ("consolidation", 2)],
    ),
    (forever(memory_epochs="share", days=[1]), 10, [("replay", 3), ("consolidation", 7)]),
    (method_of("fixed_interval", day_steps=4), 0.5, [("replay", 1)]),
    # Passes of 17 / 2 batches.
    (vbm(), 12, [("replay", 9), ("replay", 3)]),
]


@pytest.mark.parametrize(("method", "seconds", "events"), SECONDS)
def test_an_event_ends_with_the_update_that_spends_the_last_second(
    method: Method, seconds: float, events: list[tuple[str, int]]
) -> None:
    run = driven(method, seconds=lambda step: 1.0, **{"budget.seconds": seconds})
    assert [(event.kind, event.updates) for event in run.learner.events] == events
    assert (
        run.learner.budget.replay_s == sum(updates for _, updates in events) == math.ceil(seconds)
    )
    rows = run.learner.examples["replayed"] + run.learner.examples["padded"]
    assert rows == sum(e.rows for e in run.learner.events) * (
        2 if "views" in str(method.config) else 1
    )
    first = driven(method, old=(), seconds=lambda step: 1.0, **{"budget.seconds": seconds})
    assert first.learner.budget.replay_s == 0


@pytest.mark.parametrize("name", ["mix_replay", "migu", "ssr"])
@pytest.mark.parametrize("budget", [0.3, 5.0, 60.0])
def test_mixed_in_seconds_are_spread_evenly(name: str, budget: float) -> None:
    """An update takes 0.2 s and 0.1 s an example, or half as much again; a budget may be many times
    what the task takes. The shares of memory in it add up to the budget, within an update."""

    def seconds(step: Step) -> float:
        return (0.2 + 0.1 * len(step.batch.examples)) * random.Random(step.batch.epoch).uniform(
            1, 1.5
        )

    run = driven(method_of(name), 64, seconds=seconds, **{"budget.seconds": budget})
    assert len(run.steps) == run.learner.planned_steps == 2 * 64 / 4
    assert run.learner.examples["task"] == 2 * 64
    own = {example.id for example in rows_task("new", 64).train}
    spent = 0.0
    for number, step in enumerate(run.steps, start=1):
        kept = sum(example.id not in own for example in step.batch.examples)
        spent += seconds(step) * kept / len(step.batch.examples)
        if number > 1:
            due = budget * number / len(run.steps)
            assert abs(spent - due) < run.learner.budget.longest_replay_s + 0.1
    assert run.learner.budget.replay_s == pytest.approx(spent)
    shown = counted(run.ids("task"))
    times = [shown[example.id] for example in run.learner.memory.examples]
    assert max(times) - min(times) <= 1


# ---- the main stream


@pytest.mark.parametrize("name", ["fixed_interval", "forever", "vbm"])
def test_main_batches_are_those_of_fine_tuning(name: str) -> None:
    run = driven(method_of(name, day_steps=2))
    assert run.event_steps
    assert run.of_kind("task") == driven(method_of("finetune")).of_kind("task")


def test_each_row_once_an_epoch_shuffled_anew_and_none_dropped() -> None:
    run = driven(method_of("finetune"), rows=18)
    epochs = [run.ids("task")[:5], run.ids("task")[5:]]
    assert [[len(batch) for batch in epoch] for epoch in epochs] == [[4, 4, 4, 4, 2]] * 2
    rows = Counter(example.id for example in rows_task("new", 18).train)
    assert counted(epochs[0]) == counted(epochs[1]) == rows
    assert epochs[0] != epochs[1]
    assert [step.batch.epoch for step in run.steps] == [0] * 5 + [1] * 5


# ---- Fixed-interval replay


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({}, [208, 416, 624, 832, 1040, 1248]),
        ({"interval": 24}, [24, 48, 72, 96, 120, 144]),
        ({"events": 4}, [312, 624, 936, 1248]),
    ],
)
def test_fixed_interval_events(fields: dict[str, int], steps: list[int]) -> None:
    """floor(1250 / 6) = 208, however far updates move; the paper's example says 24 literally; and
    as many events as are configured."""
    learner, task = stub_learner([rows_task("old", 1000)]), rows_task("new", 1000)
    run = drive(method_of("fixed_interval", **fields), learner, task, lambda t: t**5.0)
    assert run.event_steps == steps
    assert len(run.of_kind("replay")) == len(steps) * 2 * math.ceil(20 / 8)
    assert len(run.of_kind("consolidation")) == math.ceil(20 / 8)
    assert all(step.penalty is None for step in run.steps)


# ---- MixReplay and MTL

LONG_SIZES = [1000] * 13 + [250, 400]
SUPERNI_SIZES = [1000] * 10 + [975, 338, 160, 142, 126]


@pytest.mark.parametrize(
    ("sizes", "steps"), [(LONG_SIZES, 1707), (SUPERNI_SIZES, 1468), ([1000] * 4, 500)]
)
def test_mtl_epoch(sizes: list[int], steps: int) -> None:
    """docs/protocol.md: batches an epoch over the union of all tasks, each row once."""
    tasks = [rows_task(f"t{i}", n) for i, n in enumerate(sizes)]
    (stage,) = Benchmark.sequence("sizes", "1", tasks).joint().stages
    run = drive(method_of("mtl"), stub_learner((), **{"optim.epochs": 2}), stage)
    assert len(run.steps) == 2 * steps
    rows = Counter(example.id for task in tasks for example in task.train)
    assert counted(run.ids("task")[:steps]) == rows
    assert RunConfig.parse({"method": {"name": "mtl"}}).method.joint


def test_mtl_does_not_depend_on_the_order_of_tasks() -> None:
    """So all orders of a benchmark have the same upper bound; the seed does shuffle."""
    tasks = [rows_task("b", 9), rows_task("c", 5), rows_task("a", 7)]
    runs = []
    for order, seed in ((tasks, 0), (tasks[::-1], 0), (tasks, 1)):
        joint = Benchmark.sequence("orders", "1", order).joint()
        assert [task.name for task in joint.tasks] == [task.name for task in order]  # as scored
        learner = stub_learner((), **SMALL, seed=seed)
        runs.append(drive(method_of("mtl"), learner, joint.stages[0]).actions)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_mix_replay_epoch_is_data_and_memory_once() -> None:
    run = driven(method_of("mix_replay"))
    examples = (*rows_task("new", 16).train, *run.learner.memory.examples)
    assert len(examples) == 16 + 17
    assert run.learner.planned_steps == len(run.of_kind("task")) == 2 * math.ceil(33 / 4)
    expected = Counter(example.id for example in examples)
    assert counted(run.ids("task")[:9]) == counted(run.ids("task")[9:]) == expected
