"""A search: a space around a base run, and Optuna's study of it, which lies beside its runs.

The study keeps its journal in the search's folder (`study.log`, which optuna-dashboard opens); run
directories say what became of each run, so an interrupted search goes on, and a longer one builds
on what a shorter one found.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.runs.directory import RunDirectory
from forever.seeding import derive
from forever.sweeps.files import SweepFile
from forever.sweeps.parts import value_of
from forever.sweeps.space import Axis, space_of
from forever.sweeps.sweep import Sweep, Trial

BASE = "base"
JOURNAL = "study.log"
# Of the training examples, for what is scored while searching: the test examples must not choose.
VALIDATION = 0.2
DIRECTIONS = ("maximize", "maximize", "minimize")  # OP, BWT, seconds
# The memory is empty in the first task: with one seed, every run of the search has the same OP
# after it. From the second task on, the better half goes on.
_GRACE, _REDUCTION = 2, 2
_ASKS = 100  # in a row that give nothing new: the space is used up


@dataclass(frozen=True)
class Search:
    """Runs that are found while they run.

    Attributes:
        name: also the name of the folder and of the MLflow experiment.
        base: the run from which all others differ. Its seed is that of every run.
        trials: how many runs there are in all, if nobody says otherwise.
    """

    name: str
    base: RunConfig
    space: tuple[Axis, ...]
    trials: int
    source: str = ""

    def ask(self, trial: Any) -> dict[str, Any]:
        """A point of the space from an Optuna trial, as dotted keys."""
        point: dict[str, Any] = {}
        for axis in self.space:
            if axis.acts(point):
                point[axis.key] = axis.ask(trial)
        return point

    @cached_property
    def own_point(self) -> dict[str, Any] | None:
        """The point at which the base lies, with which the others are compared; None if it is
        outside."""
        point: dict[str, Any] = {}
        for axis in self.space:
            if axis.acts(point):
                point[axis.key] = value_of(axis.key, self.base)
                if not axis.holds(point[axis.key]):
                    return None
        return point

    def sweep(self, point: Mapping[str, Any]) -> Sweep:
        """A point as a sweep of one run."""
        labels = {axis.key: axis.label for axis in self.space}
        texts = [
            f"{labels[key]}{value:g}" if isinstance(value, float) else f"{labels[key]}{value}"
            for key, value in point.items()
        ]
        is_base = self.base.override(point) == self.base
        name = BASE if is_base else " ".join(texts)
        reference = BASE if self.own_point is not None else ""
        seeds = (self.base.seed,)
        return Sweep(
            self.name, self.base, {name: point}, seeds, reference=reference, source=self.source
        )

    def trial(self, point: Mapping[str, Any]) -> Trial:
        """The run of a point; its key is stable.

        Raises:
            InputError: the run cannot be.
        """
        (trial,) = self.sweep(point).trials()
        return trial

    def study_name(self) -> str:
        """Name of the study: another base or another space in the same folder has another one."""
        space = json.dumps([asdict(axis) for axis in self.space], default=str)
        digest = hashlib.sha256((self.base.fingerprint() + space).encode()).hexdigest()
        return f"{self.base.key()}, space {digest[:6]}"


def find_search(file: SweepFile, base: RunConfig, seeds: Sequence[int] | None = None) -> Search:
    """The search that a file describes around a base run.

    Args:
        seeds: the one seed of all its runs; None for the base's own.

    Raises:
        InputError: there are several seeds, or the base's method has nothing to search.
    """
    if seeds and len(seeds) > 1:
        raise InputError(
            "search compares all its runs on one seed; run the best ones again with the others"
        )
    if seeds:
        base = base.override({"seed": seeds[0]})
    if base.data.validation is None:
        base = base.override({"data.validation": VALIDATION})
    space = space_of(file, base)
    return Search(file.name, base, space, file.trials, file.text if file.own else "")


# ---- what is in a folder


@dataclass(frozen=True)
class Known:
    """A run of a search that was asked for.

    Attributes:
        params: what Optuna chose.
        result: of a finished run.
        ended: how a run ended that has no result; neither: it was interrupted.
    """

    trial: Trial
    params: dict[str, Any]
    result: dict[str, Any] | None
    ended: dict[str, str] | None

    @property
    def state(self) -> str:
        """ "finished", "failed", "stopped" or "interrupted"."""
        if self.result is not None:
            return "finished"
        return self.ended["state"] if self.ended else "interrupted"

    @property
    def objectives(self) -> tuple[float, float, float]:
        """OP and BWT (more is better) and seconds (less is better) of a finished run."""
        assert self.result is not None
        return self.result["op"], self.result["bwt"], sum(self.result["seconds"].values())


def known(search: Search, folder: Path) -> list[Known]:
    """The runs that a search has asked for in a folder, in the order in which it did."""
    if not (folder / JOURNAL).is_file():
        return []
    return Studies(search, folder).known()


def best(search: Search, folder: Path) -> list[Known]:
    """The finished runs that no other beats in OP, BWT and time; highest OP first."""
    if not (folder / JOURNAL).is_file():
        return []
    studies = Studies(search, folder)
    front = {trial.user_attrs.get("key") for trial in studies.study.best_trials}
    runs = [run for run in studies.known() if run.trial.key in front and run.result is not None]
    return sorted(runs, key=lambda run: run.objectives, reverse=True)


def importances(folder: Path) -> dict[str, float]:
    """How much of the difference in OP each key of a search explains, most important first.

    They are those of the largest study in the folder, over the keys that all its finished runs
    have. Nothing is said of fewer than four runs.
    """
    if not (folder / JOURNAL).is_file():
        return {}
    optuna = _optuna()
    storage = _storage(folder)
    names = [summary.study_name for summary in optuna.get_all_study_summaries(storage)]
    studies = [optuna.load_study(study_name=name, storage=storage) for name in names]
    whole = (optuna.trial.TrialState.COMPLETE,)
    searched = [study for study in studies if len(study.directions) == len(DIRECTIONS)]
    if not searched:
        return {}
    study = max(searched, key=lambda study: len(study.get_trials(states=whole)))
    if len(study.get_trials(states=whole)) < 4:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(
            study, evaluator=evaluator, target=lambda trial: trial.values[0]
        )


class Studies:
    """Optuna's two studies of a search: of whole runs, and of OP after each task.

    Optuna stops runs of a single objective only, so the second one, whose trials are the same runs,
    decides what is stopped. It compares like with like: OP after the same number of tasks. What is
    stopped counts in the first as pruned, without values: its OP over two tasks is no OP over five.
    """

    def __init__(self, search: Search, folder: Path) -> None:
        optuna = _optuna()
        self.search, self.folder = search, folder
        self.state = optuna.trial.TrialState
        folder.mkdir(parents=True, exist_ok=True)
        name, about = search.study_name(), {"storage": _storage(folder), "load_if_exists": True}
        pruner = optuna.pruners.SuccessiveHalvingPruner(_GRACE, _REDUCTION)
        self.study = optuna.create_study(study_name=name, directions=DIRECTIONS, **about)
        self.stops = optuna.create_study(
            study_name=f"{name}, OP after each task", direction="maximize", pruner=pruner, **about
        )
        # Another stream in each call: the same one would choose the same points again.
        seed = derive(search.base.seed, "search", len(self.study.trials)) % 2**32
        self.study.sampler = optuna.samplers.TPESampler(seed=seed)
        self.running: dict[str, tuple[Any, Any]] = {}
        self.again: list[dict[str, Any]] = []

    def known(self) -> list[Known]:
        """The runs that were asked for, once each, in the order of the first time."""
        runs: dict[str, Known] = {}
        for asked in self.study.get_trials(deepcopy=False):
            if "point" in asked.user_attrs:
                trial = self.search.trial(asked.user_attrs["point"])
                directory = RunDirectory(self.folder / trial.key)
                result, ended = directory.finished(), directory.end_without_result()
                runs[trial.key] = Known(trial, asked.params, result, ended)
        return list(runs.values())

    def begin(self, again: Sequence[Known]) -> None:
        """Close what an earlier call left open, and ask for these runs first."""
        results = {run.trial.key: run for run in self.known() if run.result is not None}
        for left in self.study.get_trials(deepcopy=False, states=(self.state.RUNNING,)):
            run = results.get(left.user_attrs.get("key"))
            state = self.state.COMPLETE if run else self.state.FAIL
            self.study.tell(left.number, run.objectives if run else None, state=state)
        for left in self.stops.get_trials(deepcopy=False, states=(self.state.RUNNING,)):
            self.stops.tell(left.number, state=self.state.FAIL)
        self.again = [run.params for run in again]
        if not self.study.trials and self.search.own_point is not None:
            self.again.append(self.search.own_point)

    def ask(self) -> Trial | None:
        """The next run; None if the space has no other. One that is over is not run again: Optuna
        is told its numbers."""
        over = {run.trial.key: run for run in self.known() if run.state != "interrupted"}
        for _ in range(_ASKS):
            repeated = bool(self.again)
            if repeated:
                self.study.enqueue_trial(self.again.pop(0))
            asked = self.study.ask()
            try:
                point = self.search.ask(asked)
                trial = self.search.trial(point)
            except InputError:  # values that do not go together
                self.study.tell(asked, state=self.state.FAIL)
                continue
            if trial.key in self.running:
                self.study.tell(asked, state=self.state.FAIL)  # its numbers come with its twin
                continue
            if trial.key in over and not (repeated and over[trial.key].state == "failed"):
                self._tell(asked, over[trial.key])
                continue
            asked.set_user_attr("key", trial.key)
            asked.set_user_attr("point", point)
            self.search.sweep(point).write_manifest(self.folder)
            if RunDirectory(self.folder / trial.key).finished() is None:
                self.running[trial.key] = asked, self.stops.ask()
                return trial
            over = {run.trial.key: run for run in self.known() if run.state != "interrupted"}
            self._tell(asked, over[trial.key])
        return None

    def falls_behind(self, key: str, stage: int, op: float) -> bool:
        """Note OP after a task; says whether the run is to be stopped there."""
        twin = self.running[key][1]
        twin.report(op, stage)
        return twin.should_prune()

    def tell(self, key: str, state: str) -> None:
        """Say what became of a run: all objectives of a whole one, or none."""
        asked, twin = self.running.pop(key)
        result = RunDirectory(self.folder / key).finished()
        ended = {"state": state, "reason": ""}
        run = Known(self.search.trial(asked.user_attrs["point"]), {}, result, ended)
        self._tell(asked, run)
        values = run.objectives[0] if run.result is not None else None
        self.stops.tell(twin, values, state=self._state(run))

    def _tell(self, asked: Any, run: Known) -> None:
        objectives = run.objectives if run.result is not None else None
        self.study.tell(asked, objectives, state=self._state(run))

    def _state(self, run: Known) -> Any:
        states = {"finished": self.state.COMPLETE, "stopped": self.state.PRUNED}
        return states.get(run.state, self.state.FAIL)


def _storage(folder: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("Optuna is not installed; pip install 'forever-cl[ray]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
