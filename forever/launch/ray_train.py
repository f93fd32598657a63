"""One run on several workers with Ray Train: the same task loop in each, a rank of one world.

The run directory is the truth here too. Workers that are started again, after a crash or on another
node, go on from its checkpoints, so Ray Train stores nothing of its own that matters. On several
machines the directory must be shared.
"""

import gc
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import Placement, check, run_local
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


@dataclass(frozen=True)
class Setting:
    """What a process that Ray starts for a run must know.

    Attributes:
        placement: how the run uses its machine.
        mlflow: address of the MLflow store; None for no MLflow.
        share: what the run gets.
        cwd: where relative paths of the configuration begin.
        argv: the command that people know; it goes into environment.json.
    """

    placement: Placement
    mlflow: str | None
    share: Share
    cwd: str = field(default_factory=os.getcwd)
    argv: Sequence[str] = field(default_factory=lambda: list(sys.argv))

    def enter(self) -> None:
        """Make this process like that of the user.

        Ray gives each a folder and a command line of its own.
        """
        quiet()
        if Path(self.cwd).is_dir():
            os.chdir(self.cwd)
        sys.argv = list(self.argv)

    def train(
        self, config: RunConfig, path: Path, world: Any = None, trackers: Sequence[Tracker] = ()
    ) -> dict[str, Any]:
        """Train the run in this process, which is a rank of `world`; None is a world of its own.

        Returns:
            The content of result.json.
        """
        import torch

        if self.share.threads:
            torch.set_num_threads(self.share.threads)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # this process may have trained another run before
        placement = replace(self.placement, device=self.share.device)
        listeners = list(trackers)
        if self.mlflow is not None:  # it takes seconds to load
            from forever.launch.mlflow_tracker import MlflowTracker

            listeners.append(MlflowTracker(self.mlflow))
        try:
            return run_local(
                config, path, resume=True, trackers=listeners, placement=placement, world=world
            )
        finally:
            gc.collect()
            torch.cuda.empty_cache()


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
        tracking: address of the MLflow store; None for no MLflow.
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
        total, machines = capacity()
        share = divide(total, machines, 1, 1, workers, placement.device)
        follower = Follower(config, directory, benchmark, trackers)
        return train_group(config, directory.path, Setting(placement, tracking, share), follower)


def train_group(
    config: RunConfig, path: Path, setting: Setting, follower: Follower
) -> dict[str, Any]:
    """Start the workers of a run on the Ray that this process is connected to, and wait for them.

    Args:
        follower: looks at the run's directory meanwhile, in the calling thread.

    Returns:
        The content of result.json.

    Raises:
        InputError: a worker found something that only it could find. It is not started again.
        RuntimeError: see `run_workers`.
    """
    scratch = path / _SCRATCH
    # A name that is used again goes on with what lies there.
    shutil.rmtree(scratch, ignore_errors=True)
    # In the main thread Ray Train would turn Ctrl-C into an exit without a reason.
    pool = ThreadPoolExecutor(1)
    try:
        _follow(pool.submit(_trainer(config, path, setting).fit), follower)
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


def _trainer(config: RunConfig, path: Path, setting: Setting) -> ray.train.torch.TorchTrainer:
    on_gpu = setting.share.device == "cuda"
    # Both are endless by default: a group that cannot start would be started for ever.
    failures = ray.train.FailureConfig(max_failures=_FAILURES, controller_failure_limit=_FAILURES)
    return ray.train.torch.TorchTrainer(
        partial(_worker, config=config, path=path, setting=setting),
        torch_config=ray.train.torch.TorchConfig(backend="nccl" if on_gpu else "gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=setting.share.workers,
            use_gpu=on_gpu,
            resources_per_worker=dict(setting.share.resources),
        ),
        run_config=ray.train.RunConfig(
            name=_SCRATCH,
            storage_path=str(path),
            failure_config=failures,
            logging_config=ray.train.LoggingConfig(log_level="ERROR"),
            callbacks=[_Refusals()],
        ),
    )


class _Refusals(ray.train.UserCallback):
    """Ends the training at the first InputError.

    It would be the same the next time, unlike other failures.
    """

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            cause = first_cause(error)
            if isinstance(cause, InputError):
                raise cause


def _worker(config: RunConfig, path: Path, setting: Setting) -> None:
    """A rank: build its world and enter the loop."""
    from forever.training.world import World

    setting.enter()
    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    world = World(context.get_world_rank(), context.get_world_size(), device)
    result = setting.train(config, path, world)
    # A report is a barrier, so every rank makes this one; Ray keeps the leader's, and refuses
    # numbers of NumPy.
    ray.train.report({"op": result.get("op"), "bwt": result.get("bwt")})
