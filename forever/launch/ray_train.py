"""One run on several workers with Ray Train: the same task loop in each, a rank of one world.

The run directory is the truth here too. Workers that are started again, after a crash or on another node, go on from
its checkpoints, so Ray Train stores nothing of its own that matters. On several machines the directory must be shared.
"""

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch

from forever.config import RunConfig
from forever.launch.local import Placement, check, run_local
from forever.launch.mlflow_tracker import MlflowTracker, tracking_uri
from forever.launch.ray_cluster import Share, capacity, cluster, divide, one_line, quiet
from forever.run_directory import RunDirectory

_FAILURES = 3
_SCRATCH = ".ray_train"


def run_workers(
    config: RunConfig,
    path: Path,
    workers: int,
    resume: bool = False,
    placement: Placement = Placement(),
    tracking: str | None = None,
) -> dict[str, Any]:
    """Run or go on with a run on `workers` processes with one GPU or CPU each.

    Args:
        tracking: URI of the MLflow store; None for no MLflow.

    Returns:
        The content of result.json.

    Raises:
        InputError: see `launch.local.check`, or more workers than the cluster has devices.
        RuntimeError: workers failed more often than they are started again.
    """
    directory = RunDirectory(path)
    check(config, directory, resume)
    finished = directory.finished()
    if finished is not None:
        return finished
    with cluster(dashboard=True):
        uri = tracking and tracking_uri(tracking)
        share = divide(*capacity(), runs=1, concurrent=1, workers=workers, device=placement.device)
        return train_group(config, directory.path, workers, placement, uri, share, os.getcwd())


def train_group(
    config: RunConfig, path: Path, workers: int, placement: Placement, tracking: str | None, share: Share, cwd: str
) -> dict[str, Any]:
    """Start the workers of a run on the Ray that this process is connected to, and wait for them.

    Args:
        cwd: where relative paths of the configuration begin.

    Returns:
        The content of result.json.

    Raises:
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
    }
    scratch = path / _SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)  # a name that is used again goes on with what lies there
    trainer = ray.train.torch.TorchTrainer(
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
            failure_config=ray.train.FailureConfig(max_failures=_FAILURES, controller_failure_limit=_FAILURES),
            logging_config=ray.train.LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        trainer.fit()
    except ray.train.TrainingFailedError as error:
        raise RuntimeError(f"{path.name}: {one_line(error)}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    result = RunDirectory(path).finished()
    if result is None:
        raise RuntimeError(f"{path.name}: workers ended without a result; is {path} shared by all machines?")
    return result


def _worker(settings: dict[str, Any]) -> None:
    """A rank: build its world and enter the loop."""
    import torch

    from forever.world import World

    if Path(settings["cwd"]).is_dir():
        os.chdir(settings["cwd"])  # Ray Train gives each worker a folder of its own
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    context = ray.train.get_context()
    world = World(context.get_world_rank(), context.get_world_size(), ray.train.torch.get_device())
    trackers = [MlflowTracker(settings["tracking"])] if settings["tracking"] else []
    config, path = RunConfig.parse(settings["config"]), Path(settings["path"])
    placement = Placement(**settings["placement"])
    result = run_local(config, path, resume=True, trackers=trackers, placement=placement, world=world)
    # A report is a barrier, so every rank makes this one; Ray keeps the leader's. Plain numbers: it refuses NumPy's.
    ray.train.report({key: result.get(key) for key in ("op", "bwt")})
