"""What the loop costs beside its arithmetic: the clock, the penalty, Python, a further trial, and
many tasks. All on the embedded model, where such costs weigh most."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.profiler import profile

from benchmarks.cases import Case, seconds
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.launch.local import run_local
from forever.methods.registry import build_method
from forever.runs.tracking import Tracker
from forever.sweeps.named_runs import named_run
from forever.training.build import build_learner
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import add_penalty, optimizer_step
from forever.training.steps import Penalty, Step, StepRecord, drive
from forever.world import World

_UPDATES = 13  # an epoch of mini
_TASKS = 30


def small_costs(rounds: int) -> list[Case]:
    """The clock and the penalty, in percent of an update, and an update over its products."""
    learner = _learner(named_run("mini/forever"))
    clock = Case("clock, schedule and update norm, of an update", 1.0, "%")
    penalty = Case("penalty, of a replay update", 3.0, "%")
    bare = Case("update of tiny over its matrix products", 1.5, "x cost")
    products = _products(learner)
    for _ in range(rounds):
        update = seconds(lambda: _train(learner)) / _UPDATES
        generator = _generator_s(learner) - _generator_s(learner, "finetune")
        norm = _each(lambda: learner.parameters.distance(learner.parameters.snapshot()))
        clock.values.append(100 * (generator + norm) / update)
        term = Penalty(0.001, learner.parameters.snapshot())
        penalty.values.append(100 * _each(lambda: add_penalty(learner.parameters, term)) / update)  # noqa: B023
        bare.values.append(update / _each(products, times=10))
    return [clock, penalty, bare]


def _learner(config: RunConfig) -> Learner:
    learner = build_learner(config, build_method(config.method), World())
    learner.begin(0, load_benchmark(config.data).tasks[0])
    learner.optimizer = build_optimizer(learner.parameters, config.optim)
    return learner


def _steps(learner: Learner, name: str) -> Iterator[Any]:
    assert learner.task is not None
    config = named_run(f"mini/{name}").method
    return build_method(config).steps(learner, learner.task)  # type: ignore[return-value]


def _train(learner: Learner) -> None:
    method = build_method(named_run("mini/finetune").method)
    for _, step in zip(range(_UPDATES), _steps(learner, "finetune"), strict=False):
        optimizer_step(learner, method, step)


def _generator_s(learner: Learner, name: str = "forever") -> float:
    """Seconds an update of a method's own work, its updates left out."""
    count = 0

    def answer(_: object) -> StepRecord:
        nonlocal count
        count += 1
        return StepRecord(loss=1.0, update_norm=1.0, tokens=1, lr=1.0)

    steps: Any = _steps(learner, name)
    spent = seconds(lambda: [None for _ in drive(steps, answer)])
    return spent / count


def _each(work: Callable[[], Any], times: int = 100) -> float:
    return seconds(lambda: [work() for _ in range(times)]) / times


def _products(learner: Learner) -> Callable[[], None]:
    """The matrix products of one update, on random numbers of the same shapes."""
    method = build_method(learner.config.method)
    step = Step(next(learner.batches(learner.task.train)))  # type: ignore[union-attr]
    optimizer_step(learner, method, step)
    with profile(record_shapes=True) as traced:
        optimizer_step(learner, method, step)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for event in traced.events() or ():
        if event.name in ("aten::mm", "aten::bmm"):
            left, right = event.input_shapes[:2]
            pairs.append((torch.randn(left), torch.randn(right)))

    @torch.no_grad()
    def compute() -> None:
        for left, right in pairs:
            torch.matmul(left, right)

    return compute


class _FirstUpdate(Tracker):
    def __init__(self) -> None:
        self.began, self.first = time.perf_counter(), 0.0

    def step(self, line: Mapping[str, Any]) -> None:
        self.first = self.first or time.perf_counter() - self.began


def further_trial(folder: Path, rounds: int) -> list[Case]:
    """What another run costs in a process that has trained one, as a sweep's trials do."""
    start = Case("a further trial, from start to first update", 2.0, "s")
    shares = {
        "checkpoint": Case("checkpoints, of a run", 1.0, "%"),
        "tracking": Case("journal and tracking, of a run", 1.0, "%"),
        "evaluation": Case("evaluation, of a run with a full matrix", 15.0, "%"),
    }
    for seed in range(rounds + 1):
        first = _FirstUpdate()
        config = named_run("mini/forever").override({"seed": seed})
        result = run_local(config, folder / str(seed), trackers=[first])
        if seed == 0:
            continue
        start.values.append(first.first)
        whole = sum(result["seconds"].values())
        for phase, case in shares.items():
            case.values.append(100 * result["seconds"].get(phase, 0.0) / whole)
    return [start, *shares.values()]


class _Paces(Tracker):
    """Seconds of each task update that follows another one, by task."""

    def __init__(self) -> None:
        self.by_task: dict[str, list[float]] = {}
        self._last: tuple[str, str, float] = ("", "", 0.0)

    def step(self, line: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        task, kind, before = self._last
        if (task, kind) == (line["task"], line["kind"]) == (task, "task"):
            self.by_task.setdefault(task, []).append(now - before)
        self._last = (line["task"], line["kind"], now)


def many_tasks(folder: Path) -> Case:
    """An update of the last five of 30 tasks over one of the first five: no task is dearer by what
    came before it, replay and scoring apart."""
    source = load_benchmark(named_run("mini/forever").data).tasks[0]
    names = [f"task{number:02d}" for number in range(_TASKS)]
    for name in names:
        for split, examples in (("train", source.train[:64]), ("test", source.test[:8])):
            path = folder / "data" / "many" / name / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [{"instruction": "", "input": e.input, "output": e.output} for e in examples]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    changes = {"data.benchmark": "many", "data.root": str(folder / "data"), "data.order": names}
    paces = _Paces()
    config = named_run("mini/forever").override({**changes, "optim.epochs": 4})
    run_local(config, folder / "run", trackers=[paces])
    shutil.rmtree(folder / "data")
    means = [fmean(paces.by_task[name]) for name in names]
    return Case("an update in tasks 26 to 30 over one in tasks 1 to 5", 1.1, "x cost",
                [fmean(means[-5:]) / fmean(means[:5])])  # fmt: skip
