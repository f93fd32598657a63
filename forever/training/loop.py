"""The loop: a run is a sequence of stages, a stage a generator of steps, a step one update."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark, Task
from forever.evaluation.scoring import Prediction, evaluate
from forever.stopping import pulse
from forever.training.build import build_learner
from forever.training.forward import autocast
from forever.training.learner import Learner
from forever.training.method import Method
from forever.training.optim import build_optimizer
from forever.training.step import check_carried, perform
from forever.training.steps import Action, StepRecord, drive
from forever.world import World

# Test examples that are answered before their tasks' answers are written down: several times what
# is answered at once, so that the end of a queue, where there is little to do at once, is short.
PROMPTS_AT_ONCE = 512


class Progress(Protocol):
    """How far the run has come."""

    def begin_stage(self, stage: int) -> bool: ...


class Answers(Protocol):
    """The answers to test examples, on disk and as scores."""

    def read(self, stage: int, task: int) -> bool: ...
    def write(self, stage: int, task: int, answers: Sequence[Prediction]) -> None: ...


class Session(Protocol):
    """What must outlive the process, as the loop sees it; it is `forever.runs.session.Session`."""

    @property
    def progress(self) -> Progress: ...
    @property
    def answers(self) -> Answers: ...
    def begin(self, learner: Learner, method: Method[Any], benchmark: Benchmark) -> None: ...
    def recall(self) -> StepRecord | None: ...
    def record(self, action: Action, record: StepRecord) -> None: ...
    def end_training(self) -> None: ...
    def end_stage(self, stage: int) -> None: ...
    def finish(self) -> None: ...


def run(
    config: RunConfig,
    method: Method[Any],
    benchmark: Benchmark,
    session: Session,
    world: World,
    micro_batch: int | None,
) -> None:
    """Train and score every stage that is not done yet.

    Args:
        method: that of the configuration (`forever.methods.registry.build_method`).
        session: keeps what must outlive the process.
    """
    # Build the model. Encoding all tasks now finds an example that is too long before hours of
    # training and not in the last task.
    if config.method.joint:
        benchmark = benchmark.joint()
    learner = build_learner(config, method, world, micro_batch, len(benchmark.stages))
    for task in benchmark.tasks:
        if task.train or task.test:  # else it is of a run that this one grows from
            learner.encoder.encode_all(task, config.evaluation.max_new_tokens)

    # Resume: put the newest checkpoint's tensors in place, if this run was interrupted.
    session.begin(learner, method, benchmark)

    # Forward transfer compares with the untrained model's scores.
    ahead = config.evaluation.forward_transfer
    if ahead:
        score_tasks(learner, benchmark, -1, range(len(benchmark.tasks)), session)

    for stage, task in enumerate(benchmark.stages):
        learner.begin(stage, task)
        if session.progress.begin_stage(stage):
            train_task(learner, method, task, session)
        else:
            # An earlier life trained this stage. Its memory is chosen by the seed, so again.
            learner.memory.add(task, method.remember(learner, task))

        # Score all tasks that were learned, and for forward transfer the one that comes next.
        seen = list(benchmark.seen(stage))
        if ahead and stage + 1 < len(benchmark.stages):
            seen.append(stage + 1)
        score_tasks(learner, benchmark, stage, seen, session)
        session.end_stage(stage)

    session.finish()


def train_task(learner: Learner, method: Method[Any], task: Task, session: Session) -> None:
    """Drive the method's generator through one task: train, remember, save."""
    method.begin_task(learner, task)
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)

    def answer(action: Action) -> StepRecord:
        # Perform the method's action. A run that was interrupted in this task repeats no update:
        # the method hears what came of it back then.
        record = session.recall() or perform(learner, method, action)
        learner.count(action, record)
        return record

    # The method reacts (the clock ticks, weights are merged) before an update is written down.
    for action, record in drive(method.steps(learner, task), answer):
        session.record(action, record)

    # After the last update: importance and statistics, the examples to keep, a checkpoint.
    method.end_task(learner, task)
    check_carried(learner, method)
    learner.memory.add(task, method.remember(learner, task))
    session.end_training()


def score_tasks(
    learner: Learner, benchmark: Benchmark, stage: int, tasks: Sequence[int], session: Session
) -> None:
    """Score `tasks` after a stage; answers that are already on disk are read back.

    A queue is answered as a whole unless all of it is there: what prompts are beside one another
    may move a last bit, and a resumed run ends with the bits of one that never stopped. A task that
    another run learned may have no test examples here.
    """
    tasks = [index for index in tasks if benchmark.tasks[index].test]
    for together in batched_tasks(benchmark, tasks):
        done = [session.answers.read(stage, index) for index in together]
        if all(done):
            continue
        with autocast(learner):
            answers = evaluate(
                learner.backbone,
                learner.encoder,
                learner.world,
                [benchmark.tasks[index] for index in together],
                learner.config.evaluation.max_new_tokens,
                learner.gate,
                learner.packed,
            )
        for index, of_task, is_there in zip(together, answers, done, strict=True):
            if not is_there:
                session.answers.write(stage, index, of_task)
        pulse()


def batched_tasks(benchmark: Benchmark, tasks: Sequence[int]) -> Iterator[list[int]]:
    """Share tasks out to as many queues as it takes to write answers down every few minutes."""
    group: list[int] = []
    prompts = 0
    for index in tasks:
        group.append(index)
        prompts += len(benchmark.tasks[index].test)
        if prompts >= PROMPTS_AT_ONCE:
            yield group
            group, prompts = [], 0
    if group:
        yield group
