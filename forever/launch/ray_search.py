"""A search: Optuna chooses runs while others run, and stops those that fall behind between tasks.

Stopping trusts OP: a run that is cheap but low in OP may be given up, and the front is that of the
runs that were allowed to finish.
"""

from itertools import islice
from pathlib import Path

from rich.console import Console

from forever.errors import InputError
from forever.launch.copies import bring
from forever.launch.fleet import Fleet, SweepOutcome
from forever.launch.local import check
from forever.launch.ray_tune import fan_out
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.storage.copying import of_sweep
from forever.storage.mirror import mirrored
from forever.sweeps.search import Search
from forever.sweeps.study import SearchStudy
from forever.sweeps.table import SweepTable


def run_search(
    search: Search,
    out: Path,
    trials: int | None = None,
    fleet: Fleet = Fleet(),
    console: Console | None = None,
) -> SweepOutcome:
    """Run points of a search until `trials` of them are in the folder, the base's own first.

    Args:
        out: the search's folder; a run's directory is `out / key`.
        trials: the number of runs in all; None is the search's own. Those of earlier calls count,
            whatever became of them; interrupted ones go on first.
        console: as for `run_sweep`.

    Raises:
        InputError, Stopped: as `run_sweep`; the base has fewer than two tasks.
    """
    out = out.absolute()
    with locked(out, patience_s=0), mirrored(out, chosen=of_sweep):
        bring(out)
        return _run_search(search, out, trials or search.trials, fleet, console)


def _run_search(
    search: Search, out: Path, trials: int, fleet: Fleet, console: Console | None
) -> SweepOutcome:
    outcome = SweepOutcome()
    stages = len(check(search.base, RunDirectory(out / search.base.key()), resume=True).stages)
    if stages < 2:
        raise InputError(
            f"search needs at least two tasks, {search.base.data.benchmark} has {stages}: no BWT"
        )
    studies = SearchStudy(search, out)
    before = studies.known()
    again = [run for run in before if run.state == "interrupted"]
    if fleet.retry_failed:
        again += [run for run in before if run.state == "failed"]
    new = max(0, trials - len(before))
    studies.begin(again)
    with SweepTable([run.trial for run in before], fleet.show, console, total=trials) as table:
        for run in before:
            key = run.trial.key
            if run in again:
                continue
            if run.state == "finished":
                outcome.skipped.append(key)
                table.ended(key, "skipped")
            elif run.state == "stopped":
                outcome.stopped.append(key)
                table.ended(key, "skipped")
            else:
                outcome.failed[key] = run.reason
                table.ended(key, "failed", run.reason)
        table.say_failed_before(len(outcome.failed))
        if todo := len(again) + new:
            asked = islice(iter(studies.ask, None), todo)
            count = len(before) + new
            fan_out(asked, out, fleet, table, outcome, count=count, studies=studies)
    return outcome
