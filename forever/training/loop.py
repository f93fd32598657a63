"""The loop: a run is a sequence of stages, a stage a generator of steps, a step one update."""

import dataclasses
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
    """Train and score every stage that is not done yet.

    `session` keeps what must outlive the process.
    """
    # Build the method and the model. Encoding all tasks now finds an example that is too long
    # before hours of training and not in the last task.
    method = build_method(config.method)
    if config.method.joint:
        benchmark = benchmark.joint()
    learner = build_learner(config, world, micro_batch, method, len(benchmark.stages))
    for task in benchmark.tasks:
        learner.encoder.encode_all(task)

    # Resume: put the newest checkpoint's tensors in place, if this run was interrupted.
    session.begin(learner, method, benchmark)

    # Forward transfer compares with the untrained model's scores.
    ahead = config.evaluation.forward_transfer
    if ahead:
        score_tasks(learner, benchmark, -1, range(len(benchmark.tasks)), session)

    for stage, task in enumerate(benchmark.stages):
        if session.trained(stage):
            # An earlier life trained this stage. Its memory is chosen by the seed, so again.
            learner.begin(stage, task)
            learner.memory.add(task, method.remember(learner, task))
        else:
            train_task(learner, method, stage, task, session)

        # Score all tasks that were learned, and for forward transfer the one that comes next.
        seen = list(benchmark.seen(stage))
        if ahead and stage + 1 < len(benchmark.stages):
            seen.append(stage + 1)
        score_tasks(learner, benchmark, stage, seen, session)
        session.end_stage(stage)

    session.finish(learner, method)


def train_task(
    learner: Learner, method: Method[Any], stage: int, task: Task, session: Session
) -> None:
    """Drive the method's generator through one task: train, remember, save."""
    learner.begin(stage, task)
    method.begin_task(learner, task)
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
    steps = method.steps(learner, task)
    action = next(steps, None)

    # A run that was interrupted in this task repeats no update. The generator hears the records of
    # the past and comes to where it was; then all tensors are put back.
    past = session.past(stage)
    for record in past:
        assert action is not None
        following = _react(learner, steps, action, record)
        session.record(learner, method, action, record, remembered=True)
        action = following
    if past:
        session.restore(learner, method)

    # What is new: do what the method asks for, and tell it what happened. It reacts (the clock
    # ticks, weights are merged) before the update is written down.
    while action is not None:
        record = perform(learner, method, action)
        following = _react(learner, steps, action, record)
        session.record(learner, method, action, record, remembered=False)
        action = following

    # After the last update: importance and statistics, the examples to keep, a checkpoint.
    method.end_task(learner, task)
    learner.memory.add(task, method.remember(learner, task))
    session.end_training(learner, method)


def _react(learner: Learner, steps: Steps, action: Action, record: StepRecord) -> Action | None:
    """Count an update and tell the method what happened; returns what it asks for next."""
    if isinstance(action, Step):
        learner.updates += 1
        learner.step += action.kind == "task"
    return _send(steps, record)


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
        task, limit = benchmark.tasks[index], learner.config.evaluation.max_new_tokens
        with autocast(learner):
            predictions = evaluate(
                learner.backbone, learner.encoder, learner.world, task, limit, learner.gate
            )
        session.keep_predictions(
            stage, index, [dataclasses.asdict(prediction) for prediction in predictions]
        )
