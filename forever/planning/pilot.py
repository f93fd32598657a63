"""How far the first updates of a run move the parameters: what a plan by the model clock needs to
know of a run.

Training begins as the run will begin it and is dropped. Tasks are taken to go alike: on the
embedded benchmark the pace of the first task gives the replays of all five within a twentieth,
updates of equal length half as many again.
"""

import time
from statistics import mean

import torch

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.methods.registry import build_method
from forever.planning.counts import Pace, drive
from forever.training.build import build_learner
from forever.training.optim import build_optimizer, learning_rate
from forever.training.step import perform
from forever.training.steps import Action, StepRecord
from forever.training.world import World

_LAST = 8  # updates whose mean goes on when the time is over


def pilot(
    config: RunConfig,
    benchmark: Benchmark,
    device: torch.device,
    budget_s: float,
    micro_batch: int | None = None,
) -> Pace:
    """The pace of the first task, for every task; updates that the time does not reach go on with
    the learning rate.

    Args:
        config: of a method whose first task is updates on that task alone, as with replay of a
        memory that is empty.
        budget_s: seconds of training, at least one update; loading comes on top.
        micro_batch: rows that the device takes at once; None: the whole batch.
    """
    method = build_method(config.method)
    learner = build_learner(
        config, World(device=device), micro_batch, method, len(benchmark.stages)
    )
    task = benchmark.stages[0]
    learner.begin(0, task)
    method.begin_task(learner, task)
    learner.optimizer = build_optimizer(learner.parameters, config.optim)
    norms: list[float] = []
    moved: list[float] = []  # by update and unit of the learning rate
    begun = time.perf_counter()

    def act(action: Action) -> StepRecord:
        lr = learning_rate(config.optim, learner.step, learner.planned_steps)
        if not norms or time.perf_counter() - begun < budget_s:
            record = perform(learner, method, action)
            moved.append(record.update_norm / lr)
        else:
            record = StepRecord(update_norm=lr * mean(moved[-_LAST:]))
        norms.append(record.update_norm)
        return record

    drive(learner, method, task, act)
    return {each.name: norms for each in benchmark.tasks}
