"""One run on workers of Ray Train, each a rank of one world.

The run directory is the truth. Workers that are restarted, after a crash or on another node, resume
from its checkpoints; Ray Train stores nothing that matters. On several machines the directory must
be shared, or the scratch folder of an address (docs/storage.md).
"""

import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray.train.torch

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch import cluster
from forever.launch.copies import download
from forever.launch.local import Prepared, prepare, run_allocated
from forever.launch.resources import Allocation, Resources, divide
from forever.runs.lock import in_progress, locked
from forever.runs.progress import Follower
from forever.runs.tracking import Tracker
from forever.stopping import Stopped, ask_to_stop, polling, received
from forever.storage.address import local_folder, portable
from forever.storage.store import HEARTBEAT_S

_FAILURES = 3
_STARTS = 100  # a day of waiting, where machines come: a spot one may not be had for hours
_PREEMPTIONS = 100  # a spot machine that is taken away is nobody's fault
_SCRATCH = ".ray_train"
_POLL_EVERY_S = 1.0
_RESIZE_EVERY_S = 60.0  # how often it is seen whether more workers, or fewer, have room
# Ray Train knows up to 20 s late that a machine went, and a group that counts on it never starts.
_ELASTIC_START_S = 60
_NOTICE_EVERY_S = 2.0  # a spot machine says half a minute or more before that it is taken away


def run_workers(
    prepared: Prepared, resources: Resources, trackers: Sequence[Tracker] = ()
) -> dict[str, Any]:
    """Train a run, or resume it, on `resources.workers` processes with one GPU or CPU each.

    It returns what is in result.json. Trackers hear in this process how far the workers are.

    Raises:
        InputError: see `launch.local.run_prepared`, or more workers than the cluster has devices.
        RuntimeError: workers failed more often than they are restarted.
    """
    directory = prepared.directory
    if in_progress(directory.path):
        # Nobody would see what a worker says that waits, and Ray Train's files are the other's.
        with locked(directory.path):
            directory.check(prepared.config, prepared.resume)
    finished = directory.finished()
    if finished is not None:
        return finished
    with cluster.connected(dashboard=True, logs=resources.ray_logs):
        allocation = divide(*cluster.capacity(), 1, replace(resources, concurrent=1))
        return train_group(prepared, allocation, trackers)


def train_group(
    prepared: Prepared, allocation: Allocation, trackers: Sequence[Tracker]
) -> dict[str, Any]:
    """Start the workers of a run on this process's Ray, and wait for them; see `run_workers`.

    The run's directory is read meanwhile, in the calling thread, for the trackers. Workers that
    are interrupted, as on a spot machine, are restarted: that is no failure.
    """
    path = prepared.directory.path
    follower = Follower(prepared.config, prepared.directory, prepared.benchmark, trackers)
    if allocation.least:
        os.environ[cluster.START_TIMEOUT] = str(_ELASTIC_START_S)
    interrupted = True
    while interrupted:
        cluster.await_room(allocation.resources, allocation.least or allocation.workers)
        with polling():
            interrupted = not _train_once(prepared.config, path, allocation, follower)
        if interrupted and received():
            raise Stopped(received())
    download(path)
    result = prepared.directory.finished()
    if result is None:
        raise RuntimeError(
            f"{path.name}: workers ended without a result; is {path} shared by all machines?"
        )
    return result


def _train_once(config: RunConfig, path: Path, allocation: Allocation, follower: Follower) -> bool:
    """Train with one group of workers; return whether it ended without being interrupted."""
    scratch = path / _SCRATCH
    # A name that is used again would resume what lies there.
    shutil.rmtree(scratch, ignore_errors=True)
    # In the main thread Ray Train would turn Ctrl-C into an exit without a reason.
    pool = ThreadPoolExecutor(1)
    training = pool.submit(_trainer(config, path, allocation).fit)
    over = saving = False
    downloaded = time.monotonic()
    try:
        while not over:
            over = bool(wait([training], timeout=_POLL_EVERY_S).done)
            if time.monotonic() - downloaded > HEARTBEAT_S:
                with suppress(InputError):  # the storage is away
                    download(path)
                downloaded = time.monotonic()
            with suppress(OSError):  # a file went away while it was read
                follower.poll()
            if received() and not over:
                if in_progress(path):
                    ask_to_stop(path)
                    saving = True
                elif not saving:
                    raise Stopped(received())  # there is nothing to save yet
                # Else the workers have saved and left. Ray Train is waited for until it knows: its
                # thread would use a cluster that is gone, and keep this process from ending.
        training.result()
    except ray.train.TrainingFailedError as error:
        cause = cluster.first_cause(error)
        if isinstance(cause, _Interrupted):
            return False
        if isinstance(cause, _NOT_AGAIN):
            raise cause from None
        raise RuntimeError(f"{path.name}: {cluster.reason(error)}") from error
    finally:
        pool.shutdown(wait=False)
        shutil.rmtree(scratch, ignore_errors=True)
    return True


def _trainer(config: RunConfig, path: Path, allocation: Allocation) -> ray.train.torch.TorchTrainer:
    most, least = allocation.workers, allocation.least
    workers = (least, most) if least else most
    # All are endless by default: a group that cannot start would be started for ever.
    starts = _STARTS if cluster.grows() else _FAILURES
    failures = ray.train.FailureConfig(
        max_failures=_FAILURES,
        controller_failure_limit=starts,
        max_preemption_failures=_PREEMPTIONS,
    )
    return ray.train.torch.TorchTrainer(
        partial(_worker, config=config, folder=portable(path), allocation=allocation),
        # A run that computes on the CPU may hold a GPU all the same.
        torch_config=ray.train.torch.TorchConfig(
            backend="nccl" if allocation.device == "cuda" else "gloo"
        ),
        scaling_config=ray.train.ScalingConfig(
            num_workers=workers,
            use_gpu="GPU" in allocation.resources,
            resources_per_worker=dict(allocation.resources),
            elastic_resize_monitor_interval_s=_RESIZE_EVERY_S,
        ),
        run_config=ray.train.RunConfig(
            name=_SCRATCH,
            storage_path=str(path),
            failure_config=failures,
            logging_config=ray.train.LoggingConfig(log_level="ERROR"),
            callbacks=[_Refusals()],
        ),
    )


class _Interrupted(RuntimeError):
    """A worker was interrupted; the leading one has saved."""


_NOT_AGAIN = (InputError, FloatingPointError, _Interrupted)


class _Refusals(ray.train.UserCallback):
    """Ends the training at an error that would be the same again, or is none."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            cause = cluster.first_cause(error)
            if isinstance(cause, _NOT_AGAIN):
                raise cause


def _worker(config: RunConfig, folder: str, allocation: Allocation) -> None:
    """Build the world of a rank and train."""
    from forever.world import World, pick_device

    cluster.prepare_process(allocation)
    context = ray.train.get_context()
    on_cpu = allocation.device == "cpu"
    device = pick_device("cpu") if on_cpu else ray.train.torch.get_device()
    world = World(context.get_world_rank(), context.get_world_size(), device)
    try:
        path = local_folder(folder)
        download(path)
        with _noticing(path, world.leads):
            run_allocated(prepare(config, path, resume=True), allocation, world=world)
    except Stopped:
        raise _Interrupted(f"rank {world.rank} was interrupted") from None


@contextmanager
def _noticing(path: Path, leads: bool) -> Iterator[None]:
    """Let the run save and leave when Ray says that a machine of its workers will be taken away.

    The question is one that all ranks ask together, so each has a thread for it. The leading one
    acts on the answer, by a file, as any process that wants a run to stop.
    """
    over = threading.Event()

    def ask() -> None:
        while not over.wait(_NOTICE_EVERY_S):
            if ray.train.get_preemption_info() is not None:
                if leads:
                    ask_to_stop(path)
                return

    threading.Thread(target=ask, daemon=True).start()
    try:
        yield
    finally:
        over.set()
