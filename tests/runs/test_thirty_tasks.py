"""Thirty tasks: what a process holds does not grow with the tasks that it has learned."""

import ctypes
import gc
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from helpers import make_task, save_data

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.launch.local import Placement, run_local
from forever.runs.tracking import Tracker

TASKS = 30
LAST = 20  # the first ones fill caches and pools
PAGE = os.sysconf("SC_PAGE_SIZE")

Held = dict[str, float]


@pytest.fixture(autouse=True)
def quick_collector() -> Iterator[None]:
    """What is there already is not collected after each task."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def held() -> Held:
    """What this process holds: memory in MB without what it could give back, handles, threads."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    handles = len(os.listdir("/proc/self/fd"))
    return {"memory": pages * PAGE / 2**20, "handles": handles, "threads": os_threads()}


def os_threads() -> int:
    """Threads of Python and of libraries."""
    return len(os.listdir("/proc/self/task"))


def slopes(samples: list[Held]) -> Held:
    """By how much each grows a task, over the last tasks."""
    last = samples[-LAST:]
    numbers = np.arange(len(last))
    return {name: np.polyfit(numbers, [sample[name] for sample in last], 1)[0] for name in last[0]}


class Meter(Tracker):
    """Helds after each task."""

    def __init__(self) -> None:
        self.samples: list[Held] = []

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        self.samples.append(held())


LIMITS: Held = {"memory": 0.1, "handles": 0.05, "threads": 0.05}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forever", "mix_replay", "ewc", "aimmerging"])
def test_nothing_grows(base_config: RunConfig, tmp_path: Path, method: str) -> None:
    """Over the last 20 of 30 tasks; checkpoints are written all the time."""
    names = [f"task{number:02d}" for number in range(TASKS)]
    question = "What colour is it? Options: red, blue."
    tasks = [make_task(name, question, ("red", "blue"), rows=8, test=1) for name in names]
    save_data(tmp_path, Benchmark.sequence("many", "1", tasks))
    config = base_config.override(
        {
            "data.root": str(tmp_path),
            "data.benchmark": "many",
            "data.order": names,
            "data.metrics": dict.fromkeys(names, "exact_match"),
            "optim.epochs": 1,
            "memory.fraction": 0.125,  # an example a task
        }
    )
    config = RunConfig.parse(config.model_dump(mode="json") | {"method": {"name": method}})
    meter = Meter()
    place = Placement(device="cpu", checkpoint_s=0.0)
    run_local(config, tmp_path / "run", placement=place, trackers=[meter])
    assert len(meter.samples) == TASKS
    growth = slopes(meter.samples)
    assert {name: growth[name] for name in growth if growth[name] > LIMITS[name]} == {}
