"""Many runs with Ray Tune: what is missing of a sweep is fanned out, failures stay with the trial that has them.

Run directories say what is done, so Tune's own state is never restored: each invocation is a fresh Tune experiment
over the trials without a result, and each of those goes on from its own checkpoints. A sweep can be killed at any
moment, by any means, and the same command continues it.
"""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from forever.errors import InputError
from forever.launch.local import Placement, refused
from forever.launch.mlflow_tracker import close_sweep, open_sweep, tracking_uri
from forever.launch.ray_cluster import capacity, cluster, default_workers, divide, driver_seat, one_line
from forever.launch.ray_trial import train_trial
from forever.launch.sweep_table import SweepTable
from forever.run_directory import RunDirectory
from forever.sweep import Sweep, Trial

from ray import tune  # isort: skip - after ray_cluster, which says what to install if there is no Ray

_SCRATCH = ".tune"


@dataclass
class SweepOutcome:
    """What became of the trials of a sweep, by key.

    Attributes:
        finished: got their result now. skipped: had it already. failed: one line each.
    """

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    concurrent: int | None = None,
    workers: int | None = None,
    placement: Placement = Placement(),
    mlflow: str | None = None,
    retries: int = 1,
    rounds: int = 3,
    show: bool = True,
) -> SweepOutcome:
    """Run all trials of a sweep that have no result yet.

    Args:
        out: the sweep's folder; a trial's directory is `out / trial.key`. On several machines it must be shared.
        concurrent: runs at once; None is as many as fit.
        workers: Ray Train workers of each run; 0 trains in the trial's own process, which starts ten seconds faster.
            None is 1 on a cluster that has GPUs, where a run must outlive a spot machine, and 0 elsewhere.
        mlflow: URI of the store; None for no MLflow.
        retries: how often a failed trial is tried again, going on from its last checkpoint.
        rounds: how often Tune itself is started again if it breaks down.

    Raises:
        InputError: no trial can run (bad data, missing model), or the cluster can never hold the request.
        KeyboardInterrupt, SystemExit: Ctrl-C, SIGTERM. Everything is closed; the same call goes on.
    """
    out = out.absolute()
    trials, outcome = sweep.trials(), SweepOutcome()
    outcome.skipped = [trial.key for trial in trials if RunDirectory(out / trial.key).finished() is not None]
    todo = [trial for trial in trials if trial.key not in outcome.skipped]
    outcome.failed = refused(todo)
    sweep.write_manifest(out)
    with SweepTable(trials, show) as table:
        for key in outcome.skipped:
            table.ended(key, "skipped")
        for key, error in outcome.failed.items():
            table.ended(key, "failed", error)
        job = _Job(out, workers, concurrent, placement, mlflow and tracking_uri(mlflow), retries, table)
        with _mirrored(job, outcome):
            _rounds(job, [trial for trial in todo if trial.key not in outcome.failed], outcome, rounds)
    return outcome


@dataclass(frozen=True)
class _Job:
    """The arguments of `run_sweep` that stay as they are."""

    out: Path
    workers: int | None
    concurrent: int | None
    placement: Placement
    mlflow: str | None
    retries: int
    table: SweepTable

    def result(self, trial: Trial) -> dict[str, Any] | None:
        return RunDirectory(self.out / trial.key).finished()


@contextmanager
def _mirrored(job: _Job, outcome: SweepOutcome) -> Iterator[None]:
    """The sweep's MLflow run around the block. MLflow can be away; the sweep goes on."""

    def attempt(action: Callable[..., None], *arguments: str) -> None:
        if job.mlflow is None:
            return
        try:
            action(job.out, job.mlflow, *arguments)
        except Exception as error:  # whatever a server or a client library comes up with
            job.table.say(f"MLflow does not answer, `forever sync {job.out}` sends it later ({one_line(error)})")

    attempt(open_sweep)
    try:
        yield
    except BaseException as error:
        attempt(close_sweep, "FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    attempt(close_sweep, "FAILED" if outcome.failed else "FINISHED")


def _rounds(job: _Job, todo: Sequence[Trial], outcome: SweepOutcome, rounds: int) -> None:
    """Fan out; begin again with what is left if Tune breaks down, as it does when Ray's memory monitor ends a trial."""
    problem = ""
    for _ in range(rounds):
        left = [trial for trial in todo if trial.key not in outcome.failed and job.result(trial) is None]
        if not left:
            break
        try:
            with cluster(dashboard=bool(job.workers)), _stoppable():
                outcome.failed |= _fan_out(job, left)
        except InputError:
            raise
        except Exception as error:
            problem = one_line(error)
            job.table.say(f"Ray Tune broke down ({problem}); going on with what is left")
    for trial in todo:
        if job.result(trial) is not None:
            outcome.finished.append(trial.key)
        elif trial.key not in outcome.failed:
            outcome.failed[trial.key] = problem or "ended without a result"
            job.table.ended(trial.key, "failed", outcome.failed[trial.key])


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM, which `ray job stop` sends, leaves like Ctrl-C: by an exception that closes everything on its way.

    Raises:
        SystemExit: with code 143, after SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    got: list[int] = []

    def leave(number: int, frame: Any) -> None:
        got.append(number)
        raise KeyboardInterrupt  # Ray, which is interrupted in native code, would turn a SystemExit into code 1

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        if got:
            raise SystemExit(128 + got[0]) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _fan_out(job: _Job, trials: Sequence[Trial]) -> dict[str, str]:
    """One Tune experiment over `trials`; returns the errors of those that failed for good."""
    there_is, machines = capacity()
    workers = default_workers(there_is) if job.workers is None else job.workers
    share = divide(there_is, machines, len(trials), job.concurrent, workers, job.placement.device)
    settings = {
        "runs": {trial.key: trial.config.model_dump(mode="json") for trial in trials},
        "out": str(job.out),
        "workers": workers,
        "placement": asdict(replace(job.placement, device=share.device)),
        "share": asdict(share),
        "mlflow": job.mlflow,
        "cwd": os.getcwd(),
    }
    # A trial that trains by itself holds what it trains on; one that has workers must hold nothing of theirs.
    holds = driver_seat(there_is) if workers else {k.lower(): v for k, v in share.resources.items()}
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"  # a name that is used again would mix two experiments
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(train_trial, settings=settings), holds),
        param_space={"key": tune.grid_search([trial.key for trial in trials])},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=share.concurrent,
            reuse_actors=True,  # torch is imported once a process and not once a trial
            trial_dirname_creator=lambda trial: trial.config["key"],
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(job.out / _SCRATCH),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=job.retries),
            callbacks=[_Watch(job.table)],
        ),
    )
    try:
        results = tuner.fit()
    finally:
        shutil.rmtree(job.out / _SCRATCH, ignore_errors=True)
    failed: dict[str, str] = {}
    for result in results:
        key = (result.config or {})["key"]
        if result.error is not None:
            failed[key] = one_line(result.error)
        elif refusal := (result.metrics or {}).get("refused"):
            failed[key] = refusal
    return failed


class _Watch(tune.Callback):
    """Puts what Tune hears into the table. An exception here would end the sweep, so none gets out."""

    def __init__(self, table: SweepTable | None) -> None:
        self.table = table

    def __getstate__(self) -> dict[str, Any]:
        return {"table": None}  # Tune copies its callbacks into its state, which nobody restores

    def _tell(self, what: str, trial: Any, *details: Any) -> None:
        try:
            if self.table is not None:
                getattr(self.table, what)(trial.config["key"], *details)
        except Exception as error:  # see above
            print(f"the table of the sweep: {one_line(error)}", file=sys.stderr)

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self._tell("started", trial)

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        if "stage" in result:
            self._tell("advanced", trial, result["stage"], result["stages"], result["op"])

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        refusal = (trial.last_result or {}).get("refused")
        self._tell("ended", trial, "failed" if refusal else "done", refusal or "")

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        error = trial.get_error() if hasattr(trial, "get_error") else None
        self._tell("ended", trial, "failed", one_line(error) if error else "")
