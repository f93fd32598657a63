"""Optuna's study of a search, whose journal (`study.log`, which optuna-dashboard opens) lies beside
the runs.

Run directories say what became of each run, so an interrupted search goes on, and a longer one
builds on what a shorter one found.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from forever.errors import InputError, one_line
from forever.files import writing
from forever.runs.directory import RunDirectory
from forever.seeding import derive
from forever.sweeps.search import Search
from forever.sweeps.sweep import Trial

JOURNAL = "study.log"
DIRECTIONS = ("maximize", "maximize", "minimize")  # OP, BWT, seconds
# The memory is empty in the first task: with one seed, every run of the search has the same OP
# after it. From the second task on, the better half goes on.
_GRACE, _REDUCTION = 2, 2
_ASKS = 100  # in a row that give nothing new: the space is used up
_ENOUGH = 4  # finished runs, of which something can be said
# What Optuna raises that reads what it did not write.
_STRANGE = (AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_REMEDY = "take it from a backup, or move it away: runs that are over count when they come up again"


@dataclass(frozen=True)
class Known:
    """A run that a search has asked for, at the `point` (dotted keys) that Optuna chose."""

    trial: Trial
    point: dict[str, Any]
    state: str  # "finished", "failed", "stopped" or "interrupted"
    reason: str = ""  # of a run that ended without a result
    # OP and BWT (more is better) and seconds (less is better) of a finished run.
    objectives: tuple[float, float, float] | None = None


class Studies:
    """Optuna's two studies of a search: of whole runs, and of OP after each task.

    Optuna stops runs of a single objective only, so the second one, whose trials are the same runs,
    decides what is stopped. It compares like with like: OP after the same number of tasks. What is
    stopped counts in the first as pruned, without values: its OP over two tasks is no OP over five.
    """

    def __init__(self, search: Search, folder: Path) -> None:
        optuna = _optuna()
        self.search, self.folder = search, folder
        self.states = optuna.trial.TrialState
        folder.mkdir(parents=True, exist_ok=True)
        pruner = optuna.pruners.SuccessiveHalvingPruner(_GRACE, _REDUCTION)
        with _reading(folder / JOURNAL):
            name, about = search.study_name(), {"storage": _storage(folder), "load_if_exists": True}
            twin = f"{name}, OP after each task"
            self.study = optuna.create_study(study_name=name, directions=DIRECTIONS, **about)
            self.stops = optuna.create_study(
                study_name=twin, direction="maximize", pruner=pruner, **about
            )
            # Another stream in each call: the same one would choose the same points again.
            seed = derive(search.base.seed, "search", len(self.study.trials)) % 2**32
        self.study.sampler = optuna.samplers.TPESampler(seed=seed)
        self.running: dict[str, tuple[Any, Any]] = {}
        self.again: list[dict[str, Any]] = []

    def known(self) -> list[Known]:
        """The runs that were asked for, once each, in the order of the first time."""
        with _reading(self.folder / JOURNAL):
            asked = self.study.get_trials(deepcopy=False)
            points = [trial.user_attrs["point"] for trial in asked if "point" in trial.user_attrs]
            return list({run.trial.key: run for run in map(self._run, points)}.values())

    def best(self) -> list[Known]:
        """The finished runs that no other beats in OP, BWT and time; highest OP first."""
        front = {trial.user_attrs.get("key") for trial in self.study.best_trials}
        runs = [run for run in self.known() if run.trial.key in front and run.objectives]
        return sorted(runs, key=attrgetter("objectives"), reverse=True)

    def _run(self, point: dict[str, Any]) -> Known:
        """What the folder says of a point's run."""
        trial = self.search.trial(point)
        directory = RunDirectory(self.folder / trial.key)
        result, end = directory.finished(), directory.end_without_result() or {}
        if result is None:
            return Known(trial, point, end.get("state", "interrupted"), end.get("reason", ""))
        # Joint training learns all tasks at once, so it has no BWT: none can be forgotten.
        bwt = 0.0 if result["bwt"] is None else result["bwt"]
        objectives = result["op"], bwt, sum(result["seconds"].values())
        return Known(trial, point, "finished", objectives=objectives)

    def begin(self, again: Sequence[Known]) -> None:
        """Close what an earlier call left open, and ask for these runs first."""
        for left in self.study.get_trials(deepcopy=False, states=(self.states.RUNNING,)):
            point = left.user_attrs.get("point")
            self._close(left.number, self._run(point) if point else None)
        for left in self.stops.get_trials(deepcopy=False, states=(self.states.RUNNING,)):
            self.stops.tell(left.number, state=self.states.FAIL)
        self.again = [run.point for run in again]
        if not self.study.trials and self.search.own_point is not None:
            self.again.append(self.search.own_point)

    def ask(self) -> Trial | None:
        """The next run; None if the space has no other.

        One that is over is not run again unless that was asked for: Optuna is told its numbers.
        """
        asked_before = {run.trial.key for run in self.known()}
        for _ in range(_ASKS):
            wanted = bool(self.again)
            if wanted:
                self.study.enqueue_trial(self.again.pop(0))
            asked = self.study.ask()
            try:
                run = self._run(self.search.ask(asked))
            except InputError:  # values that do not go together
                self._close(asked, None)
                continue
            key = run.trial.key
            if key in self.running:
                self._close(asked, None)  # its numbers come with its twin
                continue
            if wanted or key not in asked_before:
                asked.set_user_attr("key", key)
                asked.set_user_attr("point", run.point)
                self.search.sweep(run.point).write_manifest(self.folder)
                if not run.objectives:
                    self.running[key] = asked, self.stops.ask()
                    return run.trial
            self._close(asked, run)
        return None

    def falls_behind(self, key: str, stage: int, op: float) -> bool:
        """Note OP after a task; says whether the run is to be stopped there.

        The base never is: all others are compared with it.
        """
        asked, twin = self.running[key]
        twin.report(op, stage)
        return asked.user_attrs["point"] != self.search.own_point and twin.should_prune()

    def tell(self, key: str, state: str) -> None:
        """Say what became of a run: all objectives of a whole one, or none."""
        asked, twin = self.running.pop(key)
        run = self._run(asked.user_attrs["point"])
        if not run.objectives:
            run = replace(run, state=state)
        op = run.objectives[0] if run.objectives else None
        self.stops.tell(twin, op, state=self._close(asked, run))

    def _close(self, asked: Any, run: Known | None) -> Any:
        """Tell Optuna what became of a run, or that there is none; returns its state there."""
        states = {"finished": self.states.COMPLETE, "stopped": self.states.PRUNED}
        state = states.get(run.state if run else "", self.states.FAIL)
        self.study.tell(asked, run.objectives if run else None, state=state)
        return state


def importances(folder: Path) -> dict[str, float]:
    """How much of the difference in OP each key of a search explains, most important first.

    They are those of the largest study in the folder, over the keys that all its finished runs
    have. Nothing is said of fewer than four runs, or where Optuna is not installed.

    Raises:
        InputError: the study is damaged.
    """
    if not (folder / JOURNAL).is_file() or find_spec("optuna") is None:
        return {}
    with _reading(folder / JOURNAL):
        return _importances(folder)


def _importances(folder: Path) -> dict[str, float]:
    optuna, storage = _optuna(), _storage(folder)
    studies = optuna.get_all_study_summaries(storage)
    searches = [study for study in studies if len(study.directions) == len(DIRECTIONS)]
    largest = max(searches, key=lambda study: study.n_trials)
    study = optuna.load_study(study_name=largest.study_name, storage=storage)
    if len(study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))) < _ENOUGH:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(
            study, evaluator=evaluator, target=lambda trial: trial.values[0]
        )


def _mend(journal: Path) -> None:
    """Cut away a last line that was not written to its end, before Optuna appends to it."""
    from optuna.storages.journal import JournalFileSymlinkLock

    if not _torn(journal):
        return
    lock = JournalFileSymlinkLock(str(journal))  # Optuna's own: others may be writing
    lock.acquire()
    try:
        if _torn(journal):
            os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
    finally:
        lock.release()


def _torn(journal: Path) -> bool:
    with journal.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() not in (b"", b"\n")


@contextmanager
def _reading(journal: Path) -> Iterator[None]:
    """Say in one line, by an InputError, that Optuna cannot make sense of its journal."""
    try:
        yield
    except InputError:  # a file of a run, or the journal cannot be written
        raise
    except _STRANGE as error:
        problem = one_line(error)
        raise InputError(f"{journal} is damaged ({problem}); {_REMEDY}") from None


def _storage(folder: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal = folder / JOURNAL

    class Backend(JournalFileBackend):
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with writing(journal):
                _mend(journal)
                super().append_logs(logs)

    with writing(journal):
        return JournalStorage(Backend(str(journal)))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("Optuna is not installed; pip install 'forever-cl[ray]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
