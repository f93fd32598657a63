"""The record that a method may touch while it trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch

from forever.config.run import RunConfig
from forever.data.batching import Batch, batch_count, batches
from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Example, Task
from forever.models.backbone import Backbone
from forever.models.parameters import FlatParameters
from forever.seeding import permutation
from forever.training.memory import Memory
from forever.training.steps import LossEvent, ReplayEvent
from forever.training.world import World


@dataclass
class Learner:
    """A model that learns tasks one after another, and everything that belongs to it.

    Attributes:
        parameters: the trainable parameters Theta as one flat vector.
        memory: kept rows of finished tasks.
        micro_batch: rows a device takes at once; None is its whole share. It changes memory use,
        not the result (but
            for MoELoRA's terms, see there).
        autocast: compute in bf16 although the weights are fp32 (full fine-tuning on a GPU).
        gate: the method's weights of the adapters for rows that are to be computed; see
        `Method.gate`.
        tasks: how many the run has; None if nobody said.
        stage: index of the current task. step: its task updates so far; updates: all its updates so
        far.
        planned_steps: T, task updates that the current task will take.
        gauges: the method's readings for the next line of the journal, such as tau.
        notes: the method's findings about the current task, such as the length of its day.
        events: replays of the current task, and looks at earlier ones.
    """

    config: RunConfig
    memory: Memory
    backbone: Backbone
    encoder: Encoder
    parameters: FlatParameters
    world: World
    micro_batch: int | None = None
    autocast: bool = False
    gate: Callable[[Sequence[Encoded]], torch.Tensor | None] = lambda rows: None
    optimizer: torch.optim.Optimizer | None = None
    tasks: int | None = None
    task: Task | None = None
    stage: int = 0
    step: int = 0
    updates: int = 0
    planned_steps: int = 0
    gauges: dict[str, float | None] = field(default_factory=dict)
    notes: dict[str, float | None] = field(default_factory=dict)
    events: list[ReplayEvent | LossEvent] = field(default_factory=list)

    @property
    def last(self) -> bool:
        """Whether no task comes after the current one."""
        return self.stage + 1 == self.tasks

    def begin(self, stage: int, task: Task) -> None:
        """Set all counters to the start of a task."""
        self.stage, self.task = stage, task
        self.step = self.updates = self.planned_steps = 0
        self.gauges, self.notes, self.events = {}, {}, []

    def batches(self, examples: Sequence[Example], views: int = 1) -> Iterator[Batch]:
        """The main stream of the current task: `optim.epochs` shuffled passes, the same for every
        method of a seed.

        With several `views` of an example in a batch, the batch holds fewer examples and the number
        of updates stays: a pass takes `views` times as long, and there are as many fewer of them;
        the last one may end early.
        """
        assert self.task is not None
        optim = self.config.optim
        self.planned_steps = batch_count(len(examples), optim.epochs, optim.batch_size)
        size = optim.batch_size // views
        passes = math.ceil(self.planned_steps / batch_count(len(examples), 1, size))
        stream = batches(examples, passes, size, self.config.seed, "data", self.task.name)
        return islice(stream, self.planned_steps)

    def batch_at(self, number: int, examples: Sequence[Example], *stream: str) -> Batch:
        """Batch `number` of endless shuffled passes over `examples`, a stream of its own in each
        task."""
        assert self.task is not None
        size, seed = self.config.optim.batch_size, self.config.seed
        a_pass, place = divmod(number, math.ceil(len(examples) / size))
        order = permutation(len(examples), seed, *stream, self.task.name, a_pass)
        return Batch(tuple(examples[i] for i in order[place * size : (place + 1) * size]), a_pass)

    def log_step(self, **readings: float | None) -> None:
        """Readings that go into the journal beside the last update."""
        self.gauges.update(readings)

    def log_task(self, **findings: float | None) -> None:
        """Findings about the current task that go into the result."""
        self.notes.update(findings)

    def log_event(self, event: ReplayEvent | LossEvent) -> None:
        """A replay or a look is over."""
        self.events.append(event)
