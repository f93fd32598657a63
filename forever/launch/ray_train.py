"""One run on several workers with Ray Train: the same task loop in each, a rank of one world.

The run directory is the truth here too. Workers that are started again, after a crash or on another
node, go on from its checkpoints, so Ray Train stores nothing of its own that matters. On several
machines the directory must be shared.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import Placement, check, run_local
from forever.launch.mlflow_tracker import MlflowTracker, tracking_uri
from forever.launch.ray_cluster import (
    Share,
    capacity,
    cluster,
    divide,
    first_cause,
    one_line,
    quiet,
)
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress, locked
from forever.runs.progress import Follower
from forever.runs.tracking import Tracker

_FAILURES = 3
_SCRATCH = ".ray_train"
_LOOK_EVERY_S = 1.0


def run_workers(
    config: RunConfig,
    path: Path,
    workers: int,
    resume: bool = False,
    placement: Placement = Placement(),
    tracking: str | None = None,
    trackers: Sequence[Tracker] = (),
) -> dict[str, Any]:
    """Run or go on with a run on `workers` processes with one GPU or CPU each.

    Args:
        tracking: URI of the MLflow store; None for no MLflow.
        trackers: told in this process how far the workers are.

    Returns:
        The content of result.json.

    Raises:
        InputError: see `launch.local.check`, or more workers than the cluster has devices.
        RuntimeError: workers failed more often than they are started again.
    """
    directory = RunDirectory(path)
    benchmark = check(config, directory, resume)
    if in_progress(directory.path):
        # The leading worker would wait as well, but nobody would see what it says.
        with locked(directory.path):
            directory.check(config, resume)
    finished = directory.finished()
    if finished is not None:
        return finished
    with cluster(dashboard=True):
        uri = tracking and tracking_uri(tracking)
        share = divide(*capacity(), runs=1, concurrent=1, workers=workers, device=placement.device)
        follower = Follower(config, directory, benchmark, *trackers)
        return train_group(
            config, directory.path, workers, placement, uri, share, os.getcwd(), follower
        )


def train_group(
    config: RunConfig,
    path: Path,
    workers: int,
    placement: Placement,
    tracking: str | None,
    share: Share,
    cwd: str,
    follower: Follower,
) -> dict[str, Any]:
    """Start the workers of a run on the Ray that this process is connected to, and wait for them.

    Args:
        cwd: where relative paths of the configuration begin.
        follower: looks at the run's directory meanwhile, in the calling thread.

    Returns:
        The content of result.json.

    Raises:
        InputError: a worker found something that only it could find. It is not started again.
        RuntimeError: see `run_workers`.
    """
    quiet()
    settings = {
        "config": config.model_dump(mode="json"),
        "path": str(path),
        "placement": asdict(replace(placement, device=share.device)),
        "tracking": tracking,
        "threads": share.threads,
        "cwd": cwd,
        "argv": sys.argv,
    }
    scratch = path / _SCRATCH
    # A name that is used again goes on with what lies there.
    shutil.rmtree(scratch, ignore_errors=True)
    # In the main thread Ray Train would turn Ctrl-C into an exit without a reason.
    pool = ThreadPoolExecutor(1)
    try:
        training = pool.submit(_trainer(settings, path, workers, share).fit)
        _follow(training, follower)
    except ray.train.TrainingFailedError as error:
        cause = first_cause(error)
        if isinstance(cause, InputError):
            raise cause from None
        raise RuntimeError(f"{path.name}: {one_line(error)}") from error
    finally:
        pool.shutdown(wait=False)
        shutil.rmtree(scratch, ignore_errors=True)
    result = RunDirectory(path).finished()
    if result is None:
        raise RuntimeError(
            f"{path.name}: workers ended without a result; is {path} shared by all machines?"
        )
    return result


def _follow(training: "Future[Any]", follower: Follower) -> None:
    over = False
    while not over:
        over = bool(wait([training], timeout=_LOOK_EVERY_S).done)
        # A file that went away while it was read: what is there now is told the next time.
        with suppress(OSError):
            follower.look()
    training.result()


def _trainer(
    settings: dict[str, Any], path: Path, workers: int, share: Share
) -> ray.train.torch.TorchTrainer:
    return ray.train.torch.TorchTrainer(
        _worker,
        train_loop_config=settings,
        torch_config=ray.train.torch.TorchConfig(backend="nccl" if share.gpu else "gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=workers, use_gpu=share.gpu, resources_per_worker=dict(share.resources)
        ),
        run_config=ray.train.RunConfig(
            name=_SCRATCH,
            storage_path=str(path),
            # Both are endless by default: a group that cannot start would be started for ever.
            failure_config=ray.train.FailureConfig(
                max_failures=_FAILURES, controller_failure_limit=_FAILURES
            ),
            logging_config=ray.train.LoggingConfig(log_level="ERROR"),
            callbacks=[_Refusals()],
        ),
    )


class _Refusals(ray.train.UserCallback):
    """Ends the training at the first InputError: it would be the same the next time, unlike other
    failures."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            if isinstance(cause := first_cause(error), InputError):
                raise cause


def _worker(settings: dict[str, Any]) -> None:
    """A rank: build its world and enter the loop."""
    import torch

    from forever.training.world import World

    if Path(settings["cwd"]).is_dir():
        os.chdir(settings["cwd"])  # Ray Train gives each worker a folder of its own
    sys.argv = settings["argv"]  # goes into environment.json
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    context = ray.train.get_context()
    world = World(context.get_world_rank(), context.get_world_size(), ray.train.torch.get_device())
    trackers = [MlflowTracker(settings["tracking"])] if settings["tracking"] else []
    config, path = RunConfig.parse(settings["config"]), Path(settings["path"])
    placement = Placement(**settings["placement"])
    result = run_local(
        config, path, resume=True, trackers=trackers, placement=placement, world=world
    )
    # A report is a barrier, so every rank makes this one; Ray keeps the leader's. Plain numbers: it
    # refuses NumPy's.
    ray.train.report({key: result.get(key) for key in ("op", "bwt")})
