"""One trial of a sweep, in the process that Ray Tune gives it: train here, or wait for workers that
do."""

import gc
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.local import Placement, check, run_local
from forever.launch.mlflow_tracker import MlflowTracker
from forever.launch.ray_cluster import Share, quiet
from forever.launch.ray_train import train_group
from forever.runs.directory import RunDirectory, read_lines
from forever.runs.progress import Follower, is_run, stage_scores
from forever.runs.tracking import SilentTracker, Tracker


def train_trial(params: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """One run. What an earlier invocation did of it is kept."""
    quiet()
    if Path(settings["cwd"]).is_dir():
        # Tune gives each trial a folder of its own; relative paths begin in the user's.
        os.chdir(settings["cwd"])
    # The command that people know goes into environment.json, not that of Ray's worker.
    sys.argv = settings["argv"]
    config = RunConfig.parse(params.get("run") or settings["runs"][params["key"]])
    path = Path(settings["out"]) / params["key"]
    try:
        (_with_workers if settings["workers"] else _alone)(config, path, settings)
    except InputError as error:
        tune.report({"refused": str(error)})  # it would be the same the next time


def _alone(config: RunConfig, path: Path, settings: Mapping[str, Any]) -> None:
    import torch

    if settings["share"]["threads"]:
        torch.set_num_threads(settings["share"]["threads"])
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()  # this process may have trained another run before
    trackers: list[Tracker] = [_Report()]
    if settings["mlflow"]:
        trackers.append(MlflowTracker(settings["mlflow"]))
    try:
        run_local(
            config,
            path,
            resume=True,
            trackers=trackers,
            placement=Placement(**settings["placement"]),
        )
    finally:
        gc.collect()
        torch.cuda.empty_cache()


class _Report(SilentTracker):
    """Tells Tune of each stage. `stage` counts on over retries, as Tune's own iterations do not.

    Also the stages of an earlier life are told, at once; `earlier` says how many they are.
    """

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        self.directory = directory
        # Workers may not have begun yet.
        earlier = len(stage_scores(directory)) if is_run(directory.path) else 0
        self.known = {"stages": len(benchmark.stages), "earlier": earlier}

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        replays = sum(
            line["kind"] in ("replay", "consolidation")
            for line in read_lines(self.directory.events)
        )
        tune.report({"stage": number + 1, "op": scores["op"], "replays": replays, **self.known})


def _with_workers(config: RunConfig, path: Path, settings: Mapping[str, Any]) -> None:
    """Start the workers and tell Tune what appears in the run's directory: they cannot speak to
    Tune themselves."""
    directory = RunDirectory(path)
    follower = Follower(config, directory, check(config, directory, resume=True), _Report())
    arguments = (settings["workers"], Placement(**settings["placement"]), settings["mlflow"])
    train_group(config, path, *arguments, Share(**settings["share"]), settings["cwd"], follower)
