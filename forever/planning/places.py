"""Where the runs of a plan would go, and how fast that is: Ray's resources, and a calibration."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
from forever.planning.costs import Speed

if TYPE_CHECKING:  # a plan that is refused loads no torch
    from forever.planning.counts import Pace

CALIBRATION_S = 20.0
_PILOTS = 1 / 4  # of that time, if there is a run by the model clock


@dataclass(frozen=True)
class Place:
    """Where the runs go: how many at a time, on which device, with how many threads (None:
    PyTorch's own choice)."""

    concurrent: int
    device: str
    threads: int | None
    text: str


def find_place(
    runs: int, by_ray: bool, device: str, concurrent: int | None, workers: int | None = None
) -> Place:
    """How many of `runs` fit at a time, with `workers` each, on what Ray has, or would have here.

    Raises:
        InputError: `concurrent` of them never fit.
    """
    import torch

    from forever.training.world import pick_device

    if not by_ray or find_spec("ray") is None:
        why = (
            "one after another by `forever run`"
            if not by_ray
            else "one at a time, Ray is not installed"
        )
        return Place(1, str(pick_device(device)), None, why)
    from forever.launch.ray_cluster import capacity, cluster, default_workers, divide

    if os.environ.get("RAY_ADDRESS"):
        with cluster(dashboard=False):
            total, machines = capacity()
    else:
        # What Ray would find here; to start it for that takes ten seconds.
        total, machines = (
            {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())},
            1,
        )
    each = default_workers(total) if workers is None else workers
    share = divide(total, machines, runs, concurrent, each, device)
    where = f"Ray's {total.get('CPU', 0):.0f} CPUs and {total.get('GPU', 0):.0f} GPUs"
    threads = f" with {share.threads} thread{'s' * (share.threads > 1)}" if share.threads else ""
    group = f", {each} workers each," if each > 1 else ""
    return Place(
        share.concurrent,
        share.device,
        share.threads,
        f"{share.concurrent} at a time{group}{threads} on {where}",
    )


@dataclass(frozen=True)
class Measured:
    """What a calibration found: the speed of each `group` of runs, the encoder of each `tokenizer`,
    and the pace of each `course` of runs by the model clock."""

    speeds: Mapping[str, Speed] = field(default_factory=dict)
    encoders: Mapping[str, Any] = field(default_factory=dict)
    paces: "Mapping[str, Pace]" = field(default_factory=dict)


def calibrated(
    configs: Sequence[RunConfig], place: Place, micro_batch: int | None = None
) -> Measured:
    """Measure what these runs need, with so many rows on a device at once (None: the whole batch).

    Raises:
        InputError: the runs would have a device that is not here.
    """
    begun = time.perf_counter()
    import torch

    from forever.planning.pilot import pilot
    from forever.planning.speed import calibrate, load_libraries
    from forever.training.world import pick_device

    if place.device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "--calibrate: the runs would have GPUs of the cluster, and this machine has none; plan on a machine "
            "with one (`ray job submit --entrypoint-num-gpus 1`), or state --tokens-per-second"
        )
    device = pick_device(place.device)
    # The first run stands for its group.
    groups = {group(config): config for config in reversed(configs)}
    courses = {course(config): config for config in reversed(configs) if by_model_clock(config)}
    training_s = CALIBRATION_S * _PILOTS if courses else 0.0
    speeds: dict[str, Speed] = {}
    encoders: dict[str, Any] = {}
    paces: dict[str, Pace] = {}
    with _threads(place.threads):
        load_libraries(device)
        libraries = time.perf_counter() - begun  # the process of each run loads them, too
        for name, config in groups.items():
            benchmark = load_benchmark(config.data)
            speed, encoder = calibrate(
                config, benchmark, device, (CALIBRATION_S - training_s) / len(groups), micro_batch
            )
            speeds[name] = Speed(speed.rates, speed.start + libraries)
            encoders[tokenizer(config)] = encoder
        for name, config in courses.items():
            share_s = training_s / len(courses)
            paces[name] = pilot(config, load_benchmark(config.data), device, share_s, micro_batch)
    return Measured(speeds, encoders, paces)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """As many threads as a run of the sweep gets, so that it is not taken to be faster than it will
    be."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def group(config: RunConfig) -> str:
    """Runs that compute alike: tokens and updates differ in number, but not in what they take."""
    return f"{config.method.name} {config.optim.batch_size} {config.model.model_dump_json()}"


def by_model_clock(config: RunConfig) -> bool:
    """Whether the number of a run's replays hangs on how far its updates move."""
    return getattr(config.method, "clock", "") == "model"


def course(config: RunConfig) -> str:
    """Runs whose updates on the tasks move about equally far, replays or not."""
    return config.model_dump_json(include={"model", "data", "optim"})


def tokenizer(config: RunConfig) -> str:
    return f"{config.model.name} {config.model.max_length}"
