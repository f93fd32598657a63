"""One Ray Tune experiment over runs: what a sweep and a search have in common.

Run directories say what is done, so Tune's own state is never restored: each invocation is a fresh
experiment over what has no result, and each run goes on from its own checkpoints. It can be killed
at any moment, by any means, and the same command continues it.
"""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from forever.errors import InputError
from forever.launch.fleet import Fleet
from forever.launch.mlflow_tracker import close_sweep, open_sweep, tracking_uri
from forever.launch.ray_cluster import (
    capacity,
    cluster,
    default_workers,
    divide,
    driver_seat,
    one_line,
)
from forever.launch.ray_trial import train_trial
from forever.runs.directory import RunDirectory
from forever.sweeps.table import SweepTable

from ray import tune  # isort: skip - after ray_cluster, which says what to install if there is no Ray

_SCRATCH = ".tune"


@dataclass
class SweepOutcome:
    """What became of the trials of a sweep, by key.

    Attributes:
        finished: got their result now. skipped: had it already. failed: one line each. stopped:
        early, by a search.
    """

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """What stays the same over all experiments of one invocation."""

    out: Path
    table: SweepTable
    fleet: Fleet = Fleet()

    @property
    def mlflow(self) -> str | None:
        return self.fleet.mlflow and tracking_uri(self.fleet.mlflow)

    def directory(self, key: str) -> RunDirectory:
        return RunDirectory(self.out / key)


@contextmanager
def mirrored(job: Job, outcome: SweepOutcome) -> Iterator[None]:
    """The sweep's MLflow run around the block. MLflow can be away; the sweep goes on."""

    def attempt(action: Callable[..., None], *arguments: str) -> None:
        if job.mlflow is None:
            return
        try:
            action(job.out, job.mlflow, *arguments)
        except Exception as error:  # whatever a server or a client library comes up with
            job.table.say(
                f"MLflow does not answer, `forever sync {job.out}` sends it later ({one_line(error)})"
            )

    attempt(open_sweep)
    try:
        yield
    except BaseException as error:
        attempt(close_sweep, "FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    attempt(close_sweep, "FAILED" if outcome.failed else "FINISHED")


def in_rounds(job: Job, attempt: Callable[[], bool]) -> str:
    """Call `attempt` until it says that nothing is left, or all rounds are over.

    Tune itself can break down, as it does when Ray's memory monitor ends a trial: then it begins
    again.

    Returns:
        What the last break-down was, or nothing.
    """
    problem = ""
    for _ in range(job.fleet.rounds):
        try:
            if not attempt():
                break
        except InputError:
            raise
        except Exception as error:
            problem = one_line(error)
            job.table.say(f"Ray Tune broke down ({problem}); going on with what is left")
    return problem


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM, which `ray job stop` sends, leaves like Ctrl-C: by an exception that closes
    everything on its way.

    Raises:
        SystemExit: with code 143, after SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    got: list[int] = []

    def leave(number: int, frame: Any) -> None:
        got.append(number)
        # Ray, which is interrupted in native code, would turn a SystemExit into code 1.
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        if got:
            raise SystemExit(128 + got[0]) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def fan_out(
    job: Job,
    count: int,
    param_space: dict[str, Any],
    runs: dict[str, Any] | None = None,
    **tuning: Any,
) -> dict[str, str]:
    """One Tune experiment of `count` trials.

    Args:
        param_space: what Tune varies; every trial has a `key`.
        runs: the configuration of each key, unless the trial brings it as `run`.
        tuning: more for `tune.TuneConfig`.

    Returns:
        The errors of the trials that failed for good, by key.
    """
    with cluster(dashboard=bool(job.fleet.workers)), _stoppable():
        there_is, machines = capacity()
        workers = default_workers(there_is) if job.fleet.workers is None else job.fleet.workers
        share = divide(
            there_is, machines, count, job.fleet.concurrent, workers, job.fleet.placement.device
        )
        settings = {
            "runs": runs or {},
            "out": str(job.out),
            "workers": workers,
            "placement": asdict(replace(job.fleet.placement, device=share.device)),
            "share": asdict(share),
            "mlflow": job.mlflow,
            "cwd": os.getcwd(),
            "argv": sys.argv,
        }
        # A trial that trains by itself holds what it trains on; one that has workers must hold
        # nothing of theirs.
        holds = (
            driver_seat(there_is) if workers else {k.lower(): v for k, v in share.resources.items()}
        )
        # A name used again would mix two experiments.
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(train_trial, settings=settings), holds),
            param_space=param_space,
            tune_config=tune.TuneConfig(
                max_concurrent_trials=share.concurrent,
                # torch is imported once a process and not once a trial. But the workers of a trial
                # end with its process alone: in one that lives on, a run that a search has stopped
                # would train to its end.
                reuse_actors=not workers,
                trial_dirname_creator=lambda trial: trial.config["key"],
                **tuning,
            ),
            run_config=tune.RunConfig(
                name=name,
                storage_path=str(job.out / _SCRATCH),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=job.fleet.retries),
                callbacks=[_Watch(job)],
            ),
        )
        try:
            results = tuner.fit()
        finally:
            shutil.rmtree(job.out / _SCRATCH, ignore_errors=True)
    return _failed(job, results)


def _failed(job: Job, results: tune.ResultGrid) -> dict[str, str]:
    """The errors of an experiment by key; those that may be gone the next time are kept on disk."""
    failed: dict[str, str] = {}
    for result in results:
        key = (result.config or {})["key"]
        if result.error is not None:
            failed[key] = one_line(result.error)
            job.directory(key).end("failed", failed[key])
            job.table.note(key, failed[key])
        elif refusal := (result.metrics or {}).get("refused"):
            failed[key] = refusal
    return failed


class _Watch(tune.Callback):
    """Puts what Tune hears into the table, and on disk how a run ended that has no result.

    An exception here would end the sweep, so none gets out.
    """

    def __init__(self, job: Job | None) -> None:
        self.job = job

    def __getstate__(self) -> dict[str, Any]:
        return {"job": None}  # Tune copies its callbacks into its state, which nobody restores

    def _tell(self, what: str, trial: Any, *details: Any) -> None:
        try:
            if self.job is None:
                return
            key = trial.config["key"]
            if what == "ended" and details[0] in ("failed", "stopped"):
                self.job.directory(key).end(*details)
            getattr(self.job.table, what)(key, *details)
        except Exception as error:  # see above
            print(f"the table of the sweep: {one_line(error)}", file=sys.stderr)

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self._tell("started", trial)

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if "stage" in result:
            self._tell(
                "advanced",
                trial,
                *(result[key] for key in ("stage", "stages", "op", "replays", "earlier")),
            )

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        last = trial.last_result or {}
        if "refused" in last:
            # Not remembered on disk: the user may mend it.
            self._tell("refused", trial, last["refused"])
        elif self.job is None or self.job.directory(trial.config["key"]).finished() is not None:
            self._tell("ended", trial, "done")
        else:  # a scheduler did it: Tune calls that complete
            self._tell(
                "ended",
                trial,
                "stopped",
                f"after {last.get('stage')} of {last.get('stages')} tasks",
            )

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        # Tune gives the error itself when all trials are over, and its traceback at once.
        reason = "ended by an error"
        with suppress(Exception):
            reason = (
                Path(trial.error_file).read_text(encoding="utf-8").strip().splitlines()[-1].strip()
            )
        self._tell("ended", trial, "failed", reason)
