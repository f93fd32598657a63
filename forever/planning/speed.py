"""How fast this device does a run's work: a short measurement of the run's own actions.

The method's generator is driven through the middle task, where what grows with the tasks is of
average size. A few actions of each kind are performed and timed, the rest answered with the last
record; nothing is kept. Time grows with the tokens of a call as it does between the shortest row
and a batch of the longest.
"""

import gc
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any

import torch

from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.data.tasks import Benchmark, Task
from forever.evaluation.scoring import evaluate
from forever.methods.base import Method
from forever.methods.registry import build_method
from forever.models.backbone import load
from forever.planning.costs import UPDATES, Rate, Speed
from forever.planning.counts import drive
from forever.training.build import build_learner
from forever.training.forward import autocast
from forever.training.importance import fisher_information
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import optimizer_step, perform
from forever.training.steps import Action, Probe, Reading, Step, StepRecord
from forever.training.world import World

_LONG_TEXT = 8  # steps of decoding that are timed
_SINGLES = 4  # rows of a timed call for the Fisher information


def calibrate(
    config: RunConfig,
    benchmark: Benchmark,
    device: torch.device,
    budget_s: float,
    micro_batch: int | None = None,
) -> tuple[Speed, Any]:
    """Measure.

    Args:
        budget_s: seconds for all but loading; a device that is slow takes longer, since everything
        is done once.
        micro_batch: rows that the device takes at once; None: the whole batch.

    Returns:
        The speed, and the run's `Encoder`.
    """
    measured = _measure(config, benchmark, device, budget_s, micro_batch)
    gc.collect()  # the model is gone: the next one may need its place
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return measured


def _measure(
    config: RunConfig,
    benchmark: Benchmark,
    device: torch.device,
    budget_s: float,
    micro_batch: int | None,
) -> tuple[Speed, Any]:
    begun = time.perf_counter()
    method = build_method(config.method)
    benchmark = benchmark.joint() if method.joint else benchmark
    learner = build_learner(
        config, World(device=device), micro_batch, method, len(benchmark.stages)
    )
    for task in benchmark.tasks:
        learner.encoder.encode_all(task)
    start = time.perf_counter() - begun
    task = _middle_task(learner, method, benchmark)
    share_s = budget_s / 6  # slope, updates on the task, on memory, probes, single rows, decoding
    per_token = _slope(learner, method, benchmark, share_s)
    actions = _Timed(learner, method, share_s)
    drive(learner, method, task, actions)
    rates = actions.rates(per_token)
    single = _times(lambda: fisher_information(learner, task.train[:_SINGLES]), device, share_s / 2)
    lengths = [
        _padded(learner, method, Step(Batch((example,)))) for example in task.train[:_SINGLES]
    ]
    rates["single"] = Rate.through(mean(lengths), mean(single) / len(lengths), per_token)
    rates["prompts"], rates["answers"] = _decoding(
        learner, benchmark.tasks[len(benchmark.tasks) // 2], share_s
    )
    rates["openings"], rates["texts"] = rates["prompts"], rates["answers"]
    return Speed(rates, start), learner.encoder


def load_libraries(device: torch.device) -> None:
    """Load a first, small backbone, and with it what every process loads once: libraries, the
    device's context."""
    load("tiny", torch.float32, device)


def _middle_task(learner: Learner, method: Method[Any], benchmark: Benchmark) -> Task:
    """Come to the middle task with what a run has there: adapters, memory, importance (of one row a
    task).

    A method that writes texts is timed in its first task: to have written some would take minutes.
    """
    learner.begin(0, benchmark.stages[0])
    writes = method.end_work(learner, benchmark.stages[0]).texts
    middle = 0 if writes else len(benchmark.stages) // 2
    for stage, task in enumerate(benchmark.stages[:middle]):
        learner.begin(stage, task)
        method.begin_task(learner, task)
        learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
        method.end_task(learner, replace(task, train=task.train[:1]))
        learner.memory.add(task)
    learner.begin(middle, benchmark.stages[middle])
    method.begin_task(learner, benchmark.stages[middle])
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
    return benchmark.stages[middle]


def _slope(learner: Learner, method: Method[Any], benchmark: Benchmark, share_s: float) -> float:
    """Seconds that a further (padded) token of an update takes."""
    rows = sorted(
        (example for task in benchmark.tasks for example in task.train),
        key=lambda example: len(learner.encoder.encode(example).prompt),
    )
    short, long = (
        Step(Batch((rows[0],))),
        Step(Batch(tuple(rows[-learner.config.optim.batch_size :]))),
    )
    optimizer_step(learner, method, short)  # the first call allocates and compiles
    samples: list[tuple[float, float]] = []
    for step in (short, long):
        seconds = _times(
            lambda step=step: optimizer_step(learner, method, step),
            learner.world.device,
            share_s / 2,
        )
        samples.append((_padded(learner, method, step), min(seconds)))  # noise only ever adds
    return Rate.fit(samples).per_token


class _Timed:
    """Performs some of a generator's actions and times them, with what the method does when it is
    told."""

    def __init__(self, learner: Learner, method: Method[Any], share_s: float) -> None:
        self.learner, self.method, self.share_s = learner, method, share_s
        # Padded tokens, seconds.
        self.samples: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self.records: dict[str, StepRecord] = {}
        self._open: tuple[str, float, float] | None = None  # kind, padded tokens, begun

    def __call__(self, action: Action) -> StepRecord:
        self._close()
        if isinstance(action, Reading):
            return perform(self.learner, self.method, action)
        kind = action.kind if isinstance(action, Step) else "probe"
        if sum(seconds for _, seconds in self.samples[kind]) >= self.share_s:
            return self.records[kind]
        size = _padded(self.learner, self.method, action)
        self._open = kind, size, _now(self.learner.world.device)
        self.records[kind] = perform(self.learner, self.method, action)
        return self.records[kind]

    def _close(self) -> None:
        if self._open is not None:
            kind, size, begun = self._open
            self.samples[kind].append((size, _now(self.learner.world.device) - begun))
            self._open = None

    def rates(self, per_token: float) -> dict[str, Rate]:
        """By kind; of a kind that did not occur in this task, that of the task's own updates."""
        self._close()
        found: dict[str, Rate] = {}
        for kind in (*UPDATES, "probe"):
            slope = per_token / 3 if kind == "probe" else per_token
            if self.samples[kind]:
                size, seconds = (mean(values) for values in zip(*self.samples[kind], strict=True))
                found[kind] = Rate.through(size, seconds, slope)
            else:
                share = 1 / 3 if kind == "probe" else 1
                found[kind] = Rate(found["task"].per_call * share, found["task"].per_token * share)
        return found


def _decoding(learner: Learner, task: Task, share_s: float) -> tuple[Rate, Rate]:
    """Of reading prompts, with the first token that they give, and of each step after it."""
    limit = learner.config.evaluation.max_new_tokens
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    hook = learner.backbone.model.register_forward_hook(count)
    read: list[tuple[float, float]] = []
    written: list[tuple[float, float]] = []
    rows, spent = max(1, min(learner.config.optim.batch_size // 2, len(task.test))), 0.0
    # The first call allocates and compiles.
    _answers(learner, replace(task, test=task.test[:1]), min(2, limit))
    while True:
        some = replace(task, test=task.test[:rows])
        width = max(len(learner.encoder.encode_prompt(example).prompt) for example in some.test)
        first = _answers(learner, some, 1)
        read.append((rows * width, first))
        steps = 0
        whole = _answers(learner, some, min(limit, 1 + _LONG_TEXT))
        written.append((rows, max(whole - first, 0.0) / max(steps - 1, 1)))
        spent += first + whole
        # Twice the rows take twice as long.
        if rows == len(task.test) or (spent * 3 > share_s and len(read) > 1):
            break
        rows = min(2 * rows, len(task.test))
    hook.remove()
    return Rate.fit(read), Rate.fit(written)


def _answers(learner: Learner, task: Task, limit: int) -> float:
    """Seconds to score a task."""
    begun = _now(learner.world.device)
    with autocast(learner):
        evaluate(learner.backbone, learner.encoder, learner.world, task, limit, learner.gate)
    return _now(learner.world.device) - begun


def _times(work: Callable[[], object], device: torch.device, share_s: float) -> list[float]:
    """Seconds of each of some calls, at least one."""
    found: list[float] = []
    while not found or sum(found) + min(found) <= share_s:
        begun = _now(device)
        work()
        found.append(_now(device) - begun)
    return found


def _padded(learner: Learner, method: Method[Any], action: Step | Probe) -> int:
    if isinstance(action, Step):
        rows = [row for group in method.encode(learner, action) for row in group]
    else:
        rows = [learner.encoder.encode(example) for example in action.batch.examples]
    return len(rows) * max(len(row.prompt) + len(row.answer) for row in rows)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
