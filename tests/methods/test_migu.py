"""MIGU: which rows are updated, against sums taken from the modules themselves, and what the masks
leave alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers import begin, learn, start, theta, toy, update
from torch import Tensor

from forever.config.methods.ours import MiguConfig
from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.methods.migu import largest
from forever.models import lora
from forever.training.learner import Learner
from forever.training.step import perform
from forever.training.steps import Step


def second_task(config: RunConfig, micro: int | None = None, **changes: Any) -> tuple[Any, ...]:
    """A learner, its method and its steps at the start of the second task; half is masked."""
    fields = {"name": "migu", "masked": 0.5} | changes.pop("fields", {})
    learner, method = begin(config, fields, micro=micro, **changes)
    learn(learner, method, toy(config)[0])
    return learner, method, start(learner, method, toy(config)[1])


def kept_rows(learner: Learner, method: Any) -> dict[str, Tensor]:
    """Which rows the last update kept, by parameter; every entry of a row has the same mask."""
    masks = learner.parameters.split(method.kept[method.row])
    assert all(torch.equal(mask, mask[..., :1].expand_as(mask)) for mask in masks.values())
    return {name: mask[0, :, 0].bool() for name, mask in masks.items()}


@contextmanager
def watched(learner: Learner) -> Iterator[dict[str, Tensor]]:
    """Sums of |A x| and of |y| over real tokens, by parameter, from the modules' own tensors."""
    sums: dict[str, Tensor] = {}

    def watch(name: str, bank: Any, x: Tensor, y: Tensor) -> None:
        for side, values in (("A", x.double() @ bank.A[0].double().T), ("B", y.double())):
            total = (values.detach().abs() * bank.counts[..., None]).sum((0, 1))
            sums[f"{name}.{side}"] = sums.get(f"{name}.{side}", 0.0) + total

    handles = [
        bank.register_forward_hook(lambda bank, args, y, name=name: watch(name, bank, args[0], y))
        for name, bank in lora.banks(learner.backbone.model)
    ]
    yield sums
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize(
    ("masked", "rows", "kept"),
    [
        (0.7, 8, 3), (0.7, 2048, 615), (0.7, 1024, 308), (0.4, 8, 5), (0.4, 2048, 1229),
        (0.4, 1024, 615), (0.0, 8, 8), (1.0, 8, 0), (0.29, 100, 71), (0.95, 100, 5),
    ],
)  # fmt: skip
def test_the_largest_rows_are_kept(masked: float, rows: int, kept: int) -> None:
    values = torch.rand(rows, generator=torch.Generator().manual_seed(0))
    mask = largest(values, masked)
    assert mask.sort(descending=True).values.tolist() == [1] * kept + [0] * (rows - kept)
    if 0 < kept < rows:
        assert values[mask.bool()].min() > values[~mask.bool()].max()


def test_of_equal_rows_the_first_is_kept() -> None:
    assert largest(torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0]), 0.4).tolist() == [1, 1, 0, 1, 0]
    assert largest(torch.zeros(5), 0.4).tolist() == [1, 1, 1, 0, 0]


def test_fraction_is_that_of_the_paper() -> None:
    fractions = {None: (0.4, 0.7), 0.95: (0.95, 0.95), 0.0: (0.0, 0.0)}
    for masked, expected in fractions.items():
        found = [MiguConfig(masked=masked, replay=replay).fraction for replay in (True, False)]
        assert found == [*expected]


def test_with_everything_masked_later_tasks_change_nothing(small_config: RunConfig) -> None:
    learner, method, _ = second_task(small_config, fields={"masked": 1.0})
    before = theta(learner)
    records = learn(learner, method, *toy(small_config)[1:])
    assert torch.equal(theta(learner), before)
    assert {record.update_norm for record in records} == {0.0}
    assert all(record.loss > 0 for record in records)


@pytest.mark.parametrize("replay", [True, False])
def test_masked_rows_have_no_gradient_and_kept_ones_all_of_it(
    small_config: RunConfig, replay: bool
) -> None:
    gradients, kept = [], {}
    for masked in (0.0, 0.5):
        fields = {"masked": masked, "replay": replay}
        learner, method, steps = second_task(small_config, fields=fields, optim__clip=1e9)
        update(learner, method, steps)
        gradients.append(learner.parameters.split(learner.parameters.grad.clone()))
        kept = kept_rows(learner, method)
    for name, rows in kept.items():
        whole, masked = gradients[0][name][0], gradients[1][name][0]
        assert rows.sum() == len(rows) - len(rows) // 2
        assert whole[~rows].any()
        assert not masked[~rows].any()
        assert torch.equal(masked[rows], whole[rows])


def test_masks_come_before_clipping(small_config: RunConfig) -> None:
    learner, method, steps = second_task(small_config, optim__clip=1e-3)
    update(learner, method, steps)
    assert learner.parameters.grad.norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_momentum_moves_masked_rows(small_config: RunConfig) -> None:
    learner, method, steps = second_task(small_config, optim__batch_size=2)
    moved = 0
    for step in steps:
        before = learner.parameters.split(theta(learner))
        perform(learner, method, step)
        after = learner.parameters.split(theta(learner))
        for name, rows in kept_rows(learner, method).items():
            assert not torch.equal(after[name][0][rows], before[name][0][rows])
            moved += not torch.equal(after[name][0][~rows], before[name][0][~rows])
    assert moved


@pytest.mark.parametrize("micro", [None, 1, 3])
def test_rows_are_chosen_by_the_modules_own_outputs(
    small_config: RunConfig, micro: int | None
) -> None:
    """|A x| and |W x + s B A x| over real tokens; all parts of a batch together, each update its
    own."""
    learner, method, steps = second_task(small_config, micro)
    action = next(steps)
    assert isinstance(action, Step)
    for count in (4, 1):  # a later sum is smaller than an earlier one
        with watched(learner) as sums:
            perform(learner, method, Step(Batch(action.batch.examples[:count])))
        kept = kept_rows(learner, method)
        assert sums.keys() == kept.keys()
        for name, total in sums.items():
            # No near tie that rounding could turn.
            assert total[kept[name]].min() > total[~kept[name]].max() * (1 + 1e-5)
