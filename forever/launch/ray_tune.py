"""Many runs with Ray Tune: what is missing of a sweep is fanned out, failures stay with the trial
that has them."""

from collections.abc import Sequence
from pathlib import Path

from forever.launch.fleet import Fleet
from forever.launch.ray_experiment import Job, SweepOutcome, fan_out, in_rounds, mirrored
from forever.runs.directory import RunDirectory
from forever.sweeps.checks import check_finished, refused
from forever.sweeps.sweep import Sweep, Trial
from forever.sweeps.table import SweepTable

from ray import tune  # isort: skip - after ray_cluster, which says what to install if there is no Ray


def run_sweep(sweep: Sweep, out: Path, fleet: Fleet = Fleet()) -> SweepOutcome:
    """Run all trials of a sweep that have no result yet and did not fail before.

    Args:
        out: the sweep's folder; a trial's directory is `out / trial.key`. On several machines it
        must be shared.

    Raises:
        InputError: no trial can run (bad data, missing model), the data have changed since some
        were finished, or the
            cluster can never hold the request.
        KeyboardInterrupt, SystemExit: Ctrl-C, SIGTERM. Everything is closed; the same call goes on.
    """
    out = out.absolute()
    trials, outcome = sweep.trials(), SweepOutcome()
    outcome.skipped = [
        trial.key for trial in trials if RunDirectory(out / trial.key).finished() is not None
    ]
    before = {} if fleet.retry_failed else failed_before(out, trials)
    todo = [
        trial for trial in trials if trial.key not in outcome.skipped and trial.key not in before
    ]
    check_finished(trials, out)
    outcome.failed = before | refused(todo, others=bool(outcome.skipped or before))
    sweep.write_manifest(out)
    with SweepTable(trials, fleet.show) as table:
        for key in outcome.skipped:
            table.ended(key, "skipped")
        for key, error in outcome.failed.items():
            table.ended(key, "failed", error)
        if before:
            table.say(
                f"{len(before)} failed before and were left as they are; --retry-failed runs them again"
            )
        job = Job(out, table, fleet)
        with mirrored(job, outcome):
            _run(job, [trial for trial in todo if trial.key not in outcome.failed], outcome)
    return outcome


def failed_before(out: Path, trials: Sequence[Trial]) -> dict[str, str]:
    """The errors of the trials that failed for good in an earlier invocation, by key."""
    ends = {trial.key: RunDirectory(out / trial.key).end_without_result() for trial in trials}
    return {key: end["reason"] for key, end in ends.items() if end and end["state"] == "failed"}


def _run(job: Job, todo: Sequence[Trial], outcome: SweepOutcome) -> None:
    def attempt() -> bool:
        left = [
            t
            for t in todo
            if t.key not in outcome.failed and job.directory(t.key).finished() is None
        ]
        if left:
            runs = {trial.key: trial.config.model_dump(mode="json") for trial in left}
            outcome.failed |= fan_out(job, len(left), {"key": tune.grid_search(list(runs))}, runs)
        return bool(left)

    problem = in_rounds(job, attempt)
    for trial in todo:
        if job.directory(trial.key).finished() is not None:
            outcome.finished.append(trial.key)
        elif trial.key not in outcome.failed:
            outcome.failed[trial.key] = problem or "ended without a result"
            job.table.ended(trial.key, "failed", outcome.failed[trial.key])
