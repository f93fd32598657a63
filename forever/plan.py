"""What a run will cost, before it starts: the method's own generator, driven with invented records.

Every update is taken to move the parameters equally far, which makes model days equally long. So the number of task
updates is exact, and that of replays is the schedule's; a real run's may differ where its pace of learning does.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from torch import nn

from forever.config import RunConfig
from forever.data.encoding import Encoded
from forever.data.prompts import prompt
from forever.data.tasks import Benchmark, Example
from forever.learner import Learner
from forever.memory import Memory
from forever.methods.registry import build_method
from forever.models.backbone import Backbone
from forever.models.parameters import FlatParameters
from forever.steps import Step, StepRecord
from forever.world import World

# Prompts of English text: about four characters a token with the tokenizers of current models.
_CHARACTERS_A_TOKEN = 4.0


@dataclass(frozen=True)
class Plan:
    """Counts of one run.

    Attributes:
        updates: optimiser updates by kind (task, replay, consolidation).
        events: replays and consolidations.
        rows: training rows by kind, repetitions counted.
        train_tokens: tokens of all training rows. evaluation_tokens: prompt tokens decoded from, over all stages.
    """

    updates: dict[str, int]
    events: dict[str, int]
    rows: dict[str, int]
    train_tokens: int
    evaluation_tokens: int

    def seconds(self, tokens_per_second: float) -> float:
        """Time at a training throughput; decoding's prompts take about a third (one pass forward, none back)."""
        return (self.train_tokens + self.evaluation_tokens / 3) / tokens_per_second


def plan(config: RunConfig, benchmark: Benchmark, count_tokens: Callable[[Example], int] | None = None) -> Plan:
    """The cost of a run in counts.

    Args:
        count_tokens: of an example's prompt and answer; by default estimated from the number of characters.
    """
    tokens_of = cache(count_tokens or _estimate)
    method = build_method(config.method)
    benchmark = benchmark.joint() if method.joint else benchmark
    memory = Memory(config.memory.fraction, config.optim.batch_size, config.seed)
    # The method computes on a model without parameters and without adapters, from rows without tokens.
    row = Encoded((), (), truncated=False)
    encoder = cast(Any, SimpleNamespace(encode=lambda example: row, with_drops=lambda example, share, stream: row))
    model = Backbone(nn.Module(), tokenizer=None)
    learner = Learner(config, memory, model, encoder, FlatParameters(()), World())
    updates, rows, events = Counter[str](), Counter[str](), Counter[str]()
    train_tokens = evaluation_tokens = 0
    for stage, task in enumerate(benchmark.stages):
        learner.begin(stage, task)
        method.begin_task(learner, task)
        steps = method.steps(learner, task)
        action = next(steps, None)
        while action is not None:
            if isinstance(action, Step):
                updates[action.kind] += 1
                rows[action.kind] += len(action.batch.examples)
                groups = zip(action.batch.examples, method.rows(learner, action), strict=True)
                train_tokens += sum(tokens_of(example) * len(group) for example, group in groups)
                learner.updates += 1
                learner.step += action.kind == "task"
            try:
                action = steps.send(StepRecord(loss=1.0, update_norm=1.0, value=1.0))
            except StopIteration:
                action = None
        events.update(event.kind for event in learner.events)
        memory.add(task)
        evaluation_tokens += sum(tokens_of(e) for i in benchmark.seen(stage) for e in benchmark.tasks[i].test)
    return Plan(dict(updates), dict(events), dict(rows), train_tokens, evaluation_tokens)


def _estimate(example: Example) -> int:
    return round((len(prompt(example)) + len(example.output)) / _CHARACTERS_A_TOKEN) + 1
