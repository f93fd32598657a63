"""Many runs with Ray Tune: what is missing is fanned out, failures stay with the run that has them.

Run directories say what is done, so Tune's own state is never restored: each call is a fresh
experiment over what has no result, and each run goes on from its own checkpoints. It can be killed
at any moment, by any means, and the same command continues it.
"""

import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher
from rich.console import Console

from forever.errors import InputError
from forever.launch import ray_cluster
from forever.launch.copies import bring, let_save, publish, settle
from forever.launch.fleet import Fleet, SweepOutcome, divide
from forever.launch.ray_cluster import Setting
from forever.launch.ray_trial import train_trial, trial_resources
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.storage.address import portable
from forever.storage.copying import of_sweep, readable
from forever.storage.mirror import mirrored
from forever.sweeps.checks import check_finished, refused
from forever.sweeps.study import SearchStudy
from forever.sweeps.sweep import Sweep, Trial
from forever.sweeps.table import SweepTable

_SCRATCH = ".tune"
_BREAKDOWNS = 3  # of Tune itself


def run_sweep(
    sweep: Sweep, out: Path, fleet: Fleet = Fleet(), console: Console | None = None
) -> SweepOutcome:
    """Run all trials of a sweep that have no result yet and did not fail before.

    Args:
        out: the sweep's folder; a trial's directory is `out / trial.key`. On several machines it
            must be shared, or the scratch folder of an address (docs/storage.md).
        console: where the table is shown, unless `fleet.show` is false; None: stdout.

    Raises:
        InputError: no trial can run (bad data, missing model), the data have changed since some
            were finished, or the cluster can never hold the request.
        Stopped: Ctrl-C, SIGTERM or SIGHUP. Runs have saved, everything is closed; the same call
            goes on.
    """
    out = out.absolute()
    with locked(out, patience_s=0), mirrored(out, chosen=of_sweep):
        bring(out)
        return _run_sweep(sweep, out, fleet, console)


def _run_sweep(sweep: Sweep, out: Path, fleet: Fleet, console: Console | None) -> SweepOutcome:
    trials, outcome = sweep.trials(), SweepOutcome()
    check_finished(trials, out)
    todo: list[Trial] = []
    for trial in trials:
        directory = RunDirectory(out / trial.key)
        end = directory.end_without_result() or {}
        if directory.finished() is not None:
            outcome.skipped.append(trial.key)
        elif end.get("state") == "failed" and not fleet.retry_failed:
            outcome.failed[trial.key] = end["reason"]
        else:
            todo.append(trial)
    failed_before = len(outcome.failed)
    outcome.failed |= refused(todo, others=len(todo) < len(trials))
    todo = [trial for trial in todo if trial.key not in outcome.failed]
    sweep.write_manifest(out)
    with SweepTable(trials, fleet.show, console) as table:
        for key in outcome.skipped:
            table.ended(key, "skipped")
        for key, reason in outcome.failed.items():
            table.ended(key, "failed", reason)
        table.say_failed_before(failed_before)
        if todo:
            fan_out(todo, out, fleet, table, outcome, count=len(trials))
    return outcome


def fan_out(
    trials: Iterable[Trial],
    folder: Path,
    fleet: Fleet,
    table: SweepTable,
    outcome: SweepOutcome,
    *,
    count: int,
    studies: SearchStudy | None = None,
) -> None:
    """Run trials in `folder`, as many at a time as fit, and add to `outcome` what becomes of them.

    The next trial is asked for when there is room for it. If Tune itself breaks down, the trials
    that were running go on in another round, as do those that were told to stop; after the last
    round what is left has failed.

    Args:
        count: of all trials of the sweep, or the most that will come; with fewer, each gets more
            threads. Those that have ended count, too: what goes on after a sweep was cut off has
            as many threads as before, and so the same bits.
        studies: told OP after each stage of a trial, once, and says whether the trial stops there;
            told what became of it. All calls come in this thread.
    """
    mirrored: Any = nullcontext(lambda: None)
    if fleet.mlflow is not None:  # it takes seconds to load
        from forever.launch.mlflow.tracker import mirrored_sweep

        mirrored = mirrored_sweep(folder, fleet.mlflow, table.say, outcome.failed)
    source, problem = iter(trials), "ended without a result"
    breakdowns = notices = 0
    with mirrored as tell_mlflow:
        listener = _Listener(folder, table, outcome, studies, tell_mlflow)
        while breakdowns < _BREAKDOWNS and notices < ray_cluster.PREEMPTIONS:
            running = [*listener.running.values()]
            listener.told.clear()
            try:
                _experiment(chain(running, source), listener, fleet, count)
                if not listener.told:
                    break
                problem, notices = "was told to stop again and again", notices + 1
            except InputError:
                raise
            except Exception as error:  # as when Ray's memory monitor ends a trial
                problem, breakdowns = ray_cluster.one_line(error), breakdowns + 1
                table.say(f"Ray Tune broke down ({problem}); going on with what is left")
        else:
            if studies is None:
                listener.running |= {trial.key: trial for trial in source}
        for key in [*listener.running]:
            listener.ended(key, "failed", problem, remember=False)


def _experiment(trials: Iterator[Trial], listener: "_Listener", fleet: Fleet, count: int) -> None:
    """Let Tune run trials until there are no more."""
    scratch = listener.folder / _SCRATCH
    with ray_cluster.cluster(dashboard=bool(fleet.workers), logs=fleet.ray_logs):
        total, machines = ray_cluster.capacity()
        share = divide(total, machines, count, fleet)
        setting = Setting(fleet, share)
        trainable = tune.with_parameters(
            train_trial, folder=portable(listener.folder), setting=setting
        )
        tune_config = tune.TuneConfig(
            search_alg=_Feed(trials, listener),
            num_samples=-1,
            max_concurrent_trials=share.concurrent,
            # torch is imported once a process and not once a trial. But the workers of a trial end
            # with its process: in one that lives on, a run that was stopped would train on.
            reuse_actors=not share.workers,
            trial_dirname_creator=lambda trial: trial.config["key"],
        )
        run_config = tune.RunConfig(
            name=uuid.uuid4().hex,  # one used again would mix two experiments
            storage_path=str(scratch),
            verbose=0,
            # Silent, too, in a notebook, where Tune would clear what the cell has shown.
            progress_reporter=tune.CLIReporter(),
            failure_config=tune.FailureConfig(max_failures=fleet.retries),
            callbacks=[listener],
            stop=listener,
        )
        listener.needed = trial_resources(share, total)
        trainable = tune.with_resources(trainable, dict(listener.needed))
        try:
            tune.Tuner(trainable, tune_config=tune_config, run_config=run_config).fit()
        except KeyboardInterrupt:
            let_save([listener.folder / key for key in listener.running])
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


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

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        pass  # the listener hears of it

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune copies it into its state, which is never restored


@dataclass(eq=False)
class _Listener(tune.Callback, tune.Stopper):
    """Puts what Tune hears into the table, the outcome, and at once on disk."""

    folder: Path
    table: SweepTable
    outcome: SweepOutcome
    studies: SearchStudy | None
    tell_mlflow: Callable[[], None]
    running: dict[str, Trial] = field(default_factory=dict)
    stages: dict[str, int] = field(default_factory=dict)
    needed: Mapping[str, float] = field(default_factory=dict)  # by each trial
    stuck_since: float | None = None
    told: set[str] = field(default_factory=set)  # of those running, to stop: no failure of theirs

    def __getstate__(self) -> dict[str, Any]:
        return {}  # as above

    def stop_all(self) -> bool:
        return False

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Hear of a stage; says whether the trial is stopped there."""
        key, stage = result.get("key", ""), result.get("stage", 0)
        # Tune repeats the last report at the end, and a trial that is tried again its first ones.
        if stage <= self.stages.get(key, 0):
            return False
        self.stages[key] = stage
        stages, op = result["stages"], result["op"]
        self.table.advanced(key, stage, stages, op, result["replays"], result["earlier"])
        if self.studies is None or op is None:
            return False
        behind = self.studies.falls_behind(key, stage, op)
        # The report of the last stage comes before the result is written: that is no time to stop.
        return behind and stage < stages

    def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
        """Give up where no trial runs and none gets room, which others hold."""
        states = {trial.status for trial in trials}
        now = time.monotonic()
        if "RUNNING" in states or "PENDING" not in states:
            self.stuck_since = None
        elif self.stuck_since is None:
            self.stuck_since = now
        elif now - self.stuck_since > ray_cluster.PATIENCE_S:
            short = ray_cluster.no_room(self.needed)
            if short and ray_cluster.waiting_groups() and not ray_cluster.grows():
                raise InputError(f"no room for a run: {short}")
            self.stuck_since = now

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.table.started(trial.config["key"])

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        key, last = trial.config["key"], trial.last_result or {}
        if "refused" in last:
            # Not remembered on disk: the user may mend it.
            self.ended(key, "failed", last["refused"], remember=False)
        elif "told to stop" in last:
            self.told.add(key)
            self.table.say(f"{key} saved and left when it was told to stop; it goes on later")
        else:
            self.ended(key, "stopped", f"after {last.get('stage')} of {last.get('stages')} tasks")

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.ended(trial.config["key"], "failed", ray_cluster.last_error(trial.error_file))

    def ended(self, key: str, state: str, reason: str, remember: bool = True) -> None:
        """A trial is over: it is done, or else in this state for this reason."""
        self.running.pop(key)
        directory = RunDirectory(self.folder / key)
        try:
            settle(directory.path, readable)
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
                publish(directory.path, [directory.ended.name])
        self.table.ended(key, state, reason)
        self.tell_mlflow()
        if self.studies is not None:
            self.studies.tell(key, state)
