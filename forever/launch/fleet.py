"""What a sweep and a search share: how their runs are spread, and what became of them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from forever.errors import InputError
from forever.format import plural
from forever.launch.local import Placement


@dataclass(frozen=True)
class Fleet:
    """How the runs of a sweep or a search are spread."""

    concurrent: int | None = None  # runs at once; None is as many as fit
    # Ray Train workers of each run; 0 trains in the trial's own process, which starts ten seconds
    # faster. None is 1 on a cluster with GPUs, where a run must outlive a spot machine, and else 0.
    workers: int | None = None
    least: int | None = None  # workers with which a run goes on where `workers` find no room
    gpus_per_run: float | None = None  # of Ray, for each worker; a fraction shares a GPU
    ray_logs: bool = False  # what Ray's processes print is shown here as well
    placement: Placement = Placement()
    mlflow: str | None = None  # address of the MLflow store
    retries: int = 1  # of a failed trial, each from its last checkpoint
    retry_failed: bool = False  # trials that failed for good in an earlier call go on
    show: bool = True  # the live table


@dataclass
class SweepOutcome:
    """What became of the trials of a sweep, by key."""

    finished: list[str] = field(default_factory=list)  # now
    failed: dict[str, str] = field(default_factory=dict)  # with one line each on the reason
    skipped: list[str] = field(default_factory=list)  # had their result before
    stopped: list[str] = field(default_factory=list)  # were given up early, by a search

    def add(self, other: "SweepOutcome") -> None:
        """Put in the trials of another round."""
        self.finished += other.finished
        self.failed |= other.failed
        self.skipped += other.skipped
        self.stopped += other.stopped


@dataclass(frozen=True)
class Share:
    """What one run gets, and how many run at once."""

    concurrent: int
    workers: int  # of Ray Train; 0 is the trial's own process
    device: str  # of each worker, "cuda" or "cpu"
    resources: dict[str, float]  # of each worker, in Ray's words
    threads: int | None  # of each worker; None leaves it to Ray
    least: int = 0  # workers, where a run may have fewer for a while; 0: it may not


def divide(total: Mapping[str, float], machines: int, runs: int, fleet: Fleet) -> Share:
    """Find how many of `runs` fit on a cluster at once, so that none ever waits.

    A run without workers needs as much as with one. A run of a fleet with `gpus_per_run` holds GPUs
    of Ray also where it computes on the CPU.

    Raises:
        InputError: it can never fit.
    """
    workers, device, gpus = fleet.workers, fleet.placement.device, fleet.gpus_per_run
    if workers is None:
        workers = int(bool(os.environ.get("RAY_ADDRESS")) and total.get("GPU", 0) > 0)
    on_gpu = device.startswith("cuda") or (device == "auto" and total.get("GPU", 0) > 0)
    unit = "GPU" if on_gpu or gpus else "CPU"
    present, most, each = total.get(unit, 0), max(workers, 1), gpus or 1
    least = fleet.least or most
    if each < 1 and most > 1:
        raise InputError(
            f"--gpus-per-run {each:g} with {plural(most, 'worker')}: workers of one run cannot "
            "share a GPU; give --workers 1, or whole GPUs"
        )
    concurrent = fleet.concurrent or max(1, min(int(present / each) // most, runs))
    needed = concurrent * least * each
    if needed > present:
        raise InputError(
            f"{plural(concurrent, 'run')} at once with {plural(least, 'worker')} of {each:g} "
            f"{unit} each need {needed:g}, the cluster has {plural(int(present), unit)}"
        )
    least = least if least < most else 0
    if unit == "GPU":
        where = "cuda" if on_gpu else "cpu"
        return Share(concurrent, workers, where, {"GPU": each}, None, least)
    # Shares of more than one core could fail to fit on any one machine of several.
    threads = max(1, int(present) // (concurrent * most)) if machines == 1 else 1
    return Share(concurrent, workers, "cpu", {"CPU": threads}, threads, least)


def require_ray() -> None:
    """Raise InputError where Ray is not installed, before anything that imports it is loaded."""
    if find_spec("ray") is None:
        raise InputError("Ray is not installed; pip install 'forever-cl[ray]'")
