"""What a run will compute, before it starts.

The method's own generator is driven with invented records.

Every update is taken to move the parameters equally far, unless the pace of an earlier run is
given. So the number of task updates is exact, and so is that of replays by a step clock. By the
model clock replays are an estimate: a real run has fewer if its updates shrink.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, get_args

from torch import nn

from forever.config.methods.replay import SsrConfig
from forever.config.run import RunConfig
from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Benchmark, Task
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
AT_THE_END = ("single", "openings", "texts")  # the kinds of work that `end_task` estimates
# Methods whose training has a say in what they do next.
ESTIMATES = {
    "aimmerging": "AIMMerging replays when its losses say so",
    "ssr": "SSR keeps what it manages to write",
}

# Update norms of each task's task updates, in order.
Pace = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Work:
    """Work of one kind.

    Attributes:
        calls: the number of updates, passes, batches of prompts or steps of decoding.
        tokens: the number of tokens in all examples.
        padded: the same with padding, which is what is computed.
    """

    calls: int = 0
    tokens: int = 0
    padded: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.calls + other.calls, self.tokens + other.tokens, self.padded + other.padded
        )


@dataclass(frozen=True)
class Counts:
    """What one run computes.

    Attributes:
        work: the work by kind: the kinds of updates; `probe`, a loss without an update; `single`,
            an example forward and back on its own; `prompts` and `answers` of evaluation;
            `openings` and `texts` of what a method writes itself.
        events: replays, consolidations and looks.
    """

    work: Mapping[str, Work]
    events: Mapping[str, int]

    @property
    def updates(self) -> dict[str, int]:
        """Optimiser updates by kind."""
        return {kind: self.work[kind].calls for kind in UPDATES if kind in self.work}

    def total(self, *kinds: str) -> Work:
        """Add up the work of some kinds; `tokens` of all updates is that of result.json."""
        return sum((self.work.get(kind, Work()) for kind in kinds), Work())


def plan(
    config: RunConfig,
    benchmark: Benchmark,
    encoder: Encoder | None = None,
    pace: Pace | None = None,
) -> Counts:
    """Count what a run will compute.

    An answer is taken to be as long as the longest reference of its batch: a model that has learned
    the task stops there, and a batch is decoded until its last example stops.

    Args:
        encoder: gives exact tokens; by default four characters are a token.
        pace: the pace of an earlier run, see `pace_of`; a longer task goes on at the last value.
    """
    method = build_method(config.method)
    benchmark = benchmark.joint() if config.method.joint else benchmark
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
    counter = _Counter(learner, method, pace or {})
    if config.evaluation.forward_transfer:
        counter.evaluate(benchmark.tasks, learned=False)
    for stage, task in enumerate(benchmark.stages):
        learner.begin(stage, task)
        method.begin_task(learner, task)
        for _ in drive(method.steps(learner, task), counter.perform):
            pass
        counter.events.update(event.kind for event in learner.events)
        counter.end_task(task)
        learner.memory.add(task)
        seen = list(benchmark.seen(stage))
        if config.evaluation.forward_transfer and stage + 1 < len(benchmark.stages):
            seen.append(stage + 1)
        counter.evaluate([benchmark.tasks[i] for i in seen])
    return Counts(dict(counter.work), dict(counter.events))


def pace_of(lines: Iterable[Mapping[str, Any]]) -> Pace:
    """The pace of a finished run, from the lines of its steps.jsonl."""
    norms: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "task":
            norms[line["task"]].append(line["update_norm"])
    return norms


def batch_work(learner: Learner, method: Method[Any], action: Step | Probe) -> Work:
    """Count the work of one update or probe."""
    if isinstance(action, Step):
        groups = method.encode(learner, action)
        return _together([encoded for group in groups for encoded in group])
    return _together([learner.encoder.encode(example) for example in action.batch.examples])


class _Counter:
    """The counts so far, and the records that the generator is sent."""

    def __init__(self, learner: Learner, method: Method[Any], pace: Pace) -> None:
        self.learner, self.method, self.pace = learner, method, pace
        self.work: defaultdict[str, Work] = defaultdict(Work)
        self.events = Counter[str]()

    def perform(self, action: Action) -> StepRecord:
        learner, norm = self.learner, 1.0
        norms = self.pace.get(learner.task.name) if learner.task else None
        if norms:
            norm = norms[min(learner.step, len(norms) - 1)]
        if isinstance(action, Step):
            self.work[action.kind] += batch_work(learner, self.method, action)
            learner.updates += 1
            learner.step += action.kind == "task"
        elif isinstance(action, Probe):
            self.work["probe"] += batch_work(learner, self.method, action)
        return StepRecord(loss=1.0, update_norm=norm, value=1.0)

    def end_task(self, task: Task) -> None:
        """Estimate what the method computes at the end of a task, by the method's name."""
        config = self.learner.config.method
        # Fisher information takes each example on its own, forward and back.
        if config.name == "ewc" or "importance" in getattr(config, "regularizer", ""):
            for example in task.train:
                self.work["single"] += _together([self.learner.encoder.encode(example)])
        # SSR continues every prompt up to its limit; beside that its answers are few.
        elif isinstance(config, SsrConfig) and not self.learner.last:
            prompts: list[int] = []
            for _, text in icl_prompts(self.learner.memory.choose(task, config.demos)):
                encoded = self.learner.encoder.encode_text(text, config.max_tokens)
                prompts.append(len(encoded.prompt))
            rest = [max(1, config.max_tokens - length) for length in prompts]
            for _ in range(config.samples):
                self.decode(("openings", "texts"), prompts, rest, rest)

    def evaluate(self, tasks: Sequence[Task], learned: bool = True) -> None:
        """Greedy answers to the tasks' test examples; before training nothing makes them stop."""
        encoder, limit = self.learner.encoder, self.learner.config.evaluation.max_new_tokens
        for task in tasks:
            prompts: list[int] = []
            lengths: list[int] = []
            for example in task.test:
                prompts.append(len(encoder.encode_prompt(example).prompt))
                answer = len(encoder.encode(example).answer) if learned else limit
                lengths.append(min(limit, answer))
            self.decode(("prompts", "answers"), prompts, [limit] * len(prompts), lengths)

    def decode(
        self,
        kinds: tuple[str, str],
        prompts: Sequence[int],
        limits: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Add what decoding computes: reading the prompts, and the steps after it.

        Reading the prompts gives the first token of each answer.

        Args:
            kinds: the kinds of the work of reading and of writing.
            prompts: the tokens of each prompt.
            limits: the tokens that may be written after each.
            lengths: the tokens that are written after each.
        """
        for group in together(prompts, limits):
            read = [prompts[i] for i in group]
            self.work[kinds[0]] += Work(1, sum(read), len(group) * max(read))
            steps = max(lengths[i] for i in group) - 1
            self.work[kinds[1]] += Work(steps, steps * len(group), steps * len(group))


def _together(encoded: Sequence[Encoded]) -> Work:
    lengths = [len(example.prompt) + len(example.answer) for example in encoded]
    return Work(1, sum(lengths), len(lengths) * max(lengths))


class FourCharacters:
    """Stands for a tokenizer that was not loaded.

    English prompts have about four characters a token with the tokenizers of current models.
    """

    bos_token_id, eos_token_id = None, 0

    def __call__(self, text: str, **_: Any) -> Any:
        starts = range(0, len(text), 4)
        offsets = [(start, start + 4) for start in starts]
        return SimpleNamespace(input_ids=(1,) * len(starts), offset_mapping=offsets)
