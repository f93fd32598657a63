"""What a run will compute, before it starts: the method's own generator, driven with invented
records.

Every update is taken to move the parameters equally far, which makes model days equally long,
unless the pace of an earlier run is given. So the number of task updates is exact, and so is that
of replays by a step clock; by the model clock replays are the schedule's, and a real run has fewer
if its updates shrink.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from torch import nn

from forever.config.run import RunConfig
from forever.data.encoding import Encoded
from forever.data.prompts import prompt
from forever.data.tasks import Benchmark, Example, Task
from forever.evaluation.decoding import together
from forever.methods.base import Method
from forever.methods.registry import build_method
from forever.models.backbone import Backbone
from forever.models.parameters import FlatParameters
from forever.planning.costs import Plan, Work
from forever.training.learner import Learner
from forever.training.memory import Memory
from forever.training.steps import Action, Probe, Step, StepRecord
from forever.training.world import World

# Prompts of English text: about four characters a token with the tokenizers of current models.
_CHARACTERS_A_TOKEN = 4.0

# Update norms of each task's task updates, in order.
Pace = Mapping[str, Sequence[float]]


def plan(
    config: RunConfig, benchmark: Benchmark, encoder: Any = None, pace: Pace | None = None
) -> Plan:
    """The counts of a run.

    Answers are taken to be as long as the longest reference of their batch: a model that has
    learned the task stops there, and a batch is decoded until its last row stops.

    Args:
        encoder: the `Encoder` of the run's tokenizer, for exact tokens; by default four characters
        are a token.
        pace: of an earlier run, such as `pace_of` reads it; a longer task goes on at the last
        value.
    """
    method = build_method(config.method)
    benchmark = benchmark.joint() if method.joint else benchmark
    memory = Memory(config.memory.fraction, config.optim.batch_size, config.seed)
    # The method computes on a model without parameters and without adapters.
    rows_of = encoder or cast(Any, _Lengths(config.model.max_length))
    model = Backbone(nn.Module(), tokenizer=None)
    learner = Learner(
        config, memory, model, rows_of, FlatParameters(()), World(), tasks=len(benchmark.stages)
    )
    counted = _Counted(learner, method, pace or {})
    if config.evaluation.forward_transfer:
        counted.evaluation(benchmark.tasks, learned=False)
    for stage, task in enumerate(benchmark.stages):
        learner.begin(stage, task)
        method.begin_task(learner, task)
        drive(learner, method, task, counted.perform)
        counted.events.update(event.kind for event in learner.events)
        counted.end_of(task)
        memory.add(task)
        seen = list(benchmark.seen(stage))
        if config.evaluation.forward_transfer and stage + 1 < len(benchmark.stages):
            seen.append(stage + 1)
        counted.evaluation([benchmark.tasks[i] for i in seen])
    return Plan(dict(counted.work), dict(counted.events), dict(counted.rows))


def drive(
    learner: Learner, method: Method[Any], task: Task, perform: Callable[[Action], StepRecord]
) -> None:
    """A method's generator through one task, with records from `perform`."""
    steps = method.steps(learner, task)
    action = next(steps, None)
    while action is not None:
        record = perform(action)
        if isinstance(action, Step):
            learner.updates += 1
            learner.step += action.kind == "task"
        try:
            action = steps.send(record)
        except StopIteration:
            action = None


def pace_of(lines: Iterable[Mapping[str, Any]]) -> Pace:
    """The pace of a finished run, from its steps.jsonl."""
    norms: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "task":
            norms[line["task"]].append(line["update_norm"])
    return norms


class _Counted:
    """The counts so far, and the records that the generator is sent."""

    def __init__(self, learner: Learner, method: Method[Any], pace: Pace) -> None:
        self.learner, self.method, self.pace = learner, method, pace
        self.work: defaultdict[str, Work] = defaultdict(Work)
        self.events, self.rows = Counter[str](), Counter[str]()
        # A task is scored after many stages.
        self._evaluated: dict[tuple[str, bool], tuple[Work, Work]] = {}

    def perform(self, action: Action) -> StepRecord:
        learner = self.learner
        if isinstance(action, Step):
            self.rows[action.kind] += len(action.batch.examples)
            self.work[action.kind] += _batch(
                [row for group in self.method.encode(learner, action) for row in group]
            )
        elif isinstance(action, Probe):
            self.work["probe"] += _batch(
                [learner.encoder.encode(example) for example in action.batch.examples]
            )
        norms = self.pace.get(learner.task.name) if learner.task else None
        norm = norms[min(learner.step, len(norms) - 1)] if norms else 1.0
        return StepRecord(loss=1.0, update_norm=norm, value=1.0)

    def end_of(self, task: Task) -> None:
        work = self.method.end_work(self.learner, task)
        for example in work.passes:
            self.work["single"] += _batch([self.learner.encoder.encode(example)])
        for rows in work.texts:
            self._decoded(
                "openings", "texts", *_decoding([p for p, _ in rows], [n for _, n in rows])
            )

    def evaluation(self, tasks: Sequence[Task], learned: bool = True) -> None:
        """Greedy answers to the tasks' test rows; before training nothing makes them stop."""
        encoder, limit = self.learner.encoder, self.learner.config.evaluation.max_new_tokens
        for task in tasks:
            if (task.name, learned) not in self._evaluated:
                prompts = [len(encoder.encode_prompt(example).prompt) for example in task.test]
                longest = [
                    encoder.count(example.output) + 1 if learned else limit for example in task.test
                ]
                self._evaluated[task.name, learned] = _decoding(
                    prompts, [limit] * len(prompts), longest
                )
            self._decoded("prompts", "answers", *self._evaluated[task.name, learned])

    def _decoded(self, read: str, written: str, prompts: Work, steps: Work) -> None:
        self.work[read] += prompts
        self.work[written] += steps


def _batch(rows: Sequence[Encoded]) -> Work:
    lengths = [len(row.prompt) + len(row.answer) for row in rows]
    return Work(1, sum(lengths), len(lengths) * max(lengths))


def _decoding(
    prompts: Sequence[int], limits: Sequence[int], lengths: Sequence[int] | None = None
) -> tuple[Work, Work]:
    """What decoding computes: the prompts, which give the first token of each row, and the steps
    after it.

    Args:
        prompts: tokens of each. limits: tokens that may be written. lengths: those that are, if it
        is less.
    """
    read, written = Work(), Work()
    for group in together(prompts, limits):
        total, width = sum(prompts[i] for i in group), max(prompts[i] for i in group)
        read += Work(1, total, len(group) * width)
        steps = max(min(limits[i], (lengths or limits)[i]) for i in group) - 1
        written += Work(steps, steps * len(group), steps * len(group))
    return read, written


class _Lengths:
    """Stands for an `Encoder`: rows of an estimated length, whose tokens nobody reads."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.rows: dict[str, Any] = {}  # by id: cheaper than hashing the texts

    def encode(self, example: Example) -> Any:
        row = self.rows.get(example.id)
        if row is None:
            answer = self.count(example.output) + 1
            before = min(self.count(prompt(example)), max(self.max_length - answer, 1))
            row = self.rows[example.id] = SimpleNamespace(
                prompt=range(before), answer=range(answer)
            )
        return row

    def with_drops(self, example: Example, share: float, stream: Any) -> Any:
        return self.encode(example)

    def encode_prompt(self, example: Example) -> Any:
        return SimpleNamespace(
            prompt=range(min(self.count(prompt(example)), self.max_length)), answer=()
        )

    def encode_text(self, text: str, max_tokens: int) -> Any:
        return SimpleNamespace(prompt=range(min(self.count(text), max_tokens)), answer=())

    def count(self, text: str) -> int:
        return max(1, round(len(text) / _CHARACTERS_A_TOKEN))
