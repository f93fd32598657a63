"""VBM: its views, its loss against a loop, its events, and where it must equal other methods.

V views, n events, T task updates, J replays of the standard schedule.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import begin, drive, driven, method_of, rows_task, start, stub_learner, toy
from torch import Tensor

from forever.config.run import RunConfig, in_todays_names
from forever.data.batching import Batch
from forever.data.encoding import Encoded
from forever.errors import InputError
from forever.training.forward import answer_logits
from forever.training.learner import Learner
from forever.training.step import _micro_batches, perform
from forever.training.steps import Forward, Step
from forever.world import World

# ---- when


@pytest.mark.parametrize("views", [2, 4])
def test_ebbinghaus_days_in_updates(views: int) -> None:
    """Days 1, 2, 4, 7, 15, 30 of 24 updates, one pass of V views each, however far updates move."""
    learner = stub_learner([rows_task("old", 1000)])
    method = method_of("vbm", views=views)
    run = drive(method, learner, rows_task("new", 1000), lambda t: t**5.0)
    assert run.event_steps == [24, 48, 96, 168, 360, 720]
    assert len(run.of_kind("replay")) == 6 * 20 * views // 8
    assert len(run.of_kind("consolidation")) == 20 * views // 8


@pytest.mark.parametrize(("views", "rows"), [(1, 126), (2, 400), (4, 1000), (8, 1000)])
def test_every_row_is_presented_as_often_as_by_fixed_interval_replay(rows: int, views: int) -> None:
    """Up to the rounding of n; and the recalls of a row are T / n updates apart."""
    recalls = []
    for method in (method_of("fixed_interval"), method_of("vbm", days="equal", views=views)):
        learner = stub_learner([rows_task("old", 500)])
        run = drive(method, learner, rows_task("new", rows))
        seen = Counter(id_ for batch in run.ids("replay", "consolidation") for id_ in batch)
        assert len(seen) == 10
        recalls.append({*seen.values()})
    (passes,), (events,) = recalls
    assert events == max(1, math.floor(passes / views + 0.5))
    steps = [round(j * learner.planned_steps / events) for j in range(1, events + 1)]
    assert [event.step for event in learner.events] == steps


def test_runs_at_equal_distances_keep_the_names_from_when_there_was_no_other_way() -> None:
    before = {"name": "vbm", "days": "equal", "views": 4}
    config = RunConfig.parse({"method": before})
    assert "days" not in config.identity()["method"]
    assert config.fingerprint() == "3929653c9f72"
    del before["days"]  # as a file of that time has it
    assert RunConfig.parse(in_todays_names({"method": before})) == config
    assert RunConfig.parse({"method": {"name": "vbm"}}).identity()["method"]["days"] == "ebbinghaus"


# ---- views


def replaying(config: RunConfig, **fields: Any) -> tuple[Learner, Any, Step]:
    """A learner whose adapter does something, its method, and a replay of five rows."""
    fields = {"name": "vbm", "views": 4, "drop": 0.3} | fields
    learner, method = begin(config, fields, optim__batch_size=8)
    start(learner, method, toy(config)[1])
    noise = torch.randn(learner.parameters.flat.shape, generator=torch.Generator().manual_seed(0))
    learner.parameters.flat.data += 0.1 * noise
    return learner, method, Step(Batch(toy(config)[1].train[:5]), "replay")


def test_views_of_a_row(small_config: RunConfig) -> None:
    """The first is the row; in the others tokens of the input are missing, answers are whole."""
    learner, method, step = replaying(small_config)
    groups = method.encode(learner, step)
    assert method.encode(learner, Step(step.batch)) == [(group[0],) for group in groups]
    for example, (first, *others) in zip(step.batch.examples, groups, strict=True):
        assert first == learner.encoder.encode(example)
        assert len(others) == 3
        assert {view.answer for view in others} == {first.answer}
        assert all(len(view.prompt) <= len(first.prompt) for view in others)
        assert len({view.prompt for view in others}) > 1
    assert method.encode(learner, step) == groups  # on another rank, and in a resumed run
    # A row's views stay on one rank and in one micro-batch.
    shares = [World(rank, 2).share(groups) for rank in (0, 1)]
    assert shares == [groups[0::2], groups[1::2]]
    assert [len(micro) for micro in _micro_batches(groups, 9)] == [2, 2, 1]
    learner.updates = 1
    assert method.encode(learner, step) != groups  # each update draws its own
    plain = method_of("vbm", views=4, drop=0.0).encode(learner, step)
    assert plain == [(group[0],) * 4 for group in groups]


# ---- loss


def consistency_by_hand(logits: Tensor, groups: Sequence[Sequence[Encoded]]) -> float:
    """mean over rows and views v >= 2 of mean over positions of sum_w p_1 log (p_1 / p_v), in
    double precision."""
    place, terms = 0, []
    for group in groups:
        answer = len(group[0].answer)
        views = logits[place : place + len(group) * answer].double().split(answer)
        place += len(group) * answer
        for view in views[1:]:
            total = 0.0
            for a, b in zip(views[0], view, strict=True):
                p, q = torch.softmax(a, 0), torch.softmax(b, 0)
                for w in range(len(p)):
                    total += float(p[w] * torch.log(p[w] / q[w]))
            terms.append(total / answer)
    return sum(terms) / len(terms)


@pytest.fixture
def forward() -> Forward:
    """Three rows with answers of 2, 4 and 1 tokens, in three views."""
    row_of = {count: Encoded((1,), tuple(range(count)), False) for count in (2, 4, 1)}
    logits = torch.randn(3 * 7, 11, generator=torch.Generator().manual_seed(0)) * 2
    groups = [(row,) * 3 for row in row_of.values()]
    return Forward(torch.tensor(0.5), 1.0, groups, logits)


@pytest.mark.parametrize("alpha", [1.0, 0.25])
def test_consistency_equals_a_loop(forward: Forward, alpha: float) -> None:
    expected = alpha * consistency_by_hand(forward.logits, forward.groups)
    method = method_of("vbm", consistency=alpha)
    assert method.loss(None, forward).item() == pytest.approx(0.5 + expected, rel=1e-5)
    share = dataclasses.replace(forward, share=0.5)
    assert method.loss(None, share).item() == pytest.approx(0.5 + expected / 2, rel=1e-5)
    assert expected > 0.01
    equal = dataclasses.replace(forward, logits=forward.logits[:1].expand(21, 11))
    assert method.loss(None, equal).item() == pytest.approx(0.5, abs=1e-6)


def test_an_update_trains_on_all_views(small_config: RunConfig) -> None:
    """Cross-entropy is the token mean over all views, and the rest of the loss is in the record."""
    learner, method, step = replaying(small_config)
    groups = method.encode(learner, step)
    views = [view for group in groups for view in group]
    with torch.no_grad():  # there is no dropout here
        logits, targets = answer_logits(learner, views)
    record = perform(learner, method, step)
    assert record.loss == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-5)
    assert record.penalty == pytest.approx(consistency_by_hand(logits, groups), rel=1e-4)
    assert record.penalty > 0.01
    assert record.tokens == sum(len(view.prompt) + len(view.answer) for view in views)


# ---- equal to another method, and refused


def test_one_plain_view_is_replay_at_fixed_updates(small_config: RunConfig) -> None:
    """T = 8: S = 8 gives 3 recalls, after 3 and 5 and at the end, as FOREVER's clock in updates."""
    vbm = driven(method_of("vbm", days="equal", views=1, day_steps=8))
    plain: dict[str, Any] = {"regularizer": "none", "memory_epochs": 1}
    by_days = driven(method_of("forever", clock="steps", day_steps=1, days=[3, 5], **plain))
    assert [event.step for event in vbm.learner.events] == [3, 5, 8]
    assert vbm.actions == by_days.actions
    learner, method, step = replaying(small_config, views=1)
    rows = [(learner.encoder.encode(example),) for example in step.batch.examples]
    assert method.encode(learner, step) == rows


@pytest.mark.parametrize(("size", "views"), [(8, 3), (2, 4)])
def test_a_batch_that_cannot_hold_whole_examples_is_refused(size: int, views: int) -> None:
    config = {"optim": {"batch_size": size}, "method": {"name": "vbm", "views": views}}
    with pytest.raises(InputError, match=rf"optim.batch_size={size} "):
        RunConfig.parse(config)
