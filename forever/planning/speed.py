"""How long planned runs take: their counts at a speed that is measured here, stated, or read from
finished runs."""

import gc
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch

from forever.config.methods.replay import SsrConfig
from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.data.encoding import Encoder
from forever.data.tasks import Benchmark, Task
from forever.errors import InputError
from forever.evaluation.decoding import decode
from forever.methods.base import Method
from forever.methods.registry import build_method
from forever.planning.counts import ESTIMATES, UPDATES, Counts, Work, batch_work, count, pace_of
from forever.planning.table import PlannedRun, Terms
from forever.runs.directory import read_lines
from forever.training.build import build_learner
from forever.training.forward import autocast
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import optimizer_step, perform
from forever.training.steps import Action, Probe, Reading, Step, StepRecord, drive
from forever.training.world import World, pick_device

CALIBRATION_S = 20.0
FORWARD = 1 / 3  # a pass forward takes a third of one forward and back
_STEPS = 8  # steps of decoding that are timed


@dataclass(frozen=True)
class Rate:
    """Seconds of some work: per_call * calls + per_token * padded tokens."""

    per_call: float
    per_token: float

    @classmethod
    def line(cls, small: tuple[float, float], large: tuple[float, float]) -> "Rate":
        """The rate of two calls, each (padded tokens, seconds): it is right for the large one, and
        nothing is negative."""
        slope = (large[1] - small[1]) / max(large[0] - small[0], 1)
        slope = min(max(slope, 0.0), large[1] / large[0])
        return cls(large[1] - slope * large[0], slope)

    def seconds(self, work: Work) -> float:
        return self.per_call * work.calls + self.per_token * work.padded


@dataclass(frozen=True)
class Speed:
    """The rates of updates and of decoding; `start` is the time before the first update, in
    seconds."""

    update: Rate
    decode: Rate
    start: float = 0.0

    @classmethod
    def stated(cls, tokens_per_second: float) -> "Speed":
        """The speed at a training throughput. A decoded token counts as a trained one: it does a
        third of the arithmetic, but in small steps."""
        rate = Rate(0, 1 / tokens_per_second)
        return cls(rate, rate)

    @classmethod
    def observed(cls, counts: Counts, seconds: float) -> "Speed":
        """The throughput at which a finished run did what it counts."""
        return cls.stated(cls.stated(1.0).seconds(counts) / seconds)

    def seconds(self, counts: Counts) -> float:
        """The time of a run."""
        trained = self.update.seconds(counts.total(*UPDATES, "single"))
        probed = self.update.seconds(counts.total("probe"))
        read = self.decode.seconds(counts.total("prompts", "openings"))
        written = self.decode.seconds(counts.total("answers", "texts"))
        return self.start + trained + written + FORWARD * (probed + read)


@dataclass(frozen=True)
class Place:
    """How many runs go at a time, on which device, with how many threads (None: torch's choice)."""

    concurrent: int
    device: str
    threads: int | None = None


def find_place(runs: Sequence[PlannedRun], terms: Terms) -> Place:
    """How many runs fit at a time on what Ray has, or would have on this machine.

    Raises:
        InputError: as many as are asked for never fit.
    """
    if find_spec("ray") is None:
        return Place(1, str(pick_device(terms.device)))
    from forever.launch.ray_cluster import capacity, cluster, default_workers, divide

    # What Ray would find here; to start it for that takes ten seconds.
    total = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
    machines = 1
    if os.environ.get("RAY_ADDRESS"):
        with cluster(dashboard=False):
            total, machines = capacity()
    todo = sum(run.result is None for run in runs)
    workers = default_workers(total) if terms.workers is None else terms.workers
    share = divide(total, machines, todo, terms.concurrent, workers, terms.device)
    return Place(share.concurrent, share.device, share.threads)


def estimate(runs: Sequence[PlannedRun], place: Place, terms: Terms) -> list[str]:
    """Fill in the numbers and the seconds of all runs; returns in sentences what is estimated.

    Raises:
        InputError: a calibration for a device that is not here.
    """
    todo = {_kind(run.config): run for run in reversed(runs) if run.result is None}
    measured = calibrate_all(list(todo.values()), place, terms) if terms.calibrate else {}
    stated = Speed.stated(terms.tokens_per_second) if terms.tokens_per_second else None
    observed: dict[Any, Speed] = {}
    counted: dict[Any, Counts] = {}
    # Finished runs go first: they say how fast the others will be.
    for run in sorted(runs, key=lambda run: run.result is None):
        kind, example = _kind(run.config), _example(run, runs)
        speed, encoder = measured.get(kind, (stated or observed.get(kind), None))
        # Runs that differ in the seed alone have the same counts, but for the kept examples.
        like = run.config.model_copy(update={"seed": 0}).fingerprint()
        key = like, example and example.directory.path
        if key not in counted:
            pace = pace_of(read_lines(example.directory.steps)) if example else None
            counted[key] = count(run.config, run.benchmark, encoder, pace)
        counts = counted[key]
        run.seconds = speed.seconds(counts) if speed else None
        if run.result is not None:
            run.seconds = sum(run.result["seconds"].values())
            observed[kind] = Speed.observed(counts, run.seconds)
        run.numbers = _numbers(run, counts, terms)
    return _notes(runs, terms, bool(measured), bool(observed), place)


def _kind(config: RunConfig) -> tuple[str, str]:
    """Runs of one kind compute alike: they differ in the number of updates and tokens."""
    return config.method.name, config.model.model_dump_json()


def _example(run: PlannedRun, runs: Sequence[PlannedRun]) -> PlannedRun | None:
    """The finished run whose pace a plan by the model clock follows: itself, or one of its method
    that trains on the same data in the same way, if possible of the same variant."""
    if getattr(run.config.method, "clock", "") != "model":
        return None
    parts = {"model", "data", "optim"}
    alike = [
        other
        for other in runs
        if other.result is not None
        and other.config.method.name == run.config.method.name
        and other.config.model_dump(include=parts) == run.config.model_dump(include=parts)
    ]
    return min(alike, key=lambda other: (other is not run, other.label != run.label), default=None)


def _numbers(run: PlannedRun, counts: Counts, terms: Terms) -> dict[str, float]:
    """The columns of a run: what is planned, or what a finished run did, as far as it says."""
    updates, events, trained = counts.updates, [counts.events], counts.total(*UPDATES).tokens
    if run.result is not None:
        updates, trained = run.result["updates"], run.result["tokens"]
        events = list(run.result["events"].values())
    hours = (run.seconds or 0.0) / 3600
    return {
        "runs": 1,
        "done": run.result is not None,
        "task": updates.get("task", 0),
        "replay": updates.get("replay", 0),
        "consolidation": updates.get("consolidation", 0),
        "events": sum(each.get("replay", 0) + each.get("consolidation", 0) for each in events),
        "train MTok": trained / 1e6,
        "other MTok": counts.total("probe", "single", "openings", "texts").tokens / 1e6,
        "eval MTok": counts.total("prompts", "answers").tokens / 1e6,
        "hours": hours,
        "cost": hours * (terms.price_per_hour or 0.0),
    }


def _notes(
    runs: Sequence[PlannedRun], terms: Terms, measured: bool, observed: bool, place: Place
) -> list[str]:
    notes = ["Exact: updates on the task, and replays that their number triggers."]
    by_model_clock = [r for r in runs if getattr(r.config.method, "clock", "") == "model"]
    followed = [run for run in by_model_clock if _example(run, runs)]
    if len(followed) < len(by_model_clock):
        notes.append(
            "Replays by the model clock are an estimate for updates of equal length; "
            "there are fewer if they shrink."
        )
    if followed:
        notes.append("Replays by the model clock are an estimate at the pace of finished runs.")
    methods = {run.config.method.name for run in runs}
    if why := [words for name, words in ESTIMATES.items() if name in methods]:
        notes.append(f"Estimates: {'; '.join(why)}.")
    exact = "by the runs' own tokenizer" if measured else "at four characters each"
    notes.append(f"Tokens {exact}.")
    if measured:
        notes.append(f"Hours as measured here on {place.device}; runs slow each other down.")
    elif terms.tokens_per_second:
        notes.append(f"Hours at {terms.tokens_per_second:,.0f} training tokens a second.")
    elif observed:
        notes.append("Hours at the speed of finished runs.")
    if any(run.seconds is None for run in runs):
        notes.append("Hours need --calibrate or --tokens-per-second.")
    if (terms.workers or 0) > 1:
        notes.append("Hours are those of one worker; several share the batches of a run.")
    return notes


# ---- calibration


def calibrate_all(
    runs: Sequence[PlannedRun], place: Place, terms: Terms
) -> dict[tuple[str, str], tuple[Speed, Encoder]]:
    """The speed of each kind of run on this machine, and its encoder.

    Raises:
        InputError: the runs would have a device that is not here.
    """
    if place.device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "--calibrate: the runs would have GPUs of the cluster, and this machine has none; "
            "plan on a machine with one (`ray job submit --entrypoint-num-gpus 1`), "
            "or state --tokens-per-second"
        )
    device, threads = pick_device(place.device), torch.get_num_threads()
    # As many threads as a run of the sweep gets: otherwise it would seem faster than it will be.
    torch.set_num_threads(place.threads or threads)
    measured: dict[tuple[str, str], tuple[Speed, Encoder]] = {}
    for run in runs:
        budget_s = CALIBRATION_S / len(runs)
        measured[_kind(run.config)] = calibrate(
            run.config, run.benchmark, device, budget_s, terms.micro_batch
        )
        gc.collect()  # the model is gone, and the next one may need its place
        if device.type == "cuda":
            torch.cuda.empty_cache()
    torch.set_num_threads(threads)
    # The first model also loads the libraries, which the process of each run does.
    start = max((speed.start for speed, _ in measured.values()), default=0.0)
    return {
        kind: (replace(speed, start=start), encoder) for kind, (speed, encoder) in measured.items()
    }


def calibrate(
    config: RunConfig,
    benchmark: Benchmark,
    device: torch.device,
    budget_s: float,
    micro_batch: int | None = None,
) -> tuple[Speed, Encoder]:
    """Measure updates in the middle task, where what grows with the tasks has an average size, and
    decoding. Nothing is kept.

    Args:
        budget_s: seconds of training; everything is done once, however slow the device is.
        micro_batch: examples that the device takes at once; None: the whole batch.
    """
    begun = _now(device)
    method = build_method(config.method)
    benchmark = benchmark.joint() if method.joint else benchmark
    world = World(device=device)
    learner = build_learner(config, world, micro_batch, method, len(benchmark.stages))
    for task in benchmark.tasks:
        learner.encoder.encode_all(task)
    start = _now(device) - begun
    task = _enter_middle_task(learner, method, benchmark)
    update = _update_rate(learner, method, task, budget_s)
    answers = _decoding_rate(learner, benchmark.tasks[len(benchmark.tasks) // 2])
    return Speed(update, answers, start), learner.encoder


def _enter_middle_task(learner: Learner, method: Method[Any], benchmark: Benchmark) -> Task:
    """Come to the middle task with the adapters, memory and importance that a run has there."""
    # SSR is timed in its first task: to write examples at the end of one takes minutes.
    writes = isinstance(learner.config.method, SsrConfig)
    middle = 0 if writes else len(benchmark.stages) // 2
    for stage, task in enumerate(benchmark.stages[: middle + 1]):
        learner.begin(stage, task)
        method.begin_task(learner, task)
        learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
        if stage < middle:
            method.end_task(learner, replace(task, train=task.train[:1]))
            learner.memory.add(task)
    return benchmark.stages[middle]


def _update_rate(learner: Learner, method: Method[Any], task: Task, budget_s: float) -> Rate:
    """The rate of the task's own updates, with what the method does besides: its looks at losses
    and its reactions."""
    device = learner.world.device
    short = Step(Batch((min(task.train, key=lambda example: len(example.input)),)))
    seconds: list[float] = []
    for _ in range(4):  # the first call allocates, and noise only ever adds
        begun = _now(device)
        optimizer_step(learner, method, short)
        seconds.append(_now(device) - begun)

    def act(action: Action) -> StepRecord:
        record = perform(learner, method, action)
        learner.updates += isinstance(action, Step)
        learner.step += isinstance(action, Step) and action.kind == "task"
        return record

    calls = tokens = spent = 0.0
    begun = _now(device)
    for action, _ in drive(method.steps(learner, task), act):
        if not isinstance(action, Reading):
            share = FORWARD if isinstance(action, Probe) else 1
            calls += share
            tokens += share * batch_work(learner, method, action).padded
        spent = _now(device) - begun
        if spent > budget_s:
            break
    small = (batch_work(learner, method, short).padded, min(seconds))
    return Rate.line(small, (tokens / calls, spent / calls))


def _decoding_rate(learner: Learner, task: Task) -> Rate:
    """The rate of the steps of decoding; to read the prompts counts a third."""
    steps = 0

    def note_step(*_: object) -> None:
        nonlocal steps
        steps += 1

    hook = learner.backbone.model.register_forward_hook(note_step)
    samples: list[tuple[float, float]] = []
    for size in (1, 4, 16):  # the first call allocates
        examples, steps, begun = task.test[:size], 0, _now(learner.world.device)
        with autocast(learner):
            decode(learner.backbone, learner.encoder, examples, 1 + _STEPS, learner.gate)
        seconds = _now(learner.world.device) - begun
        width = max(len(learner.encoder.encode_prompt(example).prompt) for example in examples)
        calls = steps - 1 + FORWARD
        tokens = len(examples) * (steps - 1 + FORWARD * width)
        samples.append((tokens / calls, seconds / calls))
    hook.remove()
    return Rate.line(samples[1], samples[2])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
