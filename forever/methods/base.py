"""What a method is: a generator of steps (forever/training/steps.py), and a few seams that are
empty by default.

A method that overrides nothing is sequential fine-tuning. What a generator yields may depend on the
configuration, the
data, the records it is sent and seeded streams, and on nothing else: then a run can be resumed by
sending it the records of the past, and a plan can be made by sending it invented ones. A number
that is computed from the weights and decides what comes next is yielded as a `Reading`, and so
becomes a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from forever.config.methods.base import MethodConfig
from forever.config.run import RunConfig
from forever.data.encoding import Encoded
from forever.data.tasks import Example, Task
from forever.models import adapter
from forever.planning.costs import EndWork
from forever.training.learner import Learner
from forever.training.steps import Forward, Step, Steps


@dataclass(frozen=True)
class Card:
    """What a reader wants to know of a method before its code: a row of docs/methods.md.

    Attributes:
        title: as in tables. paper: where it comes from. memory: what it keeps of finished tasks.
        extra: computation beyond fine-tuning. uncertain: what we had to decide.
    """

    title: str
    paper: str
    memory: str
    extra: str
    uncertain: str


C = TypeVar("C", bound=MethodConfig)


class Method(Generic[C]):
    """Base of all methods.

    Attributes:
        joint: train on the union of all tasks instead of one after another.
        mixed: the input weighs the adapters, so no single adapter equals the trained model.
        tensors: everything that must survive a restart and is not in the records: by name, any
        shape.
        state: the same for what is no tensor, as JSON values.
    """

    card: ClassVar[Card]
    joint = False
    mixed = False

    def __init__(self, config: C) -> None:
        self.config = config
        self.tensors: dict[str, Tensor] = {}
        self.state: dict[str, Any] = {}

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        """Put around the frozen `model` what will be trained, for a run of `tasks` tasks; default:
        one adapter that PEFT makes."""
        adapter.attach(model, config.model, config.seed)

    def begin_task(self, learner: Learner, task: Task) -> None:
        """Before the first step of a task: take snapshots, add adapters."""

    def steps(self, learner: Learner, task: Task) -> Steps:
        """The algorithm: what to do next, given what happened. Default: the task's batches."""
        for batch in learner.batches(task.train):
            yield Step(batch)

    def encode(self, learner: Learner, step: Step) -> list[tuple[Encoded, ...]]:
        """The rows that each example of a step becomes; several stay together on one rank. Default:
        itself."""
        return [(learner.encoder.encode(example),) for example in step.batch.examples]

    def gate(self, learner: Learner, rows: Sequence[Encoded]) -> Tensor | None:
        """Weights of the adapters for rows that are to be computed or decoded: [E], [B, E], or None
        for all ones.

        It sees prompts only, and never which task they belong to.
        """
        return None

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        """What is minimised, for one micro-batch."""
        return forward.cross_entropy

    def on_gradients(self, learner: Learner) -> None:
        """After the gradients are summed over all ranks, before clipping; may edit
        `learner.parameters.grad`."""

    def end_task(self, learner: Learner, task: Task) -> None:
        """After the last step of a task, a pure function of the weights and the data: importance,
        statistics."""

    def end_work(self, learner: Learner, task: Task) -> EndWork:
        """What `end_task` will compute, for a plan. Default: next to nothing."""
        return EndWork()

    def remember(self, learner: Learner, task: Task) -> Sequence[Example]:
        """The rows that memory keeps of a task that is over; after a restart the same again."""
        return learner.memory.choose(task)
