"""VBM: its views, its loss against a loop, its events, and where it must equal other methods.

V views, n events, T task updates, J replays of the standard schedule.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    KILLED_CLOSES_NO_FILES,
    Driven,
    drive,
    lines,
    rows_task,
    run_of,
    stub_learner,
    trained_alike,
)
from torch import Tensor

from forever.config.methods.replay import VbmConfig
from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.data.encoding import Encoded
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.methods.base import Method
from forever.methods.registry import build_method
from forever.methods.vbm import Vbm
from forever.training.build import build_learner
from forever.training.forward import answer_logits
from forever.training.learner import Learner
from forever.training.step import _micro_batches, optimizer_step
from forever.training.steps import Forward, Step
from forever.training.world import World

pytestmark = KILLED_CLOSES_NO_FILES

OLD = [rows_task("old", 40), rows_task("older", 30)]  # at fraction 0.25: 10 + 7 rows
SMALL: dict[str, Any] = {"memory.fraction": 0.25, "optim.batch_size": 4, "optim.epochs": 2}
PLAIN = {"views": 1, "consistency": 0.0, "drop": 0.0}


def vbm(**fields: Any) -> Vbm:
    return Vbm(VbmConfig(**fields))


def method_of(name: str, **fields: Any) -> Method:
    return build_method(
        RunConfig.parse({"data": {"benchmark": "toy"}, "method": {"name": name, **fields}}).method
    )


def driven(method: Method, rows: int = 16, **changes: Any) -> Driven:
    return drive(method, stub_learner(OLD, **{**SMALL, **changes}), rows_task("new", rows))


# ---- when


def test_events_of_a_long_task() -> None:
    """T = 1250: FOREVER's 13 passes over memory become 3 recalls of 4 views, the last of them when
    the task is over."""
    learner = stub_learner([rows_task("old", 1000)])
    run = drive(vbm(), learner, rows_task("new", 1000))
    assert run.learner.planned_steps == 1250
    assert run.event_steps == [417, 833]
    assert [(e.kind, e.step, e.rows) for e in learner.events] == [
        ("replay", 417, 20),
        ("replay", 833, 20),
        ("consolidation", 1250, 20),
    ]
    # Two rows of four views fill a batch of eight.
    assert [e.updates for e in learner.events] == [10] * 3
    assert all(step.penalty is None for step in run.steps)


@pytest.mark.parametrize("views", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [126, 400, 1000])
def test_every_row_is_presented_as_often_as_by_fixed_interval_replay(rows: int, views: int) -> None:
    """Up to the rounding of n; and the recalls of a row are T / n updates apart."""
    learner = stub_learner([rows_task("old", 500)])
    run = drive(vbm(views=views), learner, rows_task("new", rows))
    fixed = drive(
        method_of("fixed_interval"), stub_learner([rows_task("old", 500)]), rows_task("new", rows)
    )
    passes = len([1 for batch in fixed.ids("replay", "consolidation") for _ in batch]) // 10
    seen = Counter(id_ for batch in run.ids("replay", "consolidation") for id_ in batch)
    (events,) = set(seen.values())
    assert len(seen) == 10
    assert events == max(1, math.floor(passes / views + 0.5))
    assert abs(events * views - passes) <= views / 2 or events == 1
    T = run.learner.planned_steps
    assert [e.step for e in learner.events] == [round(j * T / events) for j in range(1, events + 1)]


@pytest.mark.parametrize("updates", [1, 2, 4, 7])
def test_no_more_events_than_updates(updates: int) -> None:
    learner = stub_learner([rows_task("old", 40)], **{**SMALL, "optim.epochs": 1})
    run = drive(vbm(views=1, warmup_steps=1), learner, rows_task("new", 4 * updates))
    assert run.event_steps == list(range(1, updates))
    assert len(learner.events) == updates


def test_recalls_are_whole_passes_in_batches_of_fewer_rows() -> None:
    run = driven(vbm(views=2, warmup_steps=2))  # T = 8: J = #{1, 2, 4}, so 7 passes, 4 recalls
    assert run.event_steps == [2, 4, 6]
    kept = Counter(e.id for e in run.learner.memory.examples)
    batches = run.ids("replay", "consolidation")
    assert {len(batch) for batch in batches} == {1, 2}
    assert len(batches) == 4 * 9
    for i in range(0, len(batches), 9):
        assert Counter(id_ for batch in batches[i : i + 9] for id_ in batch) == kept
    assert run.of_kind("task") == driven(method_of("finetune")).of_kind("task")


# ---- views


@pytest.fixture(scope="module")
def learner(small_config: RunConfig, benchmark_of_three: Benchmark) -> Learner:
    """With an adapter that does something, so that views differ in what the model says."""
    found = build_learner(small_config, World(), method=vbm())
    found.parameters.flat.data += 0.1 * torch.randn(
        found.parameters.flat.shape, generator=torch.Generator().manual_seed(0)
    )
    found.begin(1, benchmark_of_three.tasks[1])
    return found


def step_of(learner: Learner, count: int = 3, kind: Any = "replay") -> Step:
    assert learner.task is not None
    return Step(Batch(learner.task.train[:count]), kind)


def test_views_of_a_row(learner: Learner) -> None:
    """The first is the row, in the others tokens of the input are missing, and all answers are
    whole."""
    method, step = vbm(views=4, drop=0.3), step_of(learner)
    groups = method.encode(learner, step)
    assert [len(group) for group in groups] == [4, 4, 4]
    for example, (first, *others) in zip(step.batch.examples, groups, strict=True):
        assert first == learner.encoder.encode(example)
        assert {view.answer for view in others} == {first.answer}
        assert all(len(view.prompt) <= len(first.prompt) for view in others)
        assert len({view.prompt for view in others}) > 1
    assert method.encode(learner, step) == groups  # on another rank, and in a resumed run
    learner.updates = 1
    assert method.encode(learner, step) != groups  # each update draws its own
    learner.updates = 0
    assert vbm(views=4, drop=0.0).encode(learner, step) == [(group[0],) * 4 for group in groups]


def test_views_of_a_row_stay_on_one_rank(learner: Learner) -> None:
    method, step = vbm(views=2), step_of(learner, 5)
    shares = [World(rank, 2).share(method.encode(learner, step)) for rank in (0, 1)]
    whole = method.encode(learner, step)
    assert shares == [whole[0::2], whole[1::2]]
    assert [len(list(micro)) for micro in _micro_batches(whole, 5)] == [2, 2, 1]  # never half a row


# ---- loss


def loss_by_hand(logits: Tensor, groups: Sequence[Sequence[Encoded]]) -> Tensor:
    """mean over rows and views v >= 2 of mean over positions of sum_w p_1 log (p_1 / p_v), in
    double precision."""
    place, terms = 0, []
    for group in groups:
        parts = []
        for row in group:
            parts.append(logits[place : place + len(row.answer)].double())
            place += len(row.answer)
        for other in parts[1:]:
            positions = []
            for a, b in zip(parts[0], other, strict=True):
                p, q = torch.softmax(a, 0), torch.softmax(b, 0)
                positions.append(
                    sum(p[w] * (torch.log(p[w]) - torch.log(q[w])) for w in range(len(p)))
                )
            terms.append(sum(positions) / len(positions))
    return sum(terms, torch.zeros((), dtype=torch.float64)) / len(terms)


def random_forward(views: int = 3, lengths: Sequence[int] = (2, 4, 1), seed: int = 0) -> Forward:
    stream = torch.Generator().manual_seed(seed)
    groups = [tuple(Encoded((1,), tuple(range(n)), False) for _ in range(views)) for n in lengths]
    logits = torch.randn(views * sum(lengths), 11, generator=stream) * 2
    return Forward(torch.tensor(0.5), 1.0, groups, logits)


@pytest.mark.parametrize("alpha", [1.0, 0.25])
def test_consistency_equals_a_loop(learner: Learner, alpha: float) -> None:
    forward = random_forward()
    found = vbm(consistency=alpha).loss(learner, forward)
    expected = 0.5 + alpha * loss_by_hand(forward.logits, forward.groups)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert found > 0.51


def test_equal_views_are_consistent(learner: Learner) -> None:
    forward = random_forward(views=1)
    lengths = [len(group[0].answer) for group in forward.groups]
    parts = [part for part in forward.logits.split(lengths) for _ in range(4)]
    equal = Forward(
        forward.cross_entropy, 1.0, [group * 4 for group in forward.groups], torch.cat(parts)
    )
    assert abs(vbm().loss(learner, equal).item() - 0.5) < 1e-6


def test_the_first_view_is_a_target_and_not_trained_by_consistency(learner: Learner) -> None:
    forward = random_forward()
    logits = forward.logits.clone().requires_grad_()
    vbm().loss(learner, dataclasses.replace(forward, logits=logits)).backward()
    assert logits.grad is not None
    place = 0
    for group in forward.groups:
        for number, row in enumerate(group):
            gradient = logits.grad[place : place + len(row.answer)]
            assert gradient.any().item() is (number > 0)
            place += len(row.answer)


@pytest.mark.parametrize("fields", [{"views": 1}, {"consistency": 0.0}])
def test_without_consistency_the_loss_is_cross_entropy(
    learner: Learner, fields: dict[str, Any]
) -> None:
    method = vbm(**fields)
    forward = random_forward(views=method.config.views)
    assert method.loss(learner, forward) is forward.cross_entropy


def gradient_of(
    learner: Learner, method: Method, step: Step, micro_batch: int | None
) -> tuple[Tensor, Any]:
    """The gradient of one update, which is taken back."""
    before = learner.parameters.snapshot()
    learner.micro_batch, learner.optimizer = (
        micro_batch,
        torch.optim.SGD([learner.parameters.flat], lr=0.0),
    )
    record = optimizer_step(learner, method, step)
    learner.parameters.load(before)
    learner.micro_batch = None
    return learner.parameters.grad.clone(), record


def test_an_update_trains_on_all_views(learner: Learner) -> None:
    """Cross-entropy is the token mean over all views, the rest of the loss is in the record; alone
    and in parts."""
    method, step = vbm(views=3, drop=0.3), step_of(learner, 5)
    gradient, record = gradient_of(learner, method, step, None)
    groups = method.encode(learner, step)
    learner.backbone.model.eval()  # there is no dropout here
    with torch.no_grad():
        logits, targets = answer_logits(learner, [row for group in groups for row in group])
    assert record.loss == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-5)
    assert record.penalty == pytest.approx(loss_by_hand(logits, groups).item(), rel=1e-4)
    assert record.penalty > 0.01
    assert record.tokens == sum(
        len(row.prompt) + len(row.answer) for group in groups for row in group
    )
    for micro_batch in (1, 3, 7):
        again, parts = gradient_of(learner, method, step, micro_batch)
        torch.testing.assert_close(again, gradient, rtol=1e-3, atol=1e-5)
        assert parts.penalty == pytest.approx(record.penalty, rel=1e-4)
    without, _ = gradient_of(learner, vbm(views=3, drop=0.3, consistency=0.0), step, None)
    assert not torch.allclose(without, gradient, rtol=1e-2)


# ---- equal to other methods


def test_one_plain_view_equals_fixed_interval_replay_bit_for_bit(
    small_config: RunConfig, tmp_path: Path
) -> None:
    """T = 8: S = 8 gives 3 recalls, after 3 and 5 and at the end; FOREVER's clock in updates can be
    told to."""
    changes = {"optim.epochs": 4, "model.dropout": 0.1, "memory.fraction": 0.5}
    run = run_of(
        small_config, {"name": "vbm", **PLAIN, "warmup_steps": 8}, tmp_path / "vbm", **changes
    )
    days: dict[str, Any] = {
        "days": [3, 5],
        "clock": "steps",
        "warmup_steps": 1,
        "regularizer": "none",
    }
    same = run_of(
        small_config, {"name": "forever", **days, "memory_epochs": 1}, tmp_path / "same", **changes
    )
    assert [(e["task"], e["step"]) for e in lines(tmp_path / "vbm" / "events.jsonl")] == [
        (task, step) for task in ("shape", "weight") for step in (3, 5, 8)
    ]
    assert all(torch.equal(t, same.adapter[n]) for n, t in run.adapter.items())
    assert run.result["matrix"] == same.result["matrix"]
    losses = [
        [x["loss"] for x in lines(tmp_path / name / "steps.jsonl")] for name in ("vbm", "same")
    ]
    assert losses[0] == losses[1]
    views = {"name": "vbm", "views": 2, "warmup_steps": 8}
    other = run_of(small_config, views, tmp_path / "views", **changes)
    assert not trained_alike(run, other)


# ---- refused, resume, plan


@pytest.mark.parametrize(("size", "views"), [(8, 3), (8, 16), (2, 4), (9, 2)])
def test_a_batch_that_cannot_hold_whole_rows_is_refused(size: int, views: int) -> None:
    config = {"optim": {"batch_size": size}, "method": {"name": "vbm", "views": views}}
    with pytest.raises(
        InputError,
        match=rf"optim.batch_size={size} .* {views} views; make it a multiple of method.views",
    ):
        RunConfig.parse(config)


def test_a_consolidation_of_the_whole_budget_is_refused() -> None:
    """The recalls present a row V n times already; 13 passes of 4 views at the end would be 52
    more."""
    with pytest.raises(InputError, match=r"consolidation_epochs='matched'.*valid integer"):
        RunConfig.parse({"method": {"name": "vbm", "consolidation_epochs": "matched"}})
