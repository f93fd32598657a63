"""MIGU: which rows are updated, against sums taken from the modules themselves, and what the masks
leave alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers import begin, learn, react, start, theta, toy, update
from torch import Tensor

from forever.config.methods.baselines import MiguConfig
from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.evaluation.scoring import evaluate
from forever.methods.migu import largest
from forever.models import lora
from forever.training.forward import answer_logits
from forever.training.learner import Learner
from forever.training.step import perform
from forever.training.steps import Probe, Step

NO_CLIP: dict[str, Any] = {"optim__clip": 1e9}


def second_task(
    config: RunConfig, fields: dict[str, Any], **changes: Any
) -> tuple[Learner, Any, Any]:
    """A learner, its method and its steps at the start of the second task."""
    learner, method = begin(config, {"name": "migu", **fields}, **changes)
    learn(learner, method, toy(config)[0])
    return learner, method, start(learner, method, toy(config)[1])


def kept_rows(learner: Learner, method: Any) -> dict[str, Tensor]:
    """Which rows the last update kept, by parameter; every entry of a row has the same mask."""
    found = {}
    for name, mask in learner.parameters.split(method.mask).items():
        rows = mask[0]
        assert torch.equal(rows, rows[:, :1].expand_as(rows))
        found[name] = rows[:, 0].bool()
    return found


@contextmanager
def watched(learner: Learner) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Sums of |A x| and of |y| over real tokens, by layer, from what goes into and out of the
    modules."""
    sums: dict[str, tuple[Tensor, Tensor]] = {}

    def watch(name: str, bank: Any, x: Tensor, y: Any) -> None:
        low, out = (x.double() @ bank.A[0].double().T)[bank.real], y.double()[bank.real]
        new = low.abs().sum(0).detach(), out.abs().sum(0).detach()
        old = sums.get(name, (0.0, 0.0))
        sums[name] = old[0] + new[0], old[1] + new[1]

    handles = [
        bank.register_forward_hook(lambda bank, args, y, name=name: watch(name, bank, args[0], y))
        for name, bank in lora.banks(learner.backbone.model)
    ]
    yield sums
    for handle in handles:
        handle.remove()


# ---- the choice of rows


@pytest.mark.parametrize(
    ("masked", "rows", "kept"),
    [
        (0.7, 8, 3), (0.7, 2048, 615), (0.7, 1024, 308), (0.4, 8, 5), (0.4, 2048, 1229),
        (0.4, 1024, 615), (0.0, 8, 8), (1.0, 8, 0), (0.29, 100, 71), (0.95, 100, 5),
    ],
)  # fmt: skip
def test_how_many_rows_are_kept(masked: float, rows: int, kept: int) -> None:
    values = torch.rand(rows, generator=torch.Generator().manual_seed(0))
    mask = largest(values, masked)
    assert mask.sum() == kept
    assert {*mask.tolist()} <= {0.0, 1.0}
    if 0 < kept < rows:
        assert values[mask.bool()].min() > values[~mask.bool()].max()


def test_of_equal_rows_the_first_is_kept() -> None:
    assert largest(torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0]), 0.4).tolist() == [1, 1, 0, 1, 0]
    assert largest(torch.zeros(5), 0.4).tolist() == [1, 1, 1, 0, 0]


def test_fraction_is_that_of_the_paper() -> None:
    assert MiguConfig().fraction == 0.4
    assert MiguConfig(replay=False).fraction == 0.7
    assert (
        MiguConfig(masked=0.95).fraction == MiguConfig(masked=0.95, replay=False).fraction == 0.95
    )
    assert MiguConfig(masked=0.0).fraction == 0


# ---- settings in which it is something else


def test_with_everything_masked_later_tasks_change_nothing(small_config: RunConfig) -> None:
    learner, method = begin(small_config, {"name": "migu", "masked": 1.0})
    learn(learner, method, toy(small_config)[0])
    before = theta(learner)
    records = learn(learner, method, *toy(small_config)[1:])
    assert torch.equal(theta(learner), before)
    assert {r.update_norm for r in records} == {0.0}
    assert all(r.loss > 0 for r in records)


# ---- masks


@pytest.mark.parametrize("replay", [True, False])
def test_masked_rows_have_no_gradient_and_kept_ones_all_of_it(
    small_config: RunConfig, replay: bool
) -> None:
    gradients, kept = [], {}
    for masked in (0.5, 0.0):
        learner, method, steps = second_task(
            small_config, {"masked": masked, "replay": replay}, **NO_CLIP
        )
        update(learner, method, steps)
        gradients.append(learner.parameters.split(learner.parameters.grad.clone()))
        if masked:
            kept = kept_rows(learner, method)
    for name, rows in kept.items():
        assert rows.sum() == len(rows) - len(rows) // 2
        assert not gradients[0][name][0][~rows].any()
        assert torch.equal(gradients[0][name][0][rows], gradients[1][name][0][rows])
        assert gradients[1][name][0][~rows].any()


def test_momentum_moves_masked_rows(small_config: RunConfig) -> None:
    learner, method, steps = second_task(small_config, {"masked": 0.5}, optim__batch_size=2)
    action, moved = next(steps, None), 0
    while action is not None:
        assert isinstance(action, Step)
        before = learner.parameters.split(theta(learner))
        record = perform(learner, method, action)
        kept = kept_rows(learner, method)
        action = react(learner, steps, action, record)
        after = learner.parameters.split(theta(learner))
        moved += sum(
            not torch.equal(after[n][0][~rows], before[n][0][~rows]) for n, rows in kept.items()
        )
        assert all(
            not torch.equal(after[n][0][rows], before[n][0][rows]) for n, rows in kept.items()
        )
    assert moved


# ---- the sums behind them


@pytest.mark.parametrize("micro", [None, 1, 3])
def test_sums_are_those_of_the_modules_own_inputs_and_outputs(
    small_config: RunConfig, micro: int | None
) -> None:
    """|A x| and |W x + s B A x| over tokens that are no padding, all parts of a batch together."""
    learner, method = begin(small_config, {"name": "migu", "masked": 0.5}, micro=micro)
    learn(learner, method, toy(small_config)[0])
    steps = start(learner, method, toy(small_config)[1])
    with watched(learner) as sums:
        update(learner, method, steps)
    kept = kept_rows(learner, method)
    assert len(sums) == 4
    for name, values in sums.items():
        for side, total in zip("AB", values, strict=True):
            rows = kept[f"{name}.{side}"]
            # No near tie that rounding could turn.
            assert total[rows].min() > total[~rows].max() * (1 + 1e-5)


def test_each_update_has_its_own_sums(small_config: RunConfig) -> None:
    learner, method, steps = second_task(small_config, {"masked": 0.5})
    for rows in (2, 1):
        action = next(steps)
        assert isinstance(action, Step)
        # A later sum is smaller than an earlier one.
        few = Step(Batch(action.batch.examples[:rows]))
        with watched(learner) as sums:
            perform(learner, method, few)
        assert not method.sums.any()
        kept = kept_rows(learner, method)
        for name, (_, out) in sums.items():
            assert torch.equal(largest(out, 0.5).bool(), kept[f"{name}.B"])


def test_padding_is_not_counted(small_config: RunConfig) -> None:
    """Rows of different length in one pass have pads; one by one they have none. The sums agree."""
    learner, method, _ = second_task(small_config, {})
    rows = sorted(
        (learner.encoder.encode(e) for e in toy(small_config)[1].train),
        key=lambda row: len(row.prompt),
    )
    shortest, longest = rows[0], rows[-1]
    assert len(longest.prompt) > len(shortest.prompt) + 3
    learner.backbone.model.train()
    found = []
    for passes in ([[shortest, longest]], [[shortest], [longest]]):
        method.sums.zero_()
        for batch in passes:
            answer_logits(learner, batch)
        found.append(method.sums.clone())
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_only_training_is_counted_and_no_graph_is_kept(small_config: RunConfig) -> None:
    learner, method, steps = second_task(small_config, {"masked": 0.5})
    action = next(steps)
    assert isinstance(action, Step)
    mask = method.mask.clone()
    perform(learner, method, Probe(action.batch))
    evaluate(
        learner.backbone, learner.encoder, learner.world, toy(small_config)[0], 2, learner.gate
    )
    assert not method.sums.any()
    assert torch.equal(method.mask, mask)
    learner.backbone.model.train()
    for _ in range(3):  # parts of a batch: what is kept does not grow with their number
        answer_logits(learner, [learner.encoder.encode(action.batch.examples[0])])
        assert method.sums.any()
        assert method.sums.grad_fn is None
        assert not method.sums.requires_grad
        assert method.sums.shape == (2 * (4 + 32) + 2 * (4 + 16),)
