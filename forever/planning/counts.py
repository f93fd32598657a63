"""What a run will compute: the method's own generator is driven with invented records.

Every update is taken to move the parameters equally far. So the number of task updates is exact,
and so is that of replays by a step clock. By the model clock replays are an estimate: a real run
has fewer if its updates shrink.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import SimpleNamespace
from typing import Any, get_args

from torch import nn

from forever.config.methods.replay import SsrConfig
from forever.config.run import RunConfig
from forever.data.batching import batch_count
from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Benchmark, Task
from forever.errors import InputError
from forever.evaluation.decoding import together
from forever.methods.base import Method
from forever.methods.registry import build_method
from forever.methods.ssr.synthesis import icl_prompts
from forever.models.backbone import Backbone
from forever.models.parameters import FlatParameters
from forever.training.learner import Learner
from forever.training.memory import Memory
from forever.training.steps import Action, Kind, Probe, Step, StepRecord, drive
from forever.training.world import World

UPDATES = get_args(Kind)
MOST_UPDATES = 100_000  # of a run, which are counted one by one; the paper's have 20,000
AT_THE_END = ("single", "openings", "texts")  # the kinds of work that `end_task` estimates
# Methods whose training has a say in what they do next.
ESTIMATES = {
    "aimmerging": "AIMMerging replays when its losses say so",
    "ssr": "SSR keeps what it manages to write",
}


@dataclass(frozen=True)
class Counts:
    """What one run computes, by kind of work.

    The kinds are those of updates; `probe`, a loss without an update; `single`, a batch whose
    examples go forward and back each on its own; `prompts` and `answers` of evaluation; `openings`
    and `texts` of what a method writes itself.

    Attributes:
        calls: updates, passes, batches of prompts or steps of decoding.
        tokens: in all examples, without padding.
        events: replays, consolidations and looks.
        examples: those of all tasks by kind, as `Learner.examples` counts them.
        budget_s: seconds of `budget.seconds` in all tasks that replay. In `calls` about one update
            a task stands for them, by which a budget may be exceeded.
    """

    calls: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    examples: Counter[str] = field(default_factory=Counter)
    budget_s: float = 0.0

    @property
    def updates(self) -> dict[str, int]:
        """Optimiser updates by kind."""
        return {kind: self.calls[kind] for kind in UPDATES if kind in self.calls}

    def total(self, *kinds: str) -> tuple[int, int]:
        """Calls and tokens of some kinds; the tokens of all updates are those of result.json."""
        return sum(self.calls[kind] for kind in kinds), sum(self.tokens[kind] for kind in kinds)

    def add(self, kind: str, calls: int, tokens: int) -> None:
        """Add some work."""
        self.calls[kind] += calls
        self.tokens[kind] += tokens


def plan(config: RunConfig, benchmark: Benchmark, encoder: Encoder | None = None) -> Counts:
    """Count what a run will compute; without an encoder four characters are a token.

    An answer is taken to be as long as the longest reference of its batch: a model that has learned
    the task stops there, and a batch is decoded until its last example stops.

    Raises:
        InputError: the updates are too many to be counted.
    """
    method = build_method(config.method)
    benchmark = benchmark.joint() if config.method.joint else benchmark
    optim = config.optim
    sizes = [len(stage.train) for stage in benchmark.stages]
    _check_updates(sum(batch_count(size, optim.epochs, optim.batch_size) for size in sizes))
    learner = Learner(
        config,
        Memory(config.memory.fraction, config.optim.batch_size, config.seed),
        # The method computes on a model without parameters and without adapters.
        Backbone(nn.Module(), tokenizer=None),
        encoder or Encoder(FourCharacters(), config.model.max_length),
        FlatParameters(()),
        World(),
        tasks=len(benchmark.stages),
    )
    counter = _Counter(learner, method)
    transfer = config.evaluation.forward_transfer
    if transfer:
        counter.evaluate(benchmark.tasks, learned=False)
    for stage, task in enumerate(benchmark.stages):
        learner.begin(stage, task)
        method.begin_task(learner, task)
        for _ in drive(method.steps(learner, task), counter.perform):
            pass
        counter.counts.events.update(event.kind for event in learner.events)
        counter.counts.examples.update(learner.examples)
        if learner.replay_s:
            counter.budget_s += config.budget.seconds or 0.0
        scored = list(benchmark.seen(stage))
        if transfer and not learner.last:
            scored.append(stage + 1)
        counter.evaluate([benchmark.tasks[i] for i in scored])
        counter.end_task(task)
        learner.memory.add(task)
    return replace(counter.counts, budget_s=counter.budget_s)


class _Counter:
    """The counts so far, and the records that the generator is sent."""

    def __init__(self, learner: Learner, method: Method[Any]) -> None:
        self.learner, self.method = learner, method
        self.counts = Counts()
        self.budget_s = 0.0
        self.actions = 0

    def perform(self, action: Action) -> StepRecord:
        learner = self.learner
        self.actions += 1
        _check_updates(self.actions)
        if isinstance(action, Step):
            groups = self.method.encode(learner, action)
            self.counts.add(action.kind, 1, _tokens(chain(*groups)))
        elif isinstance(action, Probe):
            self.counts.add("probe", 1, _tokens(map(learner.encoder.encode, action.batch.examples)))
        # An update is taken to spend a whole budget of seconds, so that a task replays about one.
        seconds = learner.config.budget.seconds or 0.0
        record = StepRecord(loss=1.0, update_norm=1.0, value=1.0, seconds=seconds)
        learner.count(action, record)
        return record

    def end_task(self, task: Task) -> None:
        """Estimate what the method computes at the end of a task, by the method's name."""
        config, encoder = self.learner.config.method, self.learner.encoder
        # Fisher information takes each example on its own, as many at once as an update has.
        if config.name == "ewc" or "importance" in getattr(config, "regularizer", ""):
            tokens = _tokens(map(encoder.encode, task.train))
            size = self.learner.config.optim.batch_size
            self.counts.add("single", batch_count(len(task.train), 1, size), tokens)
        # SSR continues every prompt up to its limit; beside that its answers are few.
        elif isinstance(config, SsrConfig) and not self.learner.last:
            prompts, rest = list[int](), list[int]()
            for _, text in icl_prompts(self.learner.memory.choose(task, config.demos)):
                prompts.append(len(encoder.encode_text(text, config.max_tokens).prompt))
                rest.append(max(1, config.max_tokens - prompts[-1]))
            for _ in range(config.samples):
                self._decode("openings", "texts", prompts, rest, rest)

    def evaluate(self, tasks: Sequence[Task], learned: bool = True) -> None:
        """Greedy answers to the tasks' test examples; before training nothing makes them stop."""
        encoder, limit = self.learner.encoder, self.learner.config.evaluation.max_new_tokens
        for task in tasks:
            prompts = [len(encoder.encode_prompt(example).prompt) for example in task.test]
            limits = lengths = [limit] * len(prompts)
            if learned:
                lengths = [1 + encoder.answer_length(example) for example in task.test]
            self._decode("prompts", "answers", prompts, limits, lengths)

    def _decode(
        self,
        reading: str,
        writing: str,
        prompts: Sequence[int],
        limits: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Add the reading of prompts, which gives the first token of each answer, and the steps of
        writing the others until the longest of a batch is there."""
        for group in together(prompts, limits):
            self.counts.add(reading, 1, sum(prompts[i] for i in group))
            steps = max(min(limits[i], lengths[i]) for i in group) - 1
            self.counts.add(writing, steps, steps * len(group))


def _check_updates(count: int) -> None:
    """Refuse to count without end."""
    if count > MOST_UPDATES:
        raise InputError(
            f"the run has {count} updates or more, and a plan counts {MOST_UPDATES}; lower "
            "optim.epochs, or what the method replays"
        )


def _tokens(examples: Iterable[Encoded]) -> int:
    return sum(len(example.prompt) + len(example.answer) for example in examples)


class FourCharacters:
    """Stands for a tokenizer that was not loaded: English prompts have about four characters a
    token with those of current models."""

    bos_token_id, eos_token_id = None, 0

    def __call__(self, text: str, **_: Any) -> Any:
        starts = range(0, len(text), 4)
        offsets = [(start, start + 4) for start in starts]
        return SimpleNamespace(input_ids=(1,) * len(starts), offset_mapping=offsets)
