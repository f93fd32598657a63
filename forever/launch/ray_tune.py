"""Many runs with Ray Tune: what is missing is fanned out, failures stay with the run that has them.

Run directories say what is done, so Tune's own state is never restored: each invocation is a fresh
experiment over what has no result, and each run goes on from its own checkpoints. It can be killed
at any moment, by any means, and the same command continues it.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from forever.errors import InputError
from forever.launch.fleet import Fleet, SweepOutcome
from forever.launch.ray_cluster import (
    capacity,
    cluster,
    default_workers,
    divide,
    last_error,
    one_line,
    stoppable,
    trial_resources,
)
from forever.launch.ray_train import Setting
from forever.launch.ray_trial import train_trial
from forever.runs.directory import RunDirectory
from forever.sweeps.checks import check_finished, refused
from forever.sweeps.sweep import Sweep, Trial
from forever.sweeps.table import SweepTable

OnStage = Callable[[Trial, int, Mapping[str, float | None]], bool]
OnEnd = Callable[[Trial, str, str], None]

_SCRATCH = ".tune"


def run_sweep(sweep: Sweep, out: Path, fleet: Fleet = Fleet()) -> SweepOutcome:
    """Run all trials of a sweep that have no result yet and did not fail before.

    Args:
        out: the sweep's folder; a trial's directory is `out / trial.key`. On several machines it
            must be shared.

    Raises:
        InputError: no trial can run (bad data, missing model), the data have changed since some
            were finished, or the cluster can never hold the request.
        KeyboardInterrupt, SystemExit: Ctrl-C, SIGTERM. Everything is closed; the same call goes on.
    """
    out, trials, outcome = out.absolute(), sweep.trials(), SweepOutcome()
    check_finished(trials, out)
    failed_before = {}
    for trial in trials:
        directory = RunDirectory(out / trial.key)
        end = directory.end_without_result() or {}
        if directory.finished() is not None:
            outcome.skipped.append(trial.key)
        elif end.get("state") == "failed" and not fleet.retry_failed:
            failed_before[trial.key] = end["reason"]
    todo = [trial for trial in trials if trial.key not in {*outcome.skipped, *failed_before}]
    outcome.failed = failed_before | refused(todo, others=len(todo) < len(trials))
    todo = [trial for trial in todo if trial.key not in outcome.failed]
    sweep.write_manifest(out)
    with SweepTable(trials, fleet.show) as table:
        for key in outcome.skipped:
            table.ended(key, "skipped")
        for key, reason in outcome.failed.items():
            table.ended(key, "failed", reason)
        if failed_before:
            left = "failed before and were left as they are; --retry-failed runs them again"
            table.say(f"{len(failed_before)} {left}")
        with mirrored(out, fleet, table, outcome):
            fan_out(todo, out, fleet, table, outcome, count=len(todo))
    return outcome


def mirrored(
    folder: Path, fleet: Fleet, table: SweepTable, outcome: SweepOutcome
) -> AbstractContextManager[None]:
    """The sweep's MLflow run around a block, if there is MLflow, which takes seconds to load."""
    if fleet.mlflow is None:
        return nullcontext()
    from forever.launch.mlflow_tracker import mirrored_sweep

    return mirrored_sweep(folder, fleet.mlflow, table.say, outcome.failed)


def fan_out(
    trials: Iterable[Trial],
    folder: Path,
    fleet: Fleet,
    table: SweepTable,
    outcome: SweepOutcome,
    *,
    count: int,
    on_stage: OnStage | None = None,
    on_end: OnEnd | None = None,
) -> None:
    """Run trials, as many at a time as fit.

    The next trial is asked for when there is room for it, so a generator may choose it by what
    `on_end` told of those before. All calls come in this thread, one at a time. Tune itself can
    break down; then the trials that were running go on in another round.

    Args:
        folder: where the directories of the trials are, each under its key.
        outcome: what becomes of the trials is added to it.
        count: of the trials, or the most that will come; with fewer, each gets more threads.
        on_stage: told the trial, how many of its stages are over, and the scores after the last of
            them (see `stage_scores`), each stage once. If it returns True the trial stops there.
        on_end: told the trial, what became of it ("done", "failed" or "stopped"), and why.
    """
    if not count:
        return
    listener = _Listener(folder, table, outcome, on_stage, on_end)
    source = iter(trials)
    problem = "ended without a result"
    for _ in range(fleet.rounds):
        try:
            _experiment(chain([*listener.running.values()], source), listener, fleet, count)
            break
        except InputError:
            raise
        except Exception as error:  # as when Ray's memory monitor ends a trial
            problem = one_line(error)
            table.say(f"Ray Tune broke down ({problem}); going on with what is left")
    else:  # all rounds broke down
        if isinstance(trials, Sequence):
            listener.running |= {trial.key: trial for trial in source}
    for key in [*listener.running]:
        listener.ended(key, "failed", problem)


def _experiment(trials: Iterator[Trial], listener: "_Listener", fleet: Fleet, count: int) -> None:
    """Let Tune run trials until there are no more."""
    with cluster(dashboard=bool(fleet.workers)), stoppable():
        total, machines = capacity()
        workers = default_workers(total) if fleet.workers is None else fleet.workers
        share = divide(total, machines, count, fleet.concurrent, workers, fleet.placement.device)
        setting = Setting(fleet.placement, fleet.mlflow, share)
        trainable = tune.with_parameters(train_trial, folder=listener.folder, setting=setting)
        tune_config = tune.TuneConfig(
            search_alg=_Feed(trials, listener),
            num_samples=-1,
            max_concurrent_trials=share.concurrent,
            # torch is imported once a process and not once a trial. But the workers of a trial end
            # with its process: in one that lives on, a run that was stopped would train on.
            reuse_actors=not workers,
            trial_dirname_creator=lambda trial: trial.config["key"],
        )
        run_config = tune.RunConfig(
            # A name used again would mix two experiments.
            name=f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}",
            storage_path=str(listener.folder / _SCRATCH),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=fleet.retries),
            callbacks=[listener],
            stop=listener,
        )
        trainable = tune.with_resources(trainable, trial_resources(share, total))
        try:
            tune.Tuner(trainable, tune_config=tune_config, run_config=run_config).fit()
        finally:
            shutil.rmtree(listener.folder / _SCRATCH, ignore_errors=True)


class _Feed(Searcher):
    """Gives Tune the next trial when it has room for one."""

    def __init__(self, trials: Iterator[Trial], listener: "_Listener") -> None:
        super().__init__()
        self.trials, self.listener = trials, listener

    def suggest(self, trial_id: str) -> Any:
        trial = next(self.trials, None)
        if trial is None:
            return Searcher.FINISHED
        self.listener.table.add(trial)
        self.listener.running[trial.key] = trial
        return {"key": trial.key, "run": trial.config.model_dump(mode="json")}

    # Tune asks for these. The listener hears of ends, and Tune's state is never restored.
    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...
    def save(self, checkpoint_path: str) -> None: ...
    def restore(self, checkpoint_path: str) -> None: ...
    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Listener(tune.Callback, tune.Stopper):
    """Puts what Tune hears into the table and the outcome.

    It writes at once to disk why a run ended without a result, since the sweep may be interrupted.
    """

    def __init__(
        self,
        folder: Path,
        table: SweepTable,
        outcome: SweepOutcome,
        on_stage: OnStage | None,
        on_end: OnEnd | None,
    ) -> None:
        self.folder, self.table, self.outcome = folder, table, outcome
        self.on_stage, self.on_end = on_stage, on_end
        self.running: dict[str, Trial] = {}
        self._stages: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune copies it into its state, which is never restored

    def stop_all(self) -> bool:
        return False

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Hear of a stage; says whether the trial is stopped there."""
        key, stage, stages = result.get("key", ""), result.get("stage", 0), result.get("stages", 0)
        # Tune repeats the last report at the end, and a trial that is tried again its first ones.
        if stage <= self._stages.get(key, 0):
            return False
        self._stages[key] = stage
        scores = result["scores"]
        self.table.advanced(key, stage, stages, scores["op"], result["replays"], result["earlier"])
        stop = self.on_stage is not None and self.on_stage(self.running[key], stage, scores)
        # The report of the last stage comes before the result is written: that is no time to stop.
        return stop and stage < stages

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.table.started(trial.config["key"])

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        key, last = trial.config["key"], trial.last_result or {}
        if "refused" in last:
            # Not remembered on disk: the user may mend it.
            self.ended(key, "failed", last["refused"])
        else:
            reason = f"after {last.get('stage')} of {last.get('stages')} tasks"
            self.ended(key, "stopped", reason, remember=True)

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.ended(trial.config["key"], "failed", last_error(trial.error_file), remember=True)

    def ended(self, key: str, state: str, reason: str, remember: bool = False) -> None:
        """A trial is over: it is done, or else in this state for this reason."""
        trial, directory = self.running.pop(key), RunDirectory(self.folder / key)
        if directory.finished() is not None:
            state, reason = "done", ""
            self.outcome.finished.append(key)
        elif state == "failed":
            self.outcome.failed[key] = reason
        else:
            self.outcome.stopped.append(key)
        if reason and remember:
            directory.end("failed" if state == "failed" else "stopped", reason)
        self.table.ended(key, state, reason)
        if self.on_end is not None:
            self.on_end(trial, state, reason)
