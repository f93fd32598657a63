"""A search: Optuna chooses runs while others run, and stops those that fall behind between tasks.

Stopping trusts OP: a run that is cheap but low in OP may be given up, and the front is that of the
runs that were allowed to finish.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from forever.errors import InputError
from forever.launch.fleet import Fleet, SweepOutcome
from forever.launch.local import check
from forever.launch.ray_tune import fan_out, mirrored
from forever.runs.directory import RunDirectory
from forever.sweeps.search import Search
from forever.sweeps.studies import Known, Studies
from forever.sweeps.sweep import Trial
from forever.sweeps.table import SweepTable


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
    out, trials = out.absolute(), trials or search.trials
    stages = len(check(search.base, RunDirectory(out / search.base.key()), resume=True).stages)
    if stages < 2:
        raise InputError(
            f"search needs at least two tasks, {search.base.data.benchmark} has {stages}: no BWT"
        )
    studies, outcome = Studies(search, out), SweepOutcome()
    before = studies.known()
    again = [run for run in before if run.state == "interrupted"]
    if fleet.retry_failed:
        again += [run for run in before if run.state == "failed"]
    count = len(again) + max(0, trials - len(before))
    studies.begin(again)
    with SweepTable([run.trial for run in before], fleet.show, total=trials) as table:
        _show_earlier([run for run in before if run not in again], table, outcome)
        with mirrored(out, fleet, table, outcome):
            fan_out(
                _asked(studies, count), out, fleet, table, outcome, count=count,
                on_stage=lambda trial, stage, scores: _behind(studies, trial, stage, scores),
                on_end=lambda trial, state, reason: studies.tell(trial.key, state),
            )  # fmt: skip
    return outcome


def _show_earlier(runs: list[Known], table: SweepTable, outcome: SweepOutcome) -> None:
    """Put what was over before into the table and the outcome."""
    for run in runs:
        key = run.trial.key
        if run.state == "finished":
            outcome.skipped.append(key)
            table.ended(key, "skipped")
        elif run.state == "stopped":
            outcome.stopped.append(key)
            table.ended(key, "skipped")
        else:
            outcome.failed[key] = run.reason
            table.ended(key, "failed", run.reason)
    if outcome.failed:
        left = f"{len(outcome.failed)} failed before and were left as they are"
        table.say(f"{left}; --retry-failed runs them again")


def _asked(studies: Studies, count: int) -> Iterator[Trial]:
    """So many runs, fewer if the space has no more."""
    for _ in range(count):
        trial = studies.ask()
        if trial is None:
            return
        yield trial


def _behind(studies: Studies, trial: Trial, stage: int, scores: Mapping[str, float | None]) -> bool:
    op = scores["op"]
    return op is not None and studies.falls_behind(trial.key, stage, op)
