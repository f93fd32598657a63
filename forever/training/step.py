"""One update, which everything that trains goes through, and one probe of a loss.

B examples, T tokens, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from forever.data.encoding import Encoded
from forever.models.device import fitting
from forever.models.parameters import FlatParameters
from forever.seeding import derive
from forever.text import complain
from forever.training.forward import answer_logits
from forever.training.learner import Learner
from forever.training.method import Method
from forever.training.optim import apply_update, clip_gradient, learning_rate
from forever.training.steps import Action, Forward, Penalty, Probe, Reading, Step, StepRecord


def perform(learner: Learner, method: Method[Any], action: Action) -> StepRecord:
    """Do what a method wants: an update, a probe of a loss, or one number for all ranks.

    Where decisions depend on the time that it took, the record has the leader's.
    """
    began = perf_counter()
    record = _do(learner, method, action)
    if learner.config.budget.seconds is None:
        return record
    took_s = torch.tensor(perf_counter() - began, dtype=torch.float64, device=learner.world.device)
    return replace(record, seconds=learner.world.from_leader(took_s).item())


def _do(learner: Learner, method: Method[Any], action: Action) -> StepRecord:
    if isinstance(action, Step):
        return optimizer_step(learner, method, action)
    if isinstance(action, Reading):
        value = learner.world.from_leader(action.value.double()).item()
        if not math.isfinite(value):
            raise learner.diverged(f"a reading of the weights is {value}")
        return StepRecord(value=value)
    return probe(learner, action)


def optimizer_step(learner: Learner, method: Method[Any], step: Step) -> StepRecord:
    """One update. Everything that trains goes through here.

    The loss is the sum over the supervised tokens of the global batch divided by their number, so
    ranks and micro-batches add up to the same gradient. The gradient that was applied, summed and
    clipped, can be read until the next update begins.

    Raises:
        FloatingPointError: a loss, gradient or update is not finite, and none may be skipped.
    """
    config, parameters, world = learner.config, learner.parameters, learner.world
    assert learner.optimizer is not None

    # One group an example of the batch: what the method makes of it, usually the encoded example
    # itself, sometimes several views of it. A group is never divided between ranks.
    groups = method.encode(learner, step)
    work = partial(_passes, learner, method, groups)
    count = len(_flat(world.share(groups)))
    sums, learner.micro_batch = fitting(work, count, learner.micro_batch, "examples")

    # From here on every rank holds the same gradient and does the same update.
    world.sum_(parameters.grad)
    method.on_gradients(learner)
    penalty = add_penalty(parameters, step.penalty)
    gradient_norm = clip_gradient(parameters, config.optim.clip)

    # The numbers are the leader's, since decisions depend on them: a clock that reads NaN, for one,
    # would never replay. Reading them waits for the device, so it is done once, at the end, unless
    # the update may have to be left out.
    cross_entropies, added = world.sum_(sums)
    numbers = [cross_entropies, added + penalty, gradient_norm]
    tokens = _tokens(_flat(groups))
    if config.optim.nonfinite_skips:
        problem = _problem(*world.from_leader(torch.stack(numbers)).tolist())
        if problem:
            return _skipped(learner, problem, tokens)
    lr = step.lr
    if lr is None:
        lr = learning_rate(config.optim, learner.step, learner.planned_steps)
    numbers.append(apply_update(parameters, learner.optimizer, lr))
    loss, penalties, size, update_norm = world.from_leader(torch.stack(numbers)).tolist()
    problem = _problem(loss, penalties, size, update_norm)
    if problem:  # the weights are lost
        raise learner.diverged(problem)
    return StepRecord(loss, penalties, update_norm, tokens, lr)


def _problem(loss: float, penalty: float, size: float, update_norm: float = 0.0) -> str | None:
    """Say which numbers of an update are not finite, those of the pass before what it did."""
    if not math.isfinite(loss + penalty + size):
        return f"loss {loss}, penalty {penalty}, norm of the gradient {size}"
    return None if math.isfinite(update_norm) else f"update norm {update_norm}"


def _passes(
    learner: Learner, method: Method[Any], groups: list[tuple[Encoded, ...]], size: int
) -> Tensor:
    """Add this rank's part to the gradient, at most `size` examples at once.

    Returns:
        Its cross-entropy and the terms that were added to it, [2].
    """
    world = learner.world
    assert learner.task is not None
    # Dropout depends on seed, task, update and rank alone, so a resumed run draws the same masks.
    stream = "dropout", learner.task.name, learner.updates, world.rank
    world.seed(derive(learner.config.seed, *stream))
    if not learner.backbone.model.training:  # it goes through all modules
        learner.backbone.model.train()
    learner.parameters.grad.zero_()
    method.begin_passes(learner)

    supervised = sum(len(encoded.learned) for encoded in _flat(groups))
    sums = torch.zeros(2, dtype=torch.float64, device=world.device)
    for micro in _micro_batches(world.share(groups), size):
        views = [number for group in micro for number in range(len(group))]
        logits, targets = answer_logits(learner, _flat(micro), views)
        ce = F.cross_entropy(logits, targets, reduction="sum") / supervised
        # What the method adds without regard to the examples must count once an update.
        share = len(micro) / len(groups)
        total = method.loss(learner, Forward(ce, share, micro, logits))
        total.backward()
        sums += torch.stack([ce, total - ce]).detach()
    return sums


def _skipped(learner: Learner, problem: str, tokens: int) -> StepRecord:
    """Leave out an update that is not finite, if the task may have one more of those."""
    learner.parameters.grad.zero_()  # methods read what was applied
    most = learner.config.optim.nonfinite_skips
    if learner.skipped >= most:
        raise learner.diverged(problem)
    if learner.world.leads:
        count = f"skipped, {learner.skipped + 1} of at most {most} in the task"
        complain(f"{learner.place}: {problem}; {count}")
    return StepRecord(tokens=tokens, skipped=True)


@torch.no_grad()
def probe(learner: Learner, action: Probe) -> StepRecord:
    """The loss of a batch with dropout off, and how far the model has gone; nothing changes."""
    world, parameters, anchor = learner.world, learner.parameters, action.anchor
    groups = [(learner.encoder.encode(example),) for example in action.batch.examples]
    supervised = sum(len(example.learned) for example in _flat(groups))
    learner.backbone.model.eval()

    def passes(size: int) -> Tensor:
        sums = torch.zeros(2, dtype=torch.float64, device=world.device)
        for micro in _micro_batches(world.share(groups), size):
            logits, targets = answer_logits(learner, _flat(micro))
            sums[0] += F.cross_entropy(logits, targets, reduction="sum") / supervised
            if anchor is not None:
                with parameters.at(anchor):
                    known, _ = answer_logits(learner, _flat(micro))
                log_p, log_q = logits.log_softmax(-1), known.log_softmax(-1)
                sums[1] += (log_q.exp() * (log_q - log_p)).sum() / supervised
        return sums

    count = len(world.share(groups))
    sums, learner.micro_batch = fitting(passes, count, learner.micro_batch, "examples")
    loss, kl = world.from_leader(world.sum_(sums)).tolist()
    if not math.isfinite(loss + kl):
        raise learner.diverged(f"a probe has loss {loss} and KL {kl}")
    distance = 0.0 if anchor is None else world.from_leader(parameters.distance(anchor)).item()
    tokens = _tokens(_flat(groups))
    return StepRecord(loss=loss, tokens=tokens, distance=distance, kl=kl)


def check_carried(learner: Learner, method: Method[Any]) -> None:
    """Raise FloatingPointError if what a method carries to the next task, such as the Fisher
    information, is not finite.

    What it has not declared is a mistake in its code: no checkpoint with it could be resumed.
    """
    shapes = method.carried(learner, learner.stage, True)
    for name, tensor in method.tensors.items():
        assert tensor.shape == shapes.get(name), f"{name} is not declared: see Method.carried"
        if not tensor.isfinite().all():
            raise learner.diverged(
                f"{method.config.name} would carry {name!r}, which is not finite"
            )


def add_penalty(parameters: FlatParameters, penalty: Penalty | None) -> Tensor:
    """Add the gradient 2 beta w (Theta - Theta*) of the penalty and return its value, in fp64."""
    if penalty is None:
        return torch.zeros((), dtype=torch.float64, device=parameters.flat.device)
    drift = parameters.flat.detach() - penalty.anchor
    weighted = drift if penalty.weights is None else penalty.weights * drift
    parameters.grad.add_(weighted, alpha=2 * penalty.beta)
    return penalty.beta * (weighted * drift).sum(dtype=torch.float64)


def _micro_batches(
    groups: list[tuple[Encoded, ...]], size: int
) -> Iterator[list[tuple[Encoded, ...]]]:
    """Micro-batches of about `size` encoded examples; a group stays together."""
    width = max((len(group) for group in groups), default=1)
    count = max(size // width, 1)
    return (groups[i : i + count] for i in range(0, len(groups), count))


def _flat(groups: Sequence[tuple[Encoded, ...]]) -> list[Encoded]:
    return [encoded for group in groups for encoded in group]


def _tokens(examples: Sequence[Encoded]) -> int:
    return sum(len(example.prompt) + len(example.answer) for example in examples)
