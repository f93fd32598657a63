"""One run of a sweep, in the process that Ray Tune starts for it.

Ray Train, which takes a second to import, is loaded only if the run has workers.
"""

import sys
from collections.abc import Mapping
from typing import Any

from ray import tune
from ray.tune.execution.class_cache import ENV_VARS_TO_PROPAGATE

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.files import read_lines
from forever.launch.copies import settle
from forever.launch.fleet import Share
from forever.launch.local import check
from forever.launch.ray_cluster import Setting
from forever.runs.directory import RunDirectory
from forever.runs.progress import Follower, is_run, stage_scores
from forever.runs.tracking import Tracker
from forever.stopping import Stopped
from forever.storage.address import local_folder
from forever.storage.copying import readable

# Tune hands keys of S3 to its processes in a way that Ray writes into its logs; all machines have
# their own (docs/storage.md).
ENV_VARS_TO_PROPAGATE -= {name for name in ENV_VARS_TO_PROPAGATE if name.startswith("AWS_")}


def train_trial(params: Mapping[str, Any], folder: str, setting: Setting) -> None:
    """Train one run here, or wait for workers that do; what an earlier call did of it is kept.

    `folder` is the sweep's, as machines call it (`storage.address.portable`).
    """
    config, path = RunConfig.parse(params["run"]), local_folder(folder) / params["key"]
    directory = RunDirectory(path)
    try:
        setting.enter()
        settle(path, readable)
        benchmark = check(config, directory, resume=True)
        if setting.share.workers:
            from forever.launch.ray_train import train_group

            follower = Follower(config, directory, benchmark, [_Report()])
            train_group(config, path, setting, follower)
        else:
            setting.train(config, path, trackers=[_Report()], benchmark=benchmark)
    except InputError as error:
        tune.report({"refused": str(error)})  # it would be the same the next time
    except Stopped:
        tune.report({"told to stop": True})  # it has saved, and goes on another time
    except _Enough:
        sys.exit(0)  # as Tune ends a trial


class _Enough(BaseException):
    """Tune wants no more of this trial. Its own SystemExit would pass for a tracker that failed,
    and the run would go on in a process that Tune gives to the next one."""


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
        try:
            tune.report(report)
        except SystemExit:
            raise _Enough from None


def trial_resources(share: Share, total: Mapping[str, float]) -> dict[str, float]:
    """What a trial of a sweep holds.

    One that trains by itself holds what it trains on. One that only waits for its workers holds
    nothing that they need: it could take the last CPU, and they would wait for ever. It holds one
    of the `trial_slot`s that a cluster may offer on nodes that are not spot, or else a thousandth
    of the head node's own label, which puts it where it survives.
    """
    if not share.workers:
        return {name.lower(): amount for name, amount in share.resources.items()}
    if total.get("trial_slot"):
        return {"trial_slot": 1}
    return {"node:__internal_head__": 0.001}
