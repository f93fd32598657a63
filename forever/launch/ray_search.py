"""A search with Ray Tune and Optuna: points are drawn, run, and stopped between tasks when they
fall behind.

Run directories are the truth here too: each invocation makes a new study and tells it of every run
in the folder, so an interrupted search goes on, and a longer one builds on what a shorter one
found.

Stopping compares like with like: ASHA looks at OP after the same number of tasks, and at nothing
else. It trusts OP, so a run that is cheap but low in OP may be given up; the front is that of the
runs that were allowed to finish. What was
stopped is told to Optuna as pruned, without values: its OP over two tasks is no OP over five.
Optuna then ranks it behind every finished run, whatever the objectives.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forever.errors import InputError
from forever.launch.fleet import Fleet
from forever.launch.local import check
from forever.launch.ray_experiment import Job, SweepOutcome, fan_out, in_rounds, mirrored
from forever.runs.directory import RunDirectory
from forever.runs.progress import is_run, stage_scores
from forever.seeding import derive
from forever.sweeps.search import Known, Search, known, remember
from forever.sweeps.table import SweepTable

try:
    import optuna
    from optuna.trial import FixedTrial, TrialState, create_trial
except ImportError:
    raise InputError("Optuna is not installed; pip install 'forever-cl[ray]'") from None

from ray.tune.schedulers import ASHAScheduler  # isort: skip - after ray_cluster, which says what to install
from ray.tune.search import Searcher  # isort: skip

_DIRECTIONS = ("maximize", "maximize", "minimize")  # OP, BWT, seconds
_STATES = {"finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "failed": TrialState.FAIL}
# The memory is empty in the first task: with one seed, every run of the search has the same OP
# after it.
_GRACE = 2
_REDUCTION = 2  # the better half goes on
_ASKS = 100  # in a row that give nothing new: the space is used up


def run_search(search: Search, out: Path, trials: int, fleet: Fleet = Fleet()) -> SweepOutcome:
    """Run points of a search until `trials` of them are in the folder, the base's own first.

    Args:
        out: the search's folder; a run's directory is `out / key`.
        trials: in all. Those of earlier calls count, whatever became of them; interrupted ones go
        on first.

    Raises:
        InputError: the base cannot run, has fewer than two tasks, or the cluster can never hold the
        request.
        KeyboardInterrupt, SystemExit: Ctrl-C, SIGTERM. Everything is closed; the same call goes on.
    """
    out = out.absolute()
    stages = len(check(search.base, RunDirectory(out / search.base.key()), resume=True).stages)
    if stages < 2:
        raise InputError(
            f"search needs at least two tasks, {search.base.data.benchmark} has {stages}: no BWT"
        )
    before, outcome = known(search, out), SweepOutcome()
    outcome.skipped = [run.trial.key for run in before if run.state == "finished"]
    outcome.stopped = [run.trial.key for run in before if run.state == "stopped"]
    failed = {
        run.trial.key: run.ended["reason"] for run in before if run.state == "failed" and run.ended
    }
    outcome.failed = {} if fleet.retry_failed else dict(failed)
    with SweepTable([run.trial for run in before], fleet.show, total=trials) as table:
        for run in before:
            if run.state == "finished":
                table.ended(run.trial.key, "skipped", op=run.objectives[0])
            elif run.state == "stopped" or run.trial.key in outcome.failed:
                reason = run.ended["reason"] if run.ended else ""
                table.ended(run.trial.key, run.state, reason, now=run.state == "failed")
        if outcome.failed:
            table.say(
                f"{len(failed)} failed before and were left as they are; --retry-failed runs them again"
            )
        job = Job(out, table, fleet)
        own = search.own_point()
        if not before and own is not None:
            table.add(remember(search, own, out))
        with mirrored(job, outcome):
            problem = in_rounds(job, lambda: _search(search, job, outcome, trials, stages))
    for run in known(search, out):
        key = run.trial.key
        if run.state == "interrupted":
            outcome.failed.setdefault(key, problem or "ended without a result")
        elif run.state != "failed" and key not in (*outcome.skipped, *outcome.stopped):
            (outcome.finished if run.state == "finished" else outcome.stopped).append(key)
    return outcome


def _search(search: Search, job: Job, outcome: SweepOutcome, trials: int, stages: int) -> bool:
    """One experiment over what is missing; says whether there was anything, and may be more."""
    runs = known(search, job.out)
    # What failed in this call is not tried again, nor what failed in an earlier one unless that was
    # asked for.
    again = [
        r
        for r in runs
        if r.state in ("interrupted", "failed") and r.trial.key not in outcome.failed
    ]
    count = len(again) + max(0, trials - len(runs))
    if not count:
        return False
    sampler = Sampler(
        search, job, [run for run in runs if run not in again], [run.point for run in again]
    )
    tuning = {
        "search_alg": sampler,
        "scheduler": scheduler(stages, job.out, runs),
        "num_samples": count,
    }
    outcome.failed |= fan_out(job, count, {}, **tuning)
    return not sampler.used_up


def scheduler(stages: int, folder: Path, runs: Sequence[Known]) -> ASHAScheduler | None:
    """ASHA over tasks, told of the runs that are over: otherwise each invocation would begin
    without a yardstick.

    The last task is no time to stop: its report comes before the result is written.
    """
    if stages <= _GRACE:
        return None
    asha = ASHAScheduler(
        "stage",
        "op",
        "max",
        max_t=stages - 1,
        grace_period=_GRACE,
        reduction_factor=_REDUCTION,
        stop_last_trials=False,
    )
    for run in runs:
        if run.state not in ("finished", "stopped") or not is_run(folder / run.trial.key):
            continue
        past: Any = SimpleNamespace(trial_id=run.trial.key)
        asha.on_trial_add(None, past)  # type: ignore[arg-type]
        for stage, scores in enumerate(stage_scores(RunDirectory(folder / run.trial.key)), 1):
            asha.on_trial_result(None, past, {"stage": stage, "op": scores["op"]})  # type: ignore[arg-type]
    return asha


class Sampler(Searcher):
    """Optuna's TPE for OP, BWT and time, behind Tune's ask and tell.

    Not Tune's own OptunaSearch: that tells a run that was stopped early as complete, with the
    values of fewer tasks, runs the same configuration again, and takes no earlier results for a
    space that is conditional.

    Args:
        runs: what is over, told first.
        points: to be run before new ones are drawn.
    """

    def __init__(
        self,
        search: Search,
        job: Job | None,
        runs: Sequence[Known],
        points: Sequence[dict[str, Any]],
    ) -> None:
        super().__init__()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.search, self.job, self.points, self.used_up = search, job, list(points), False
        # Another stream in each invocation: the same one would draw the same points again.
        seed = derive(search.base.seed, "search", len(runs), len(points)) % 2**32
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=False)
        self.study = optuna.create_study(directions=_DIRECTIONS, sampler=sampler)
        self.over = {run.trial.key: run for run in runs}
        self.running: dict[str, tuple[optuna.Trial, str]] = {}
        for run in runs:
            fixed = FixedTrial(run.point)
            search.space(fixed)
            values = run.objectives if run.state == "finished" else None
            about = {"params": fixed.params, "distributions": fixed.distributions}
            self.study.add_trial(create_trial(state=_STATES[run.state], values=values, **about))

    def set_search_properties(
        self, metric: Any, mode: Any, config: dict[str, Any], **spec: Any
    ) -> bool:
        """The space is known already."""
        return True

    def suggest(self, trial_id: str) -> Any:
        """The next run. One that is in the folder already is not run again: Optuna is told its
        numbers."""
        assert self.job is not None
        for _ in range(_ASKS):
            if self.points:
                self.study.enqueue_trial(self.points.pop(0))
            asked = self.study.ask()
            self.search.space(asked)
            trial = self.search.trial(asked.params)
            if trial.key in self.over:
                self._tell(asked, self.over[trial.key])
            elif trial.key in (key for _, key in self.running.values()):
                self.study.tell(asked, state=TrialState.FAIL)  # its numbers come with its twin
            else:
                self.job.table.add(remember(self.search, asked.params, self.job.out))
                self.running[trial_id] = asked, trial.key
                return {"key": trial.key, "run": trial.config.model_dump(mode="json")}
        self.used_up = True
        return Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell Optuna what the run's directory says: all objectives of a whole run, or none."""
        assert self.job is not None
        asked, key = self.running.pop(trial_id)
        finished = self.job.directory(key).finished()
        state = "failed" if error or "refused" in (result or {}) else "stopped"
        run = Known(
            self.search.trial(asked.params), asked.params, finished, {"state": state, "reason": ""}
        )
        self.over[key] = run
        self._tell(asked, run)

    def _tell(self, asked: optuna.Trial, run: Known) -> None:
        self.study.tell(
            asked, run.objectives if run.result is not None else None, state=_STATES[run.state]
        )

    def save(self, checkpoint_path: str) -> None:
        """Nothing: Tune's state is never restored."""

    def restore(self, checkpoint_path: str) -> None:
        """See `save`."""

    def __getstate__(self) -> dict[str, Any]:
        # Tune may copy it into its state; a table cannot be.
        return {**self.__dict__, "job": None, "running": {}}
