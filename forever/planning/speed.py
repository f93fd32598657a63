"""How long planned runs take: their counts, at a speed that is measured here, stated, or that of
finished runs."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from forever.config.methods.replay import SsrConfig
from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.data.encoding import Encoder
from forever.data.tasks import Benchmark, Example, Task
from forever.errors import InputError
from forever.evaluation.decoding import decode
from forever.methods.base import Method
from forever.methods.registry import build_method
from forever.models.device import make_room
from forever.planning.counts import UPDATES, Counts
from forever.training.build import build_learner
from forever.training.forward import autocast
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import perform
from forever.training.steps import Action, Probe, Step, StepRecord, drive
from forever.training.world import World, pick_device

CALIBRATION_S = 20.0
FORWARD = 1 / 3  # a pass forward takes a third of one forward and back
_STEPS = 8  # steps of decoding that are timed


@dataclass(frozen=True)
class Rate:
    """Seconds of some work: per_call * calls + per_token * tokens."""

    per_call: float
    per_token: float

    @classmethod
    def line(cls, small: tuple[float, float], large: tuple[float, float]) -> "Rate":
        """The rate of two calls, (tokens, seconds) each: exact for the large one, not negative."""
        slope = (large[1] - small[1]) / max(large[0] - small[0], 1)
        slope = min(max(slope, 0.0), large[1] / large[0])
        return cls(large[1] - slope * large[0], slope)

    def seconds(self, calls: int, tokens: int) -> float:
        return self.per_call * calls + self.per_token * tokens


@dataclass(frozen=True)
class Speed:
    """The rates of updates and of decoding, and the encoder that counts tokens exactly, if the
    tokenizer had to be loaded. What a run does before its first update is not in it."""

    update: Rate
    decode: Rate
    encoder: Encoder | None = None

    @classmethod
    def stated(cls, tokens_per_second: float) -> "Speed":
        """The speed at a training throughput.

        A decoded token counts as a trained one: it does a third of the arithmetic, but in small
        steps.
        """
        rate = Rate(0, 1 / tokens_per_second)
        return cls(rate, rate)

    @classmethod
    def observed(cls, counts: Counts, seconds: float) -> "Speed":
        """The throughput at which a finished run did what it counts."""
        return cls.stated(cls.stated(1.0).seconds(counts) / seconds)

    def seconds(self, counts: Counts) -> float:
        """The time of a run."""
        trained = self.update.seconds(*counts.total(*UPDATES, "single"))
        probed = self.update.seconds(*counts.total("probe"))
        read = self.decode.seconds(*counts.total("prompts", "openings"))
        written = self.decode.seconds(*counts.total("answers", "texts"))
        return trained + written + FORWARD * (probed + read)


Kind = tuple[str, str]


def kind_of(config: RunConfig) -> Kind:
    """Runs of one kind compute alike: they differ in the number of updates and tokens."""
    return config.method.name, config.model.model_dump_json()


def calibrate(
    runs: Iterable[tuple[RunConfig, Benchmark]],
    device: str,
    threads: int | None = None,
    micro_batch: int | None = None,
) -> dict[Kind, Speed]:
    """Measure the speed of each kind of run on this machine.

    Args:
        threads: as many as a run of the sweep gets; otherwise it would seem faster than it will be.
        micro_batch: examples that the device takes at once; None: the whole batch.

    Raises:
        InputError: the runs would have a device that is not here.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "--calibrate: the runs would have GPUs of the cluster, and this machine has none; "
            "plan on a machine with one (`ray job submit --entrypoint-num-gpus 1`), "
            "or state --tokens-per-second"
        )
    world, before = World(device=pick_device(device)), torch.get_num_threads()
    torch.set_num_threads(threads or before)
    kinds = {kind_of(run[0]): run for run in runs}
    speeds: dict[Kind, Speed] = {}
    for kind, (config, benchmark) in kinds.items():
        budget_s = CALIBRATION_S / len(kinds)
        speeds[kind] = _measure(config, benchmark, world, budget_s, micro_batch)
        make_room()
    torch.set_num_threads(before)
    return speeds


def _measure(
    config: RunConfig, benchmark: Benchmark, world: World, budget_s: float, micro_batch: int | None
) -> Speed:
    method = build_method(config.method)
    benchmark = benchmark.joint() if config.method.joint else benchmark
    learner = build_learner(config, world, micro_batch, method, len(benchmark.stages))
    for task in benchmark.tasks:
        learner.encoder.encode_all(task, config.evaluation.max_new_tokens)
    # The middle task has the adapters, memory and importance that a run has on average. SSR is
    # timed in its first one: to write examples at the end of a task takes minutes.
    middle = 0 if isinstance(config.method, SsrConfig) else len(benchmark.stages) // 2
    for stage, task in enumerate(benchmark.stages[: middle + 1]):
        learner.begin(stage, task)
        method.begin_task(learner, task)
        learner.optimizer = build_optimizer(learner.parameters, config.optim)
        if stage < middle:
            method.end_task(learner, replace(task, train=task.train[:1]))
            learner.memory.add(task)
    update = _update_rate(learner, method, benchmark.stages[middle], budget_s)
    answers = _decoding_rate(learner, benchmark.tasks[len(benchmark.tasks) // 2])
    return Speed(update, answers, learner.encoder)


def _update_rate(learner: Learner, method: Method[Any], task: Task, budget_s: float) -> Rate:
    """The rate of the task's own updates, with what the method does besides: its looks at losses
    and its reactions."""
    device = learner.world.device
    short = Step(Batch((min(task.train, key=lambda example: len(example.input)),)))
    small: list[tuple[float, float]] = []
    for _ in range(4):  # the first call allocates, and noise only ever adds
        begun = _now(device)
        tokens = perform(learner, method, short).tokens
        small.append((tokens, _now(device) - begun))

    def act(action: Action) -> StepRecord:
        record = perform(learner, method, action)
        learner.count(action, record)
        return record

    calls = tokens = spent = 0.0
    begun = _now(device)
    for action, record in drive(method.steps(learner, task), act):
        share = {Step: 1.0, Probe: FORWARD}.get(type(action), 0.0)
        calls += share
        tokens += share * record.tokens
        spent = _now(device) - begun
        if spent > budget_s:
            break
    return Rate.line(min(small, key=lambda call: call[1]), (tokens / calls, spent / calls))


def _decoding_rate(learner: Learner, task: Task) -> Rate:
    """The rate of the steps of decoding; to read the prompts counts a third."""
    samples: list[tuple[float, float]] = []
    for size in (1, 4, 16):  # the first call allocates
        examples = task.test[:size]
        _, to_read = _decoded(learner, examples, 1)
        seconds, passes = _decoded(learner, examples, 1 + _STEPS)
        prompts = sum(len(learner.encoder.encode_prompt(example).prompt) for example in examples)
        steps = passes - to_read
        calls = steps + FORWARD
        tokens = len(examples) * steps + FORWARD * prompts
        samples.append((tokens / calls, seconds / calls))
    return Rate.line(samples[1], samples[2])


def _decoded(learner: Learner, examples: Sequence[Example], limit: int) -> tuple[float, int]:
    """The seconds and the passes through the model that answers of `limit` tokens at most take."""
    passes = 0

    def note_pass(*_: object) -> None:
        nonlocal passes
        passes += 1

    hook = learner.backbone.model.register_forward_hook(note_pass)
    begun = _now(learner.world.device)
    with autocast(learner):
        decode(
            learner.backbone, learner.encoder, examples, limit, learner.gate, packed=learner.packed
        )
    seconds = _now(learner.world.device) - begun
    hook.remove()
    return seconds, passes


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
