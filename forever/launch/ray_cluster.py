"""A Ray cluster to run on: joined or started, quiet, and how many runs fit on it at once."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from forever.errors import InputError
from forever.runs.environment import without_credentials

try:
    import ray
except ImportError:
    raise InputError("Ray is not installed; pip install 'forever-cl[ray]'") from None

# What Ray is told unless the user says otherwise.
_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # with verbose=0: 3 lines a sweep instead of 70; the table is ours
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    # No CSV, JSON and TensorBoard copies of what the journal holds.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Tune would save a state that nobody restores, and return as if all were well.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "600",
    # A refusal is a report without the score that a scheduler reads.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # Ray's memory monitor ends a whole sweep for one trial that takes too much. The kernel kills
    # that one trial only, which is a failure like any other.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # The default waits for ever for a rank that died. Nothing between two reports takes as long as
    # this.
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "1800",
    # A spot node takes minutes to come up; the default gives a worker group one.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "900",
}


def quiet() -> None:
    """Set Ray's options for this process and those that it starts."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # They print a traceback for each failed trial; the outcome has a line.
    for chatty in ("ray.tune", "ray.train"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)


@contextmanager
def cluster(dashboard: bool) -> Iterator[None]:
    """Ray for the duration of the block.

    Joins the cluster that RAY_ADDRESS names, as it does under `ray job submit` and on a cluster's
    nodes; otherwise starts one on this machine that ends with the block. A Ray that runs already in
    this process is used as it is.

    Args:
        dashboard: needed by Ray Train: without it the workers of a killed trial keep their place
        for ever.
    """
    quiet()
    if ray.is_initialized():
        yield
        return
    silent: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(**silent)
    else:
        # Nothing large travels through the object store, and the default takes a third of the
        # memory.
        ray.init(
            address="local", include_dashboard=dashboard, object_store_memory=200 * 2**20, **silent
        )
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Share:
    """What one run gets. `concurrent` runs at once, each with workers that have one device each.

    Attributes:
        resources: of one worker, in Ray's words.
        threads: for PyTorch in each worker; None leaves it to Ray, which gives a worker with a GPU
        one.
    """

    concurrent: int
    gpu: bool
    resources: dict[str, float]
    threads: int | None

    @property
    def device(self) -> str:
        return "cuda" if self.gpu else "cpu"


def divide(
    total: Mapping[str, float],
    machines: int,
    runs: int,
    concurrent: int | None,
    workers: int,
    device: str,
) -> Share:
    """Find a number of concurrent runs for which all workers of all of them fit at the same time,
    so none ever waits.

    Args:
        total, machines: see `capacity`.
        runs: how many there are to do.
        concurrent: runs at once; None is as many as fit.
        workers: of a run; 0 is the trial's own process, which needs as much as one.
        device: as in `Placement`.

    Raises:
        InputError: it can never fit; says what is short.
    """
    gpu = device.startswith("cuda") or (device == "auto" and total.get("GPU", 0) > 0)
    unit = "GPU" if gpu else "CPU"
    have, each = int(total.get(unit, 0)), max(workers, 1)
    there_is = f"the cluster has {have} {unit}{'s' * (have != 1)}"
    if each > have:
        raise InputError(
            f"{each} worker{'s' * (each > 1)} with 1 {unit} each are asked for, {there_is}"
        )
    if concurrent is None:
        concurrent = max(1, min(have // each, runs))
    if concurrent * each > have:
        raise InputError(
            f"{concurrent} runs at once with {each} worker{'s' * (each > 1)} of 1 {unit} each "
            f"need {concurrent * each}, {there_is}"
        )
    if gpu:
        return Share(concurrent, True, {"GPU": 1}, None)
    # Shares of more than one core could fail to fit on any one machine of several.
    threads = have // (concurrent * each) if machines == 1 else 1
    return Share(concurrent, False, {"CPU": threads}, threads)


def capacity() -> tuple[dict[str, float], int]:
    """What the cluster has, or may grow to, and on how many machines."""
    now = ray.cluster_resources()
    try:
        # An autoscaling cluster begins without GPUs. Ray Train asks here too; there is no public
        # function.
        from ray._private.state import state

        later = state.get_max_resources_from_cluster_config() or {}
    except (ImportError, AttributeError, RuntimeError):
        later = {}
    machines = sum(node["Alive"] for node in ray.nodes()) + bool(later)
    return {name: max(now.get(name, 0), later.get(name, 0)) for name in {*now, *later}}, machines


def default_workers(total: Mapping[str, float]) -> int:
    """Ray Train workers a run if nobody says: 1 on a cluster with GPUs, whose machines come and go,
    0 on one machine, where the trial's own process starts ten seconds faster."""
    return int(bool(os.environ.get("RAY_ADDRESS")) and total.get("GPU", 0) > 0)


def driver_seat(cluster: Mapping[str, float]) -> dict[str, float]:
    """What a trial holds that only waits for its Ray Train workers: nothing that they need.

    A driver that held a CPU could take the last one, and its workers would wait for ever; so would
    all drivers of a sweep for each other's. A cluster may offer `trial_slot`s on nodes that are not
    spot, which then also bound the trials of all its sweeps. Otherwise a thousandth of the head
    node's own label: every cluster has it, nothing else asks for it, and it puts drivers where they
    survive.
    """
    return {"trial_slot": 1} if cluster.get("trial_slot") else {"node:__internal_head__": 0.001}


def one_line(error: BaseException) -> str:
    """The first cause of an error, without Ray's wrapping and tracebacks."""
    error = first_cause(error)
    kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    lines = [line.strip() for line in without_credentials(str(error)).splitlines()]
    return kind + next(filter(None, lines), "")


def first_cause(error: BaseException) -> BaseException:
    """What was raised in the beginning: in a worker, an actor, or here."""
    failures = getattr(error, "worker_failures", None) or {}
    # Ray Train keeps a worker's exception under a private name; its text is the traceback.
    names = ("controller_failure", "cause", "_base_exc", "__cause__")
    for inner in (*failures.values(), *(getattr(error, name, None) for name in names)):
        if isinstance(inner, BaseException):
            return first_cause(inner)
    return error
