"""What a method is: a generator of steps and four seams, all empty by default.

A method that overrides nothing is sequential fine-tuning. A generator may
depend on the configuration, the data, the records it is sent and seeded streams, and on nothing else: then a run can
be resumed by sending it the records of the past, and a plan can be made by sending it invented ones.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from torch import Tensor

    from forever.data.batching import Batch
    from forever.data.tasks import Task
    from forever.learner import Learner

Kind = Literal["task", "replay", "consolidation"]


class MethodConfig(BaseModel):
    """Hyper-parameters of a method. Subclasses add a literal `name`, which tells the union apart."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Penalty:
    """beta * sum_j w_j (Theta_j - anchor_j)^2, added to a step's loss. `anchor`, `weights`: [N]; None is all ones."""

    beta: float
    anchor: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One optimiser update on a batch. Only updates of kind `task` count as steps of the task."""

    batch: Batch
    kind: Kind = "task"
    penalty: Penalty | None = None


@dataclass(frozen=True)
class Probe:
    """The loss of a batch without an update, dropout off."""

    batch: Batch


@dataclass(frozen=True)
class StepRecord:
    """What happened: plain numbers, so that a journal can be replayed exactly.

    Attributes:
        loss: mean cross-entropy of the supervised tokens, in nats.
        penalty: value of the penalty term before the update.
        update_norm: Delta = ||Theta_t - Theta_{t-1}||_2 of the applied update; 0 for a probe.
        tokens: tokens of the batch, prompts included.
        lr: learning rate of the update; 0 for a probe.
    """

    loss: float
    penalty: float = 0.0
    update_norm: float = 0.0
    tokens: int = 0
    lr: float = 0.0


Steps = Generator[Step | Probe, StepRecord, None]


C = TypeVar("C", bound=MethodConfig)


class Method(Generic[C]):
    """Base of all methods.

    Attributes:
        joint: train on the union of all tasks instead of one after another.
        tensors: everything that must survive a restart and is not in the records: by name, any shape.
    """

    joint = False

    def __init__(self, config: C) -> None:
        self.config = config
        self.tensors: dict[str, Tensor] = {}

    def begin_task(self, learner: Learner, task: Task) -> None:
        """Before the first step of a task: take snapshots, add adapters."""

    def steps(self, learner: Learner, task: Task) -> Steps:
        """The algorithm: what to do next, given what happened. Default: the task's batches."""
        for batch in learner.batches(task.train):
            yield Step(batch)

    def loss(self, learner: Learner, cross_entropy: Tensor, share: float) -> Tensor:
        """What is minimised. `cross_entropy` is this micro-batch's part of the batch mean; a term that does not
        depend on the rows must be multiplied by `share`, which sums to one over micro-batches and ranks."""
        return cross_entropy

    def on_gradients(self, learner: Learner) -> None:
        """After the gradients are summed over all ranks, before clipping; may edit `learner.parameters.grad`."""

    def end_task(self, learner: Learner, task: Task) -> None:
        """After the last step of a task, a pure function of the weights and the data: importance, statistics."""
