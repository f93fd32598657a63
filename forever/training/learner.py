"""What a method may touch while it trains."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from forever.config.run import RunConfig
from forever.data.batching import Batch, batch_count, batches, one_pass
from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Example, Task
from forever.errors import InputError
from forever.models import lora
from forever.models.backbone import Backbone
from forever.models.parameters import FlatParameters
from forever.seeding import permutation
from forever.training.budget import Budget
from forever.training.events import LossEvent, ReplayEvent
from forever.training.memory import Memory
from forever.training.optim import load_moments
from forever.training.steps import Action, Probe, Step, StepRecord
from forever.world import World


@dataclass
class Learner:
    """A model that learns tasks one after another, and everything that belongs to it."""

    config: RunConfig
    memory: Memory  # the kept examples of finished tasks
    backbone: Backbone
    encoder: Encoder
    parameters: FlatParameters  # all that is trained, Theta, as one flat vector
    world: World
    # How many examples a device takes at once; None is its whole share. It changes memory use, and
    # the result by rounding, dropout's masks and MoELoRA's terms alone.
    micro_batch: int | None = None
    packed: bool = True  # do examples share what they begin with? See `data.collation`
    autocast: bool = False  # compute in bf16 with fp32 weights (full fine-tuning on a GPU)
    gate: Callable[[Sequence[Encoded]], Tensor | None] = lambda examples: None  # see Method.gate
    optimizer: torch.optim.Optimizer | None = None
    tasks: int | None = None  # how many the run has; None if it is not known
    # The current task, and how many task updates and updates of any kind it has had so far.
    task: Task | None = None
    stage: int = 0
    step: int = 0
    updates: int = 0
    planned_steps: int = 0  # T, the task updates that the current task will take
    # The ids of the current task's training examples, and how many examples it has had so far: in
    # updates on the `task`, `replayed` from memory or `padded` with its own in the place of memory,
    # `probed` without an update, and `written` by the model. Repetitions and views count.
    own: frozenset[str] = frozenset()
    examples: Counter[str] = field(default_factory=Counter)
    skipped: int = 0  # updates of the current task that were no finite numbers
    # What the method says: for the next line of the journal, about the task, and its replays.
    gauges: dict[str, float | None] = field(default_factory=dict)
    notes: dict[str, float | None] = field(default_factory=dict)
    events: list[ReplayEvent | LossEvent] = field(default_factory=list)

    budget: Budget = field(init=False)  # what the current task may replay

    def __post_init__(self) -> None:
        self.budget = Budget(self.config.budget)

    @property
    def last(self) -> bool:
        """Whether no task comes after the current one."""
        return self.stage + 1 == self.tasks

    @property
    def place(self) -> str:
        """The task and the number of its next update."""
        return f"task {self.task.name if self.task else None}, update {self.updates + 1}"

    def begin(self, stage: int, task: Task) -> None:
        """Set all counters to the start of a task."""
        self.stage, self.task = stage, task
        self.own = frozenset(example.id for example in task.train)
        self.examples = Counter()
        self.budget.begin(stage)
        self.step = self.updates = self.planned_steps = self.skipped = 0
        self.gauges, self.notes, self.events = {}, {}, []

    def count(self, action: Action, record: StepRecord) -> None:
        """Count an update or a probe that is over; the method hears of it after that."""
        if isinstance(action, Step):
            self.updates += 1
            self.step += action.kind == "task"
            if record.skipped:
                self.skipped += 1
                self.log_task(skipped=self.skipped)
            batch = action.batch
            own = sum(example.id in self.own for example in batch.examples)
            self.examples["task" if action.kind == "task" else "padded"] += batch.views * own
            self.examples["replayed"] += batch.views * (len(batch.examples) - own)
            replayed = len(batch.examples) - (own if action.kind == "task" else 0)
            self.budget.count(batch, replayed, record.seconds)
        elif isinstance(action, Probe):
            self.examples["probed"] += len(action.batch.examples)

    def diverged(self, problem: str) -> FloatingPointError:
        """The error that ends a run in which a number is not finite."""
        return FloatingPointError(
            f"{self.place}: {problem}; the last good update of the task is {self.updates}; the run "
            "diverged, lower optim.lr"
        )

    def batches(self, examples: Sequence[Example]) -> Iterator[Batch]:
        """The main stream of the current task: shuffled passes, alike for all methods of a seed."""
        assert self.task is not None
        epochs, size = self.config.optim.epochs, self.config.optim.batch_size
        self.planned_steps = batch_count(len(examples), epochs, size)
        return batches(examples, epochs, size, self.config.seed, "data", self.task.name)

    def mixed_batches(self, task: Task) -> Iterator[Batch]:
        """The main stream with the memory mixed in: all of it in each epoch.

        If there is a budget of examples, an equal part of it is mixed into each epoch instead; one
        of seconds is spent evenly over the updates of the task.
        """
        optim, seed, budget = self.config.optim, self.config.seed, self.budget
        kept = self.memory.examples
        drawn = self.memory.drawn(task.name)
        if budget.config.seconds is not None and kept:
            batches = self.batches(task.train)
            yield from budget.mixed_by_time(batches, drawn, self.planned_steps)
        elif budget.total is not None and kept:
            passes = [task.train + tuple(islice(drawn, n)) for n in budget.shares(optim.epochs)]
            counts = [batch_count(len(examples), 1, optim.batch_size) for examples in passes]
            self.planned_steps = sum(counts)
            for epoch, examples in enumerate(passes):
                yield from one_pass(examples, epoch, optim.batch_size, seed, "data", task.name)
        else:
            yield from self.batches(task.train + kept)

    def batch_at(self, number: int, examples: Sequence[Example], *stream: str) -> Batch:
        """Batch `number` of endless shuffled passes; each task has a stream of its own."""
        assert self.task is not None
        size, seed = self.config.optim.batch_size, self.config.seed
        epoch, place = divmod(number, math.ceil(len(examples) / size))
        order = permutation(len(examples), seed, *stream, self.task.name, epoch)
        return Batch(tuple(examples[i] for i in order[place * size : (place + 1) * size]), epoch)

    def state_dict(self, optimizer: bool) -> dict[str, Tensor]:
        """What a checkpoint holds: `theta`, `frozen/...` and perhaps the moments, `adam/...`."""
        tensors = {"theta": self.parameters.flat.data}
        frozen = lora.frozen(self.backbone.model)
        tensors |= {f"frozen/{name}": tensor for name, tensor in frozen.items()}
        if optimizer and self.optimizer is not None:
            moments = self.optimizer.state_dict()["state"].get(0, {})
            tensors |= {f"adam/{name}": tensor for name, tensor in moments.items()}
        return tensors

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` gave; an optimiser that does not exist yet gets nothing.

        Raises:
            InputError: names or shapes are not of this model, as after a fork with another method.
        """
        flat = self.parameters.flat
        theta = tensors.get("theta", flat[:0])
        if theta.shape != flat.shape:
            raise InputError(
                f"the checkpoint has {theta.numel()} trained numbers, this model {flat.numel()}; "
                "a run continues with the parameters that it began with"
            )
        self.parameters.load(theta)
        lora.load_frozen(self.backbone.model, part(tensors, "frozen/"))
        moments = part(tensors, "adam/")
        if moments and self.optimizer is not None:
            load_moments(self.optimizer, moments)

    def log_step(self, **readings: float | None) -> None:
        """Add readings to the journal's line of the last update."""
        self.gauges.update(readings)

    def log_task(self, **findings: float | None) -> None:
        """Add findings about the current task to the result."""
        self.notes.update(findings)

    def log_event(self, event: ReplayEvent | LossEvent) -> None:
        """Add a replay or a probe that is over to the journal."""
        self.events.append(event)


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, under the rest of their names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
