"""What a method asks for and what it is told: its actions, and the records that come back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from forever.data.batching import Batch
from forever.data.encoding import Encoded

Kind = Literal["task", "replay", "consolidation"]


@dataclass(frozen=True)
class Penalty:
    """beta * sum_j w_j (Theta_j - anchor_j)^2, which is added to a step's loss.

    `anchor` and `weights` have shape [N]; weights None is all ones.
    """

    beta: float
    anchor: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One optimiser update on a batch.

    Only updates of kind `task` count as steps of the task; `replay` and `consolidation` train on
    memory.
    """

    batch: Batch
    kind: Kind = "task"
    penalty: Penalty | None = None


@dataclass(frozen=True)
class Probe:
    """The loss of a batch without an update, dropout off."""

    batch: Batch


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
    """What happened, as plain numbers, so that a journal can be replayed exactly.

    Attributes:
        loss: the mean cross-entropy of the supervised tokens, in nats.
        penalty: the value of everything that was added to the cross-entropy, before the update.
        update_norm: Delta = ||Theta_t - Theta_{t-1}||_2 of the applied update; 0 for a probe.
        tokens: the number of tokens in the batch, prompts included.
        lr: the learning rate of the update; 0 for a probe.
        value: the value of a reading.
    """

    loss: float = 0.0
    penalty: float = 0.0
    update_norm: float = 0.0
    tokens: int = 0
    lr: float = 0.0
    value: float = 0.0


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

    Attributes:
        cross_entropy: its part of the batch mean; the parts of all micro-batches and ranks add up
            to that mean.
        share: the fraction of the batch's groups that it holds. A term of the loss that does not
            depend on the examples must be multiplied by it, since every micro-batch adds it again.
        groups: the encoded examples; a group holds what one example became.
        logits: [n, V] at the n supervised positions of the examples, in order.
    """

    cross_entropy: Tensor
    share: float
    groups: Sequence[tuple[Encoded, ...]]
    logits: Tensor
