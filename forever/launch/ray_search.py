"""A search with Ray Tune: Optuna chooses runs and stops those that fall behind between two tasks.

Tune asks for a run when it has room for one, so as many run at once as in a sweep. Stopping trusts
OP: a run that is cheap but low in OP may be given up, and the front is that of the runs that were
allowed to finish.
"""

from pathlib import Path
from typing import Any

from forever.errors import InputError
from forever.launch.fleet import Fleet
from forever.launch.local import check
from forever.launch.ray_experiment import Job, SweepOutcome, fan_out, in_rounds, mirrored
from forever.runs.directory import RunDirectory
from forever.sweeps.search import Search, Studies
from forever.sweeps.table import SweepTable

from ray.tune.schedulers import FIFOScheduler  # isort: skip - after ray_cluster, which says what to install
from ray.tune.search import Searcher  # isort: skip


def run_search(
    search: Search, out: Path, trials: int | None = None, fleet: Fleet = Fleet()
) -> SweepOutcome:
    """Run points of a search until `trials` of them are in the folder, the base's own first.

    Args:
        out: the search's folder; a run's directory is `out / key`.
        trials: the number of runs in all; None is the search's own. Those of earlier calls count,
            whatever became of them; interrupted ones go on first.

    Raises:
        InputError: the base cannot run, has fewer than two tasks, or the cluster can never hold the
            request.
        KeyboardInterrupt, SystemExit: Ctrl-C, SIGTERM. Everything is closed; the same call goes on.
    """
    out = out.absolute()
    trials = trials or search.trials
    stages = len(check(search.base, RunDirectory(out / search.base.key()), resume=True).stages)
    if stages < 2:
        raise InputError(
            f"search needs at least two tasks, {search.base.data.benchmark} has {stages}: no BWT"
        )
    studies, outcome = Studies(search, out), SweepOutcome()
    before = studies.known()
    with SweepTable([run.trial for run in before], fleet.show, total=trials) as table:
        for run in before:
            key = run.trial.key
            if run.state == "finished":
                outcome.skipped.append(key)
                table.ended(key, "skipped", op=run.objectives[0])
            elif run.state == "stopped" and run.ended:
                outcome.stopped.append(key)
                table.ended(key, "stopped", run.ended["reason"], now=False)
            elif run.state == "failed" and run.ended and not fleet.retry_failed:
                outcome.failed[key] = run.ended["reason"]
                table.ended(key, "failed", run.ended["reason"])
        if outcome.failed:
            table.say(
                f"{len(outcome.failed)} failed before and were left as they are; "
                "--retry-failed runs them again"
            )
        job = Job(out, table, fleet)
        with mirrored(job, outcome):
            problem = in_rounds(job, lambda: _round(studies, job, outcome, trials, stages))
    for run in studies.known():
        key = run.trial.key
        if run.state == "interrupted":
            outcome.failed.setdefault(key, problem or "ended without a result")
        elif run.state == "finished" and key not in outcome.skipped:
            outcome.finished.append(key)
        elif run.state == "stopped" and key not in outcome.stopped:
            outcome.stopped.append(key)
    return outcome


def _round(studies: Studies, job: Job, outcome: SweepOutcome, trials: int, stages: int) -> bool:
    """One experiment over what is missing; says whether there was anything, and may be more."""
    runs = studies.known()
    # What failed in this call is not tried again, nor what failed in an earlier one unless that was
    # asked for.
    again = [
        run
        for run in runs
        if run.state in ("interrupted", "failed") and run.trial.key not in outcome.failed
    ]
    count = len(again) + max(0, trials - len(runs))
    if not count:
        return False
    studies.begin(again)
    asked = Asked(studies, job)
    tuning = {"search_alg": asked, "scheduler": Stopping(studies, stages), "num_samples": count}
    outcome.failed |= fan_out(job, count, {}, **tuning)
    return not asked.used_up


class _Bridge:
    """Tune copies what it is given into its state, which nobody restores; studies stay here."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "studies": None, "job": None}


class Asked(_Bridge, Searcher):
    """Tune's ask and tell, passed on to Optuna's.

    Not Tune's own OptunaSearch: that tells a run that was stopped early as complete, with the
    values of fewer tasks, and runs the same configuration again.
    """

    def __init__(self, studies: Studies, job: Job) -> None:
        super().__init__()
        self.studies, self.job, self.used_up = studies, job, False
        self.keys: dict[str, str] = {}

    def set_search_properties(
        self, metric: Any, mode: Any, config: dict[str, Any], **spec: Any
    ) -> bool:
        """The space is known already."""
        return True

    def suggest(self, trial_id: str) -> Any:
        """The next run."""
        trial = self.studies.ask()
        if trial is None:
            self.used_up = True
            return Searcher.FINISHED
        self.job.table.add(trial)
        self.keys[trial_id] = trial.key
        return {"key": trial.key, "run": trial.config.model_dump(mode="json")}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell Optuna what the run's directory says."""
        self.studies.tell(self.keys.pop(trial_id), error or "refused" in (result or {}))

    def save(self, checkpoint_path: str) -> None:
        """Nothing is kept: Tune's state is never restored."""

    def restore(self, checkpoint_path: str) -> None:
        """See `save`."""


class Stopping(_Bridge, FIFOScheduler):
    """Stops a run after a task if Optuna's pruner says so."""

    def __init__(self, studies: Studies, stages: int) -> None:
        super().__init__()
        self.studies, self.stages = studies, stages

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Say whether the run goes on; see `Studies.falls_behind`."""
        key = trial.config["key"]
        if "stage" not in result:
            return self.CONTINUE
        behind = self.studies.falls_behind(key, result["stage"], result["op"], self.stages)
        return self.STOP if behind else self.CONTINUE
