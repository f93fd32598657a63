"""One update, which everything that trains goes through, and one look at a loss. B examples, T
tokens, V vocabulary."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from forever.data.encoding import Encoded
from forever.methods.base import Method
from forever.models.parameters import FlatParameters
from forever.seeding import derive
from forever.training.forward import answer_logits, cross_entropy
from forever.training.learner import Learner
from forever.training.optim import apply_update, learning_rate
from forever.training.steps import Action, Forward, Penalty, Probe, Reading, Step, StepRecord


def perform(learner: Learner, method: Method[Any], action: Action) -> StepRecord:
    """Do what a method asked for."""
    if isinstance(action, Step):
        return optimizer_step(learner, method, action)
    if isinstance(action, Reading):
        return StepRecord(value=learner.world.from_leader(action.value.double()).item())
    return probe(learner, action)


def optimizer_step(learner: Learner, method: Method[Any], step: Step) -> StepRecord:
    """One update. Everything that trains goes through here.

    The loss is the sum over the supervised tokens of the global batch divided by their number, so
    ranks and micro-batches add up to the same gradient. The gradient that was applied, summed and
    clipped, can be read until the next update begins.
    """
    config, parameters, world = learner.config, learner.parameters, learner.world
    groups = method.encode(learner, step)
    rows = [row for group in groups for row in group]
    supervised = sum(len(row.answer) for row in rows)
    assert learner.task is not None
    assert learner.optimizer is not None
    world.seed(derive(config.seed, "dropout", learner.task.name, learner.updates, world.rank))
    learner.backbone.model.train()
    parameters.grad.zero_()
    # Of the cross-entropy, and of what was added to it.
    sums = torch.zeros(2, dtype=torch.float64, device=world.device)
    for micro in _micro_batches(world.share(groups), learner.micro_batch):
        logits, targets = answer_logits(learner, [row for group in micro for row in group])
        ce = F.cross_entropy(logits, targets, reduction="sum") / supervised
        total = method.loss(learner, Forward(ce, len(micro) / len(groups), micro, logits))
        total.backward()
        sums += torch.stack([ce, total - ce]).detach()
    world.sum_(parameters.grad)
    method.on_gradients(learner)
    penalty = add_penalty(parameters, step.penalty)
    lr = learning_rate(config.optim, learner.step, learner.planned_steps)
    update_norm = apply_update(parameters, learner.optimizer, lr, config.optim.clip)
    # One wait for the device an update: three numbers, the same on every rank because decisions
    # hang on them.
    loss, added = world.sum_(sums)
    numbers = torch.stack([loss, added + penalty, update_norm])
    loss_, penalty_, norm_ = world.from_leader(numbers).tolist()
    if not all(map(math.isfinite, (loss_, penalty_, norm_))):
        # A clock that reads NaN never replays, and the run would end with a score as if all were
        # well.
        where = f"task {learner.task.name}, update {learner.updates + 1}"
        raise FloatingPointError(
            f"{where}: loss {loss_}, update norm {norm_}; the run diverged, lower optim.lr"
        )
    tokens = sum(len(row.prompt) + len(row.answer) for row in rows)
    return StepRecord(loss_, penalty_, norm_, tokens, lr)


@torch.no_grad()
def probe(learner: Learner, action: Probe) -> StepRecord:
    """The loss of a batch with dropout off; nothing changes."""
    world = learner.world
    rows = [learner.encoder.encode(example) for example in action.batch.examples]
    supervised = sum(len(row.answer) for row in rows)
    learner.backbone.model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=world.device)
    for micro in _micro_batches([(row,) for row in world.share(rows)], learner.micro_batch):
        loss += cross_entropy(learner, [row for (row,) in micro]) / supervised
    return StepRecord(
        loss=world.from_leader(world.sum_(loss)).item(),
        tokens=sum(len(r.prompt) + len(r.answer) for r in rows),
    )


def add_penalty(parameters: FlatParameters, penalty: Penalty | None) -> Tensor:
    """Add the gradient 2 beta w (Theta - Theta*) of the penalty; returns its value, an fp64
    scalar."""
    if penalty is None:
        return torch.zeros((), dtype=torch.float64, device=parameters.flat.device)
    drift = parameters.flat.detach() - penalty.anchor
    weighted = drift if penalty.weights is None else penalty.weights * drift
    parameters.grad.add_(weighted, alpha=2 * penalty.beta)
    return penalty.beta * (weighted * drift).sum(dtype=torch.float64)


def _micro_batches(
    groups: list[tuple[Encoded, ...]], size: int | None
) -> Iterator[list[tuple[Encoded, ...]]]:
    """Micro-batches of about `size` rows; the rows of a group stay together."""
    width = max((len(group) for group in groups), default=1)
    count = max(size // width, 1) if size else max(len(groups), 1)
    return (groups[i : i + count] for i in range(0, len(groups), count))
