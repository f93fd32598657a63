"""What a method is: a generator of steps, and a few seams, which do nothing by default.

A method that overrides nothing is sequential fine-tuning. What a generator yields depends on the
configuration, the data, the records it is sent and seeded streams, and on nothing else. So a run is
resumed by sending it the records of the past, and a plan is made by sending it invented ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from forever.config.methods.base import MethodConfig
from forever.config.run import RunConfig
from forever.data.encoding import Encoded
from forever.data.tasks import Example, Task
from forever.errors import InputError, shown
from forever.files import DAMAGED
from forever.models import adapter, lora
from forever.training.learner import Learner
from forever.training.steps import Forward, Step, Steps


@dataclass(frozen=True)
class Card:
    """What a reader wants to know about a method before its code: a row of docs/methods.md."""

    title: str
    paper: str
    memory: str = "nothing"  # what it keeps of finished tasks
    extra: str = "Nothing."  # what it computes beyond fine-tuning
    uncertain: str = "Nothing."  # what we had to decide because no source does


C = TypeVar("C", bound=MethodConfig)


@dataclass(frozen=True)
class EndWork:
    """What `Method.end_task` will compute, from which a plan estimates its time."""

    alone: Sequence[Example] = ()  # go forward and back each on its own
    # Lengths of prompts that are continued, and of their continuations at most, each `turns` times.
    texts: Sequence[tuple[int, int]] = ()
    turns: int = 1


class Method(Generic[C]):
    """The base of all methods."""

    card: ClassVar[Card]
    vectors: ClassVar[tuple[str, ...]] = ()
    """The names of `tensors` that have a number for each one that is trained."""

    def __init__(self, config: C) -> None:
        self.config = config
        # What must survive a restart and is not in the records: tensors, and JSON values.
        self.tensors: dict[str, Tensor] = {}
        self.state: dict[str, Any] = {}
        # What `end_task` computed for good. It is written once, beside the checkpoints, which have
        # its digest; the names begin with the number of the stage and a slash.
        self.constants: dict[str, Tensor] = {}

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        """Put what will be trained around the frozen `model`; by default one adapter of PEFT."""
        adapter.attach(model, config.model, config.seed)

    def begin_task(self, learner: Learner, task: Task) -> None:
        """Prepare for the first step of a task: take snapshots, add adapters."""

    def steps(self, learner: Learner, task: Task) -> Steps:
        """Say what to do next, given what happened; by default, train on the task's batches."""
        for batch in learner.batches(task.train):
            yield Step(batch)

    def encode(self, learner: Learner, step: Step) -> list[tuple[Encoded, ...]]:
        """Encode each example of a step, once or as several views, which stay on one rank."""
        return [(learner.encoder.encode(example),) for example in step.batch.examples]

    def gate(self, learner: Learner, examples: Sequence[Encoded]) -> Tensor | None:
        """Weigh the adapters for examples that will be computed or decoded: [E] or [B, E].

        None gives every adapter weight one. A gate sees prompts only, and never which task they
        belong to.
        """
        return None

    def begin_passes(self, learner: Learner) -> None:
        """Forget what was gathered in an update's passes: they begin, or begin anew."""

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        """Return what is minimised, for one micro-batch."""
        return forward.cross_entropy

    def on_gradients(self, learner: Learner) -> None:
        """Edit `learner.parameters.grad`, summed over all ranks and not yet clipped."""

    def end_task(self, learner: Learner, task: Task) -> None:
        """Compute what follows from weights and data after a task, such as importance."""

    def end_work(self, learner: Learner, task: Task) -> EndWork:
        """Say what `end_task` will compute; memory does not hold the task yet."""
        return EndWork()

    def remember(self, learner: Learner, task: Task) -> Sequence[Example]:
        """Choose the examples that memory keeps of a finished task; a restart chooses the same."""
        return learner.memory.choose(task)

    def carried(self, learner: Learner, stage: int, trained: bool) -> dict[str, torch.Size]:
        """The names and shapes that `tensors` may have during a stage, or once it is trained."""
        return dict.fromkeys(self.vectors, learner.parameters.flat.shape)

    def load_state_dict(
        self,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        shapes: Mapping[str, torch.Size],
        like: Tensor,
    ) -> None:
        """Put back `tensors` and `state`, in place, since generators hold on to them.

        Raises:
            InputError: a tensor is not of one of the `shapes`, or of another type than `like`.
        """
        self.state.update(state)
        for name, tensor in tensors.items():
            if tensor.shape != shapes.get(name) or tensor.dtype != like.dtype:
                raise InputError(
                    f"the checkpoint has a tensor {shown(name)} of {list(tensor.shape)} "
                    f"{tensor.dtype}, which {self.config.name} does not carry; {DAMAGED}"
                )
            current = self.tensors.get(name)
            if current is not None and current.shape == tensor.shape:
                current.copy_(tensor)
            else:
                self.tensors[name] = tensor.to(like.device, copy=True)

    def save(self, learner: Learner, folder: Path) -> Path:
        """Write what was trained, an adapter in PEFT's format, or the whole model if it was all,
        and return where."""
        model, name = learner.backbone.model, learner.config.model.name
        if learner.config.model.tuning == "lora":
            lora.save_peft(model, folder / "adapter", name)
            return folder / "adapter"
        model.save_pretrained(folder / "model")
        learner.backbone.tokenizer.save_pretrained(folder / "model")
        return folder / "model"
