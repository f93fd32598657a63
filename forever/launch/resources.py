"""What a run or a sweep requests, what a cluster gives to each run, and what became of the runs."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from forever.errors import InputError
from forever.format import plural


@dataclass(frozen=True)
class Placement:
    """How a run uses its machine.

    Nothing here changes what is computed, up to rounding and the masks of dropout.
    """

    device: str = "auto"  # "cpu", "cuda", "cuda:1"; auto is a GPU where there is one
    micro_batch: int | None = None  # examples at once, which saves memory; None: a whole batch
    checkpoint_s: float = 60.0  # seconds between checkpoints within a task
    keep_stages: bool = False  # weights of every stage, where other runs can fork
    accept_changes: bool = False  # resume though data, model or code differ from the start
    # Seconds without a step after which a run hangs; 0 is never. The slowest steps that were seen,
    # reading a large model's checkpoint or a pass over a task, take minutes.
    hang_s: float = 1800.0


@dataclass(frozen=True)
class Resources:
    """What a command requests: how many runs, on which devices, and what happens around them."""

    concurrent: int | None = None  # runs at once; None is as many as fit
    # Ray Train workers of each run; 0 trains in the trial's own process, which starts ten seconds
    # faster. None is 1 on a cluster with GPUs, where a run must outlive a spot machine, and else 0.
    workers: int | None = None
    least: int | None = None  # workers with which a run trains where `workers` find no room
    gpus_per_run: float | None = None  # of Ray, for each worker; a fraction shares a GPU
    ray_logs: bool = False  # what Ray's processes print is shown here as well
    placement: Placement = Placement()
    mlflow: str | None = None  # address of the MLflow store
    retries: int = 1  # of a failed trial, each from its last checkpoint
    retry_failed: bool = False  # trials that failed for good in an earlier call are run again
    show: bool = True  # the live table


@dataclass(frozen=True)
class Allocation:
    """What one run is given, how many run at once, and the command that Ray's processes serve."""

    concurrent: int
    workers: int  # of Ray Train; 0 is the trial's own process
    placement: Placement  # with "cuda" or "cpu" as the device of each worker
    resources: dict[str, float]  # of each worker, in Ray's words
    threads: int | None  # of each worker; None leaves it to Ray
    least: int = 0  # workers, where a run may have fewer for a while; 0: it may not
    # Ray gives each process a folder and a command line of its own.
    cwd: str = field(default_factory=os.getcwd)
    argv: Sequence[str] = field(default_factory=lambda: list(sys.argv))

    @property
    def device(self) -> str:
        """The device of each worker, "cuda" or "cpu"."""
        return self.placement.device


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


def divide(
    total: Mapping[str, float], machines: int, runs: int, resources: Resources
) -> Allocation:
    """Find how many of `runs` fit on a cluster at once, so that none ever waits.

    A run without workers needs as much as with one. A run with `gpus_per_run` holds GPUs of Ray
    also where it computes on the CPU.

    Raises:
        InputError: it can never fit.
    """
    # On what each worker of a run computes, and how many workers a run has.
    device, gpus = resources.placement.device, resources.gpus_per_run
    on_gpu = device.startswith("cuda") or (device == "auto" and total.get("GPU", 0) > 0)
    placement = replace(resources.placement, device="cuda" if on_gpu else "cpu")
    workers = resources.workers
    if workers is None:
        workers = int(bool(os.environ.get("RAY_ADDRESS")) and total.get("GPU", 0) > 0)
    unit = "GPU" if on_gpu or gpus else "CPU"
    present, most, each = total.get(unit, 0), max(workers, 1), gpus or 1
    least = resources.least or most
    if each < 1 and most > 1:
        raise InputError(
            f"--gpus-per-run {each:g} with {plural(most, 'worker')}: workers of one run cannot "
            "share a GPU; give --workers 1, or whole GPUs"
        )

    # How many runs fit at once.
    concurrent = resources.concurrent or max(1, min(int(present / each) // most, runs))
    needed = concurrent * least * each
    if needed > present:
        raise InputError(
            f"{plural(concurrent, 'run')} at once with {plural(least, 'worker')} of {each:g} "
            f"{unit} each need {needed:g}, the cluster has {plural(int(present), unit)}"
        )
    least = least if least < most else 0
    if unit == "GPU":
        return Allocation(concurrent, workers, placement, {"GPU": each}, None, least)
    # Shares of more than one core could fail to fit on any one machine of several.
    threads = max(1, int(present) // (concurrent * most)) if machines == 1 else 1
    return Allocation(concurrent, workers, placement, {"CPU": threads}, threads, least)


def require_ray() -> None:
    """Raise InputError where Ray is not installed, before anything that imports it is loaded."""
    if find_spec("ray") is None:
        raise InputError("Ray is not installed; pip install 'forever-cl[ray]'")
