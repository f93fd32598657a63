"""A method's actions, and the records that it receives for them."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from forever.data.batching import Batch
from forever.data.encoding import Encoded

Kind = Literal["task", "replay", "consolidation"]


@dataclass(frozen=True)
class Penalty:
    """beta * sum_j w_j (Theta_j - anchor_j)^2, which is added to a step's loss."""

    beta: float
    anchor: Tensor  # [N]
    weights: Tensor | None = None  # [N]; None is all ones


@dataclass(frozen=True)
class Step:
    """One optimiser update on a batch.

    Only updates of kind `task` count as steps of the task; the others train on memory.
    """

    batch: Batch
    kind: Kind = "task"
    penalty: Penalty | None = None
    pull: float = 0.0  # the weight of what the method's `loss` adds for replayed examples
    lr: float | None = None  # the learning rate; None is the schedule's


@dataclass(frozen=True)
class Probe:
    """The loss of a batch without an update, dropout off."""

    batch: Batch
    anchor: Tensor | None = None  # Theta*, [N]: say also how far the model has gone from there


@dataclass(frozen=True)
class Reading:
    """A number computed from the weights on which a decision hangs, a scalar tensor.

    The record says what it was: on every rank the leader's value, and in a resumed run the value of
    back then. It must be one of the method's `tensors`: if a run was killed right before it, those
    are put back after it was yielded.
    """

    value: Tensor


Action = Step | Probe | Reading


@dataclass(frozen=True)
class StepRecord:
    """What happened, as plain numbers, so that a journal can be replayed exactly."""

    loss: float = 0.0  # the mean cross-entropy of the supervised tokens, in nats
    penalty: float = 0.0  # all that was added to the cross-entropy, before the update
    update_norm: float = 0.0  # Delta = ||Theta_t - Theta_{t-1}||_2 as applied; 0 for a probe
    tokens: int = 0  # in the batch, prompts included
    lr: float = 0.0  # of the update; 0 for a probe
    value: float = 0.0  # of a reading
    seconds: float = 0.0  # that it took, where a budget of seconds is to be kept
    skipped: bool = False  # since a number was not finite: nothing changed, and loss is not known
    # Of a probe with an anchor: ||Theta - Theta*||_2, and the mean over the answers' positions of
    # KL(p* || p), p* from the model at Theta*.
    distance: float = 0.0
    kl: float = 0.0


Steps = Generator[Action, StepRecord, None]


def drive(
    steps: Steps, perform: Callable[[Action], StepRecord]
) -> Iterator[tuple[Action, StepRecord]]:
    """Answer every action of a method's generator with the record that `perform` gives.

    Each action is yielded with its record after the method has reacted to it.
    """
    action = next(steps, None)
    while action is not None:
        performed = action
        record = perform(action)
        try:
            action = steps.send(record)
        except StopIteration:
            action = None
        yield performed, record


@dataclass(frozen=True)
class Forward:
    """One micro-batch's pass through the model.

    A term of the loss that does not depend on the examples must be multiplied by `share`, since
    every micro-batch adds it again.
    """

    cross_entropy: Tensor  # its part of the batch mean; all parts add up to that mean
    share: float  # the fraction of the batch's groups that it holds
    groups: Sequence[tuple[Encoded, ...]]  # a group holds what one example became
    logits: Tensor  # [n, V] at the n supervised positions of the examples, in order
