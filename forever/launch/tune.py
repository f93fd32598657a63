"""Many runs with Ray Tune: what is missing is fanned out, failures stay with the run that has them.

Run directories say what is done, so Tune's own state is never restored: each call is a fresh
experiment over what has no result, and each run resumes from its own checkpoints. It can be killed
at any moment, by any means, and the same command resumes it.
"""

import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.execution.class_cache import ENV_VARS_TO_PROPAGATE
from ray.tune.search import Searcher

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.files import read_lines
from forever.launch import cluster
from forever.launch.copies import download, upload
from forever.launch.local import prepare, run_allocated
from forever.launch.resources import Allocation, Resources, SweepOutcome, divide
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress
from forever.runs.progress import is_run, stage_scores
from forever.runs.tracking import Tracker
from forever.stopping import Stopped, ask_to_stop
from forever.storage.address import local_folder, portable
from forever.sweeps.search import SearchStudy
from forever.sweeps.sweep import Trial
from forever.sweeps.table import SweepTable

_SCRATCH = ".tune"
_TO_SAVE_S = 15.0  # who sends SIGTERM usually waits for half a minute before SIGKILL

# Tune hands keys of S3 to its processes in a way that Ray writes into its logs; all machines have
# their own (docs/storage.md).
ENV_VARS_TO_PROPAGATE -= {name for name in ENV_VARS_TO_PROPAGATE if name.startswith("AWS_")}


# ---- in the process of the command


def fan_out(
    trials: Iterable[Trial],
    folder: Path,
    resources: Resources,
    table: SweepTable,
    outcome: SweepOutcome,
    *,
    count: int,
    study: SearchStudy | None = None,
) -> None:
    """Run trials in `folder`, as many at a time as fit, and add to `outcome` what becomes of them.

    The next trial is taken when there is room for it. Trials that were interrupted are resumed
    after the others.

    Args:
        count: of all trials of the sweep, or the most that will come; with fewer, each gets more
            threads. Those that have ended count, too: a sweep that is resumed has as many threads
            as before, and so the same bits.
        study: gets OP after each stage of a trial, once, and says whether the trial stops there;
            gets its end. All calls come in this thread.

    Raises:
        InputError: no run has room.
        Stopped: the command was interrupted; the runs have saved.
    """
    mirrored: Any = nullcontext(lambda: None)
    if resources.mlflow is not None:  # it takes seconds to load
        from forever.launch.mlflow.tracker import mirrored_sweep

        mirrored = mirrored_sweep(folder, resources.mlflow, table.say, outcome.failed)
    connected = cluster.connected(dashboard=bool(resources.workers), logs=resources.ray_logs)
    with mirrored as tell_mlflow, connected:
        # What each trial gets.
        total, machines = cluster.capacity()
        allocation = divide(total, machines, count, resources)
        needed = trial_resources(allocation, total)
        cluster.await_room(needed)
        trainable = tune.with_parameters(
            train_trial, folder=portable(folder), allocation=allocation
        )

        # How Tune runs them; what was interrupted is resumed in a process of its own.
        runs = _Runs(folder, table, outcome, study, tell_mlflow)
        scratch = folder / _SCRATCH
        trainable = tune.with_resources(trainable, needed)
        while trials:
            tune_config = tune.TuneConfig(
                search_alg=_Queue(iter(trials), runs),
                num_samples=-1,
                max_concurrent_trials=allocation.concurrent,
                # torch is imported once a process and not once a trial. But the workers of a trial
                # end with its process: in one that lives on, a stopped run would train on.
                reuse_actors=not allocation.workers,
                trial_dirname_creator=lambda trial: trial.config["key"],
            )
            run_config = tune.RunConfig(
                name=uuid.uuid4().hex,  # one used again would mix two experiments
                storage_path=str(scratch),
                verbose=0,
                # Silent, too, in a notebook, where Tune would clear what the cell has shown.
                progress_reporter=tune.CLIReporter(),
                failure_config=tune.FailureConfig(max_failures=resources.retries),
                callbacks=[runs],
                stop=runs,
            )
            try:
                tune.Tuner(trainable, tune_config=tune_config, run_config=run_config).fit()
            except KeyboardInterrupt:
                _let_save([folder / key for key in runs.running])
                raise
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            trials, runs.interrupted = runs.interrupted, []


def _let_save(folders: Sequence[Path]) -> None:
    """Ask runs in other processes to save and leave, and wait for it, while Ray still lives."""
    give_up = time.monotonic() + _TO_SAVE_S
    while folders and time.monotonic() < give_up:
        folders = [folder for folder in folders if in_progress(folder)]
        for folder in folders:
            ask_to_stop(folder)
        time.sleep(0.2)  # they need the processor


def trial_resources(allocation: Allocation, total: Mapping[str, float]) -> dict[str, float]:
    """Return what the process of a trial holds on a cluster that has so much in `total`.

    One that trains by itself holds what it trains on. One that only waits for its workers holds
    nothing that they need: it could take the last CPU, and they would wait for ever. It holds one
    of the `trial_slot`s that a cluster may offer on nodes that are not spot, or else a thousandth
    of the head node's own label, which puts it where it survives.
    """
    if not allocation.workers:
        return allocation.resources
    if total.get("trial_slot"):
        return {"trial_slot": 1}
    return {"node:__internal_head__": 0.001}


class _Runs(tune.Callback, tune.Stopper):
    """The trials that are under way, of which Tune reports how far they are and how they end."""

    def __init__(
        self,
        folder: Path,
        table: SweepTable,
        outcome: SweepOutcome,
        study: SearchStudy | None,
        tell_mlflow: Callable[[], None],
    ) -> None:
        self.folder, self.table, self.outcome = folder, table, outcome
        self.study, self.tell_mlflow = study, tell_mlflow
        self.running: dict[str, Trial] = {}
        self.interrupted: list[Trial] = []
        self.stages: dict[str, int] = {}  # that were reported

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune copies it into its state, which is never restored

    def stop_all(self) -> bool:
        return False

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.table.started(trial.config["key"])

    def __call__(self, trial_id: str, report: Mapping[str, Any]) -> bool:
        """Note a stage of a trial; return whether the trial is stopped there."""
        # Tune repeats the last report at the end, and a retried trial its first ones.
        if "stage" not in report or report["stage"] <= self.stages.get(report["key"], 0):
            return False
        key, stage, stages, op = (report[name] for name in ("key", "stage", "stages", "op"))
        self.stages[key] = stage
        self.table.advanced(key, stage, stages, op, report["replays"], report["earlier"])
        if self.study is None or op is None:
            return False
        behind = self.study.falls_behind(key, stage, op)
        # The report of the last stage comes before the result is written: that is no time to stop.
        return behind and stage < stages

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        key, last = trial.config["key"], trial.last_result or {}
        if last.get("ended") == "refused":
            # Not remembered on disk: the user may mend it.
            self._ended(key, "failed", last["reason"], remember=False)
        elif last.get("ended") == "interrupted":
            self.interrupted.append(self.running.pop(key))
            self.table.say(f"{key} was interrupted and has saved; it is resumed later")
        else:
            after = f"after {last.get('stage')} of {last.get('stages')} tasks"
            self._ended(key, "stopped", after)

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self._ended(trial.config["key"], "failed", cluster.last_error(trial.error_file))

    def _ended(self, key: str, state: str, reason: str, remember: bool = True) -> None:
        """Note that a trial is over: it is done, or else in this state for this reason."""
        self.running.pop(key)
        directory = RunDirectory(self.folder / key)
        try:
            download(directory.path)
        except InputError as error:  # the storage is away
            state, reason, remember = "failed", str(error), False
        if directory.finished() is not None:
            state, reason = "done", ""
            self.outcome.finished.append(key)
        elif state == "failed":
            self.outcome.failed[key] = reason
        else:
            self.outcome.stopped.append(key)
        if reason and remember:
            directory.end("failed" if state == "failed" else "stopped", reason)
            with suppress(InputError):
                upload(directory.path, [directory.ended.name])
        self.table.ended(key, state, reason)
        self.tell_mlflow()
        if self.study is not None:
            self.study.tell(key, state)


class _Queue(Searcher):
    """Gives Tune the next trial when it has room for one."""

    def __init__(self, trials: Iterator[Trial], runs: _Runs) -> None:
        super().__init__()
        self.trials, self.runs = trials, runs

    def suggest(self, trial_id: str) -> Any:
        trial = next(self.trials, None)
        if trial is None:
            return Searcher.FINISHED
        self.runs.table.add(trial)
        self.runs.running[trial.key] = trial
        return {"key": trial.key, "run": trial.config.model_dump(mode="json")}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        pass  # `_Runs` hears more about it

    def __getstate__(self) -> dict[str, Any]:
        return {}  # as above


# ---- in the process of a trial


def train_trial(params: Mapping[str, Any], folder: str, allocation: Allocation) -> None:
    """Train one run here, or wait for workers that do; what is there of it is resumed.

    `folder` is the sweep's, as machines call it (`storage.address.portable`).
    """
    config, path = RunConfig.parse(params["run"]), local_folder(folder) / params["key"]
    try:
        cluster.prepare_process(allocation)
        download(path)
        prepared = prepare(config, path, resume=True)
        if allocation.workers:
            # Ray Train takes a second to import.
            from forever.launch.train import train_group

            train_group(prepared, allocation, [_Report()])
        else:
            run_allocated(prepared, allocation, [_Report()])
    except InputError as error:
        tune.report({"ended": "refused", "reason": str(error)})  # a retry would be refused, too
    except Stopped:
        tune.report({"ended": "interrupted"})  # it has saved, and is resumed
    except _Enough:
        sys.exit(0)  # as Tune ends a trial


class _Enough(BaseException):
    """Tune wants no more of this trial. Its own SystemExit would pass for a tracker that failed,
    and the run would train on in a process that Tune gives to the next one."""


class _Report(Tracker):
    """Reports each stage to Tune, also the `earlier` ones of a run that is resumed.

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
