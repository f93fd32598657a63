"""The loop, top to bottom: a run is a sequence of stages, a stage is a generator of steps, a step is one update."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from forever.config import RunConfig
from forever.data.encoding import Encoded, Encoder, collate
from forever.data.tasks import Benchmark, Task
from forever.evaluate import evaluate
from forever.learner import Learner
from forever.memory import Memory
from forever.methods.base import Method
from forever.methods.registry import build_method
from forever.models import lora
from forever.models.backbone import load, only_at
from forever.models.parameters import FlatParameters
from forever.optim import apply_update, build_optimizer, learning_rate
from forever.seeding import derive
from forever.session import Session
from forever.steps import Action, Forward, Penalty, Probe, Reading, Step, StepRecord, Steps
from forever.world import World


def run(config: RunConfig, benchmark: Benchmark, session: Session, world: World, micro_batch: int | None) -> None:
    """Train and score every stage that is not done yet; `session` keeps the files, the checkpoints and the trackers."""
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


def build_learner(
    config: RunConfig, world: World, micro_batch: int | None = None, method: Method[Any] | None = None, tasks: int = 1
) -> Learner:
    """Load the backbone, let the method put around it what it trains, and make that one flat vector."""
    method = method or build_method(config.method)
    full = config.model.tuning == "full"
    half = {"float32": False, "bfloat16": True, "auto": world.device.type == "cuda"}[config.model.dtype]
    # Weights that are trained stay fp32; full fine-tuning then computes in bf16 by autocast.
    backbone = load(config.model.name, torch.bfloat16 if half and not full else torch.float32, world.device)
    if full:
        backbone.model.requires_grad_(True)
    else:
        method.build(backbone.model, config, tasks)
    learner = Learner(
        config=config,
        memory=Memory(config.memory.fraction, config.optim.batch_size, config.seed),
        backbone=backbone,
        encoder=Encoder(backbone.tokenizer, config.model.max_length),
        parameters=FlatParameters((n, p) for n, p in backbone.model.named_parameters() if p.requires_grad),
        world=world,
        micro_batch=micro_batch,
        autocast=half and full,
        tasks=tasks,
    )
    learner.gate = lambda rows: method.gate(learner, rows)
    return learner


def train_task(learner: Learner, method: Method[Any], stage: int, task: Task, session: Session) -> None:
    """Drive the method's generator through one task.

    A run that goes on from a checkpoint sends the generator the records of the past instead of repeating the updates;
    then all tensors are put back, and the next update is the first new one.
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


def perform(learner: Learner, method: Method[Any], action: Action) -> StepRecord:
    """Do what a method asked for."""
    if isinstance(action, Step):
        return optimizer_step(learner, method, action)
    if isinstance(action, Reading):
        return StepRecord(value=learner.world.from_leader(action.value.double()).item())
    return probe(learner, action)


def optimizer_step(learner: Learner, method: Method[Any], step: Step) -> StepRecord:
    """One update. Everything that trains goes through here.

    The loss is the sum over the supervised tokens of the global batch divided by their number, so ranks and
    micro-batches add up to the same gradient. The gradient that was applied, summed and clipped, can be read until the
    next update begins.
    """
    config, parameters, world = learner.config, learner.parameters, learner.world
    groups = method.rows(learner, step)
    rows = [row for group in groups for row in group]
    supervised = sum(len(row.answer) for row in rows)
    assert learner.task is not None
    assert learner.optimizer is not None
    world.seed(derive(config.seed, "dropout", learner.task.name, learner.updates, world.rank))
    learner.backbone.model.train()
    parameters.grad.zero_()
    sums = torch.zeros(2, dtype=torch.float64, device=world.device)  # of the cross-entropy, and of what was added to it
    for micro in _micro_batches(world.share(groups), learner.micro_batch):
        logits, targets = answer_logits(learner, [row for group in micro for row in group])
        ce = F.cross_entropy(logits, targets, reduction="sum") / supervised
        total = method.loss(learner, Forward(ce, len(micro) / len(groups), micro, logits))
        total.backward()
        sums += torch.stack([ce, total - ce]).detach()
    world.sum_(parameters.grad)
    method.on_gradients(learner)
    penalty = add_penalty(parameters, step.penalty)
    lr = learning_rate(config.optim, learner.step, learner.planned_steps)
    update_norm = apply_update(parameters, learner.optimizer, lr, config.optim.clip)
    # One wait for the device an update: three numbers, the same on every rank because decisions hang on them.
    loss, added = world.sum_(sums)
    numbers = torch.stack([loss, added + penalty, update_norm])
    loss_, penalty_, norm_ = world.from_leader(numbers).tolist()
    if not all(map(math.isfinite, (loss_, penalty_, norm_))):
        # A clock that reads NaN never replays, and the run would end with a score as if all were well.
        where = f"task {learner.task.name}, update {learner.updates + 1}"
        raise FloatingPointError(f"{where}: loss {loss_}, update norm {norm_}; the run diverged, lower optim.lr")
    tokens = sum(len(row.prompt) + len(row.answer) for row in rows)
    return StepRecord(loss_, penalty_, norm_, tokens, lr)


@torch.no_grad()
def probe(learner: Learner, action: Probe) -> StepRecord:
    """The loss of a batch with dropout off; nothing changes."""
    world = learner.world
    rows = [learner.encoder.encode(example) for example in action.batch.examples]
    supervised = sum(len(row.answer) for row in rows)
    learner.backbone.model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=world.device)
    for micro in _micro_batches([(row,) for row in world.share(rows)], learner.micro_batch):
        loss += cross_entropy(learner, [row for (row,) in micro]) / supervised
    return StepRecord(
        loss=world.from_leader(world.sum_(loss)).item(), tokens=sum(len(r.prompt) + len(r.answer) for r in rows)
    )


def cross_entropy(learner: Learner, rows: Sequence[Encoded]) -> Tensor:
    """Summed cross-entropy over the answer tokens and EOS of `rows`."""
    return F.cross_entropy(*answer_logits(learner, rows), reduction="sum")


def answer_logits(learner: Learner, rows: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
    """The logits [n, V] where an answer token or EOS comes next, and those tokens [n]; there are no other logits."""
    model = learner.backbone.model
    ids, real, positions, targets = collate(rows, learner.backbone.tokenizer.pad_token_id, learner.backbone.device)
    with lora.mixed(model, learner.gate(rows), real), only_at(model, positions), autocast(learner):
        logits = model(input_ids=ids, use_cache=False).logits[0]
    return logits.float(), targets


def add_penalty(parameters: FlatParameters, penalty: Penalty | None) -> Tensor:
    """Add the gradient 2 beta w (Theta - Theta*) of the penalty; returns its value, an fp64 scalar."""
    if penalty is None:
        return torch.zeros((), dtype=torch.float64, device=parameters.flat.device)
    drift = parameters.flat.detach() - penalty.anchor
    weighted = drift if penalty.weights is None else penalty.weights * drift
    parameters.grad.add_(weighted, alpha=2 * penalty.beta)
    return penalty.beta * (weighted * drift).sum(dtype=torch.float64)


def score_tasks(learner: Learner, benchmark: Benchmark, stage: int, tasks: Sequence[int], session: Session) -> None:
    """Score `tasks` after a stage; those whose answers are already on disk are read back."""
    for index in tasks:
        if session.scored(stage, index):
            continue
        task = benchmark.tasks[index]
        with autocast(learner):
            limit = learner.config.evaluation.max_new_tokens
            predictions = evaluate(learner.backbone, learner.encoder, learner.world, task, limit, learner.gate)
        session.keep_predictions(stage, index, [dataclasses.asdict(prediction) for prediction in predictions])


def _micro_batches(groups: list[tuple[Encoded, ...]], size: int | None) -> Iterator[list[tuple[Encoded, ...]]]:
    """Micro-batches of about `size` rows; the rows of a group stay together."""
    width = max((len(group) for group in groups), default=1)
    count = max(size // width, 1) if size else max(len(groups), 1)
    return (groups[i : i + count] for i in range(0, len(groups), count))


def autocast(learner: Learner) -> AbstractContextManager[object]:
    """Where the model computes: in bf16 if its weights are fp32 on a GPU (full fine-tuning), and otherwise as it is."""
    if not learner.autocast:
        return nullcontext()
    return torch.autocast(learner.world.device.type, dtype=torch.bfloat16)
