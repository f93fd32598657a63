"""The loop, top to bottom: a run is a sequence of stages, a stage is a generator of steps, a step
is one update."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark, Task
from forever.evaluation.scoring import evaluate
from forever.methods.base import Method
from forever.methods.registry import build_method
from forever.runs.session import Session
from forever.training.build import build_learner
from forever.training.forward import autocast
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import perform
from forever.training.steps import Action, Step, StepRecord, Steps
from forever.training.world import World


def run(
    config: RunConfig, benchmark: Benchmark, session: Session, world: World, micro_batch: int | None
) -> None:
    """Train and score every stage that is not done yet; `session` keeps the files, the checkpoints
    and the trackers."""
    method = build_method(config.method)
    if method.joint:
        benchmark = benchmark.joint()
    learner = build_learner(config, world, micro_batch, method, len(benchmark.stages))
    for task in benchmark.tasks:  # a row that is too long is found now and not in the last task
        learner.encoder.encode_all(task)
    session.begin(learner, method, benchmark)
    if config.evaluation.forward_transfer:
        score_tasks(learner, benchmark, -1, range(len(benchmark.tasks)), session)
    for stage, task in enumerate(benchmark.stages):
        if session.trained(stage):
            learner.begin(stage, task)
            learner.memory.add(task, method.remember(learner, task))
        else:
            train_task(learner, method, stage, task, session)
        seen = list(benchmark.seen(stage))
        if config.evaluation.forward_transfer and stage + 1 < len(benchmark.stages):
            seen.append(stage + 1)
        score_tasks(learner, benchmark, stage, seen, session)
        session.end_stage(stage)
    session.finish(learner, method)


def train_task(
    learner: Learner, method: Method[Any], stage: int, task: Task, session: Session
) -> None:
    """Drive the method's generator through one task.

    A run that goes on from a checkpoint sends the generator the records of the past instead of
    repeating the updates; then all tensors are put back, and the next update is the first new one.
    """
    learner.begin(stage, task)
    past: deque[StepRecord] = session.past(stage)
    method.begin_task(learner, task)
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
    steps = method.steps(learner, task)
    action = next(steps, None)
    while action is not None:
        remembered = bool(past)
        record = past.popleft() if remembered else perform(learner, method, action)
        if isinstance(action, Step):
            learner.updates += 1
            learner.step += action.kind == "task"
        done, action = action, _send(steps, record)  # the method reacts: clock, events, merges
        if remembered and not past:
            session.restore(learner, method)
        session.record(learner, method, done, record, remembered)
    method.end_task(learner, task)
    learner.memory.add(task, method.remember(learner, task))
    session.end_training(learner, method)


def _send(steps: Steps, record: StepRecord) -> Action | None:
    try:
        return steps.send(record)
    except StopIteration:
        return None


def score_tasks(
    learner: Learner, benchmark: Benchmark, stage: int, tasks: Sequence[int], session: Session
) -> None:
    """Score `tasks` after a stage; those whose answers are already on disk are read back."""
    for index in tasks:
        if session.scored(stage, index):
            continue
        task = benchmark.tasks[index]
        with autocast(learner):
            limit = learner.config.evaluation.max_new_tokens
            predictions = evaluate(
                learner.backbone, learner.encoder, learner.world, task, limit, learner.gate
            )
        session.keep_predictions(
            stage, index, [dataclasses.asdict(prediction) for prediction in predictions]
        )
