"""One run on Ray: on workers of Ray Train, each a rank of one world, or as a trial of Ray Tune.

The run directory is the truth. Workers that are started again, after a crash or on another node, go
on from its checkpoints; Ray Train stores nothing that matters. On several machines the directory
must be shared.
"""

import gc
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray.train.torch
from ray import tune

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch import ray_cluster
from forever.launch.fleet import Fleet
from forever.launch.local import check, run_local
from forever.launch.sharing import first_task, first_task_key
from forever.runs.directory import RunDirectory, read_lines
from forever.runs.lock import in_progress, locked
from forever.runs.progress import Follower, is_run, stage_scores
from forever.runs.tracking import Tracker

_FAILURES = 3
_SCRATCH = ".ray_train"
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class Setting:
    """What a process that Ray starts for a run must know."""

    fleet: Fleet
    share: ray_cluster.Share
    # Ray gives each process a folder and a command line of its own.
    cwd: str = field(default_factory=os.getcwd)
    argv: Sequence[str] = field(default_factory=lambda: list(sys.argv))

    def enter(self) -> None:
        """Make this process like that of the user."""
        ray_cluster.quiet()
        if Path(self.cwd).is_dir():
            os.chdir(self.cwd)
        sys.argv = list(self.argv)

    def train(
        self,
        config: RunConfig,
        path: Path,
        world: Any = None,
        trackers: Sequence[Tracker] = (),
        benchmark: Benchmark | None = None,
    ) -> dict[str, Any]:
        """Train the run here, as a rank of `world` or alone; returns what is in result.json."""
        import torch

        if self.share.threads:
            torch.set_num_threads(self.share.threads)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # this process may have trained another run before
        placement = replace(self.fleet.placement, device=self.share.device)
        try:
            return run_local(
                config,
                path,
                resume=True,
                trackers=trackers,
                placement=placement,
                world=world,
                benchmark=benchmark,
            )
        finally:
            gc.collect()
            torch.cuda.empty_cache()


def run_workers(
    config: RunConfig,
    path: Path,
    fleet: Fleet,
    resume: bool = False,
    trackers: Sequence[Tracker] = (),
) -> dict[str, Any]:
    """Run or go on with a run on `fleet.workers` processes with one GPU or CPU each.

    It returns what is in result.json. Trackers are told in this process how far the workers are.

    Raises:
        InputError: see `launch.local.check`, or more workers than the cluster has devices.
        RuntimeError: workers failed more often than they are started again.
    """
    directory = RunDirectory(path)
    benchmark = check(config, directory, resume)
    if in_progress(directory.path):
        # Nobody would see what a worker says that waits, and Ray Train's files are the other's.
        with locked(directory.path):
            directory.check(config, resume)
    finished = directory.finished()
    if finished is not None:
        return finished
    with ray_cluster.cluster(dashboard=True):
        total, machines = ray_cluster.capacity()
        share = ray_cluster.divide(
            total, machines, 1, 1, fleet.workers or 1, fleet.placement.device
        )
        follower = Follower(config, directory, benchmark, trackers)
        return train_group(config, directory.path, Setting(fleet, share), follower)


def train_group(
    config: RunConfig, path: Path, setting: Setting, follower: Follower
) -> dict[str, Any]:
    """Start the workers of a run on this process's Ray, and wait for them; see `run_workers`.

    The follower looks at the run's directory meanwhile, in the calling thread.
    """
    scratch = path / _SCRATCH
    # A name that is used again goes on with what lies there.
    shutil.rmtree(scratch, ignore_errors=True)
    # In the main thread Ray Train would turn Ctrl-C into an exit without a reason.
    pool = ThreadPoolExecutor(1)
    training, over = pool.submit(_trainer(config, path, setting).fit), False
    try:
        while not over:
            over = bool(wait([training], timeout=_LOOK_EVERY_S).done)
            with suppress(OSError):  # a file went away while it was read
                follower.look()
        training.result()
    except ray.train.TrainingFailedError as error:
        cause = ray_cluster.first_cause(error)
        if isinstance(cause, InputError):
            raise cause from None
        raise RuntimeError(f"{path.name}: {ray_cluster.one_line(error)}") from error
    finally:
        pool.shutdown(wait=False)
        shutil.rmtree(scratch, ignore_errors=True)
    result = RunDirectory(path).finished()
    if result is None:
        raise RuntimeError(
            f"{path.name}: workers ended without a result; is {path} shared by all machines?"
        )
    return result


def _trainer(config: RunConfig, path: Path, setting: Setting) -> ray.train.torch.TorchTrainer:
    # Both are endless by default: a group that cannot start would be started for ever.
    failures = ray.train.FailureConfig(max_failures=_FAILURES, controller_failure_limit=_FAILURES)
    return ray.train.torch.TorchTrainer(
        partial(_worker, config=config, path=path, setting=setting),
        scaling_config=ray.train.ScalingConfig(
            num_workers=setting.share.workers,
            use_gpu=setting.share.device == "cuda",
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
    """Ends the training at the first InputError: it would be the same the next time."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            cause = ray_cluster.first_cause(error)
            if isinstance(cause, InputError):
                raise cause


def _worker(config: RunConfig, path: Path, setting: Setting) -> None:
    """Build the world of a rank and enter the loop."""
    from forever.training.world import World

    setting.enter()
    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    world = World(context.get_world_rank(), context.get_world_size(), device)
    setting.train(config, path, world)


# ---- a trial of Ray Tune, in the process that it gets


def train_trial(params: Mapping[str, Any], folder: Path, setting: Setting) -> None:
    """Train one run here, or wait for workers that do; what an earlier call did of it is kept."""
    setting.enter()
    config, path = RunConfig.parse(params["run"]), folder / params["key"]
    directory, share, fleet = RunDirectory(path), setting.share, setting.fleet
    try:
        benchmark = check(config, directory, resume=True)
        place = (share.device, share.workers, share.threads, fleet.placement.micro_batch)
        with first_task(first_task_key(config, benchmark, *place), directory) as left:
            placement = replace(fleet.placement, first_task=left)
            setting = replace(setting, fleet=replace(fleet, placement=placement))
            if share.workers:
                follower = Follower(config, directory, benchmark, [_Report()])
                train_group(config, path, setting, follower)
            else:
                setting.train(config, path, trackers=[_Report()], benchmark=benchmark)
    except InputError as error:
        tune.report({"refused": str(error)})  # it would be the same the next time


class _Report(Tracker):
    """Tells Tune of each stage, also of the `earlier` ones of a run that goes on.

    `stage` counts on over retries, as Tune's own iterations do not.
    """

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        self.directory, self.stages = directory, len(benchmark.stages)
        # Workers may not have begun yet.
        self.earlier = len(stage_scores(directory)) if is_run(directory.path) else 0

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        kinds = [line["kind"] for line in read_lines(self.directory.events)]
        report = {"key": self.directory.path.name, "stage": number + 1, "stages": self.stages}
        report |= {"earlier": self.earlier, "op": scores["op"]}
        report["replays"] = kinds.count("replay") + kinds.count("consolidation")
        tune.report(report)
