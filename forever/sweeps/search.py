"""A search: a base run, a space around it, and Optuna's study of it in a journal beside the runs
(`study.log`, which optuna-dashboard opens).

The run directories say how each run ended, so an interrupted search resumes, and a longer one
builds on what a shorter one found.
"""

import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from forever.config.run import RunConfig
from forever.errors import InputError, one_line
from forever.files import writing
from forever.runs.directory import RunDirectory
from forever.seeding import derive
from forever.sweeps.files import SweepFile
from forever.sweeps.parts import Axis, value_of
from forever.sweeps.sweep import Sweep, Trial
from forever.text import Cell, PlainTable

BASE = "base"
# Of the training examples, for what is scored while searching: the test examples must not choose.
VALIDATION = 0.2
JOURNAL = "study.log"
DIRECTIONS = ("maximize", "maximize", "minimize")  # OP, BWT, seconds
_ASKS = 100  # in a row that give no new run: the space is exhausted
_ENOUGH = 4  # finished runs, of which importances can be computed


@dataclass(frozen=True)
class Search:
    """Runs that are found while they run, `trials` of them in all if nobody says otherwise.

    They have the seed of `base`. `name` and `source` are as in `Sweep`.
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
        """Where the base, with which the others are compared, lies in the space; None: outside."""
        own = {axis.key: value_of(axis.key, self.base) for axis in self.space}
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # by which Optuna says that a number is out of its range
            try:
                point = self.ask(_optuna().trial.FixedTrial(own))
            except (ValueError, UserWarning):
                return None
        # A number of the base may have more digits than those of the space.
        return point if point.items() <= own.items() else None

    def sweep(self, point: Mapping[str, Any]) -> Sweep:
        """A point as a sweep of one run."""
        name = BASE
        if self.base.override(point) != self.base:
            labels = {axis.key: axis.label for axis in self.space}
            words: list[str] = []
            for key, value in point.items():
                text = f"{value:g}" if isinstance(value, float) else str(value)
                words.append(f"{labels[key]}{text}")
            name = " ".join(words)
        reference = "" if self.own_point is None else BASE
        seeds, variants = (self.base.seed,), {name: point}
        return Sweep(self.name, self.base, variants, seeds, reference=reference, source=self.source)

    def trial(self, point: Mapping[str, Any]) -> Trial:
        """The run of a point; its key is stable.

        Raises:
            InputError: the run cannot be.
        """
        return self.sweep(point).trials()[0]

    def study_name(self) -> str:
        """Name of the study: another base or another space in the same folder has another one."""
        space = json.dumps([axis.model_dump() for axis in self.space], default=str)
        digest = hashlib.sha256((self.base.fingerprint() + space).encode()).hexdigest()
        return f"{self.base.key()}, space {digest[:6]}"


def find_search(file: SweepFile, base: RunConfig, seeds: Sequence[int] | None = None) -> Search:
    """The search that a file describes around a base run.

    Args:
        seeds: the one seed of all its runs; None for the base's own.

    Raises:
        InputError: there are several seeds, or the file has no space of the base's method.
    """
    if seeds and len(seeds) > 1:
        raise InputError(
            "search compares all its runs on one seed; run the best ones again with the others"
        )
    if seeds:
        base = base.override({"seed": seeds[0]})
    if base.data.validation is None:
        base = base.override({"data.validation": VALIDATION})
    method = base.method.name
    axes = file.space if file.method in (None, method) else file.spaces.get(method, {})
    if not axes:
        raise InputError(
            f"{file.name} has no space of {method!r}; give it one under `spaces`, or a base run "
            f"of {file.method!r}"
        )
    space = tuple(axis.around(base, key) for key, axis in axes.items())
    return Search(file.name, base, space, file.trials, file.source)


# ---- Optuna's study


@dataclass(frozen=True)
class Known:
    """A run that a search has tried, at the `point` (dotted keys) that Optuna chose."""

    trial: Trial
    point: dict[str, Any]
    state: str  # "finished", "failed", "stopped" or "interrupted"
    reason: str = ""  # of a run that ended without a result
    # OP and BWT (more is better) and seconds (less is better) of a finished run.
    objectives: tuple[float, float, float] | None = None


class SearchStudy:
    """Optuna's study of a search: it chooses runs by OP, BWT and seconds, and stops the worse half.

    Optuna's own pruners know a single objective only, so successive halving is done here: after two
    tasks, four, eight and so on a run is stopped if its OP is below the better half of all runs
    after as many tasks. Its trial then counts as pruned, without values: OP over two tasks is not
    comparable with OP over five.
    """

    def __init__(self, search: Search, folder: Path) -> None:
        optuna = _optuna()
        self.search, self.folder = search, folder
        self.states = optuna.trial.TrialState
        folder.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(folder / JOURNAL)
        self.study = optuna.create_study(
            study_name=search.study_name(),
            storage=_storage(folder),
            directions=DIRECTIONS,
            load_if_exists=True,
        )
        # Another stream in each call: the same one would choose the same points again.
        seed = derive(search.base.seed, "search", len(self.study.trials)) % 2**32
        self.study.sampler = optuna.samplers.TPESampler(seed=seed)
        self.running: dict[str, Any] = {}  # Optuna's trials by the key of the run
        self.first: list[dict[str, Any]] = []  # points to try before any that Optuna chooses

    def known(self) -> list[Known]:
        """Return the runs that were tried, once each, in the order of their first try."""
        trials = self.study.get_trials(deepcopy=False)
        points = [trial.user_attrs["point"] for trial in trials if "point" in trial.user_attrs]
        return list({run.trial.key: run for run in map(self._run, points)}.values())

    def best(self) -> list[Known]:
        """Return the finished runs that no other beats in OP, BWT and time; highest OP first."""
        front = {trial.user_attrs.get("key") for trial in self.study.best_trials}
        runs = [run for run in self.known() if run.trial.key in front and run.objectives]
        return sorted(runs, key=attrgetter("objectives"), reverse=True)

    def _run(self, point: dict[str, Any]) -> Known:
        """Return what the folder says of the run at a point."""
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
        """Close what an earlier call left open, and put these runs before all others."""
        for left in self.study.get_trials(deepcopy=False, states=(self.states.RUNNING,)):
            point = left.user_attrs.get("point")
            self._close(left.number, self._run(point) if point else None)
        self.first = [run.point for run in again]
        if not self.study.trials and self.search.own_point is not None:
            self.first.append(self.search.own_point)

    def ask(self) -> Trial | None:
        """Return the next run; None if the space has no other.

        A run that is over is repeated only if `begin` was given it; Optuna gets its values.
        """
        tried = {run.trial.key for run in self.known()}
        for _ in range(_ASKS):
            is_first = bool(self.first)
            if is_first:
                self.study.enqueue_trial(self.first.pop(0))
            proposal = self.study.ask()
            try:
                run = self._run(self.search.ask(proposal))
            except InputError:  # values that do not go together
                self._close(proposal, None)
                continue
            key = run.trial.key
            if key in self.running:  # Optuna gets its values from the trial that runs
                self._close(proposal, None)
                continue
            if is_first or key not in tried:
                proposal.set_user_attr("key", key)
                proposal.set_user_attr("point", run.point)
                self.search.sweep(run.point).write_manifest(self.folder)
                if not run.objectives:
                    self.running[key] = proposal
                    return run.trial
            self._close(proposal, run)
        return None

    def falls_behind(self, key: str, stage: int, op: float) -> bool:
        """Note OP after a task, and return whether the run is to be stopped there.

        The base never is: all others are compared with it. After one task nothing is decided: the
        memory was empty, so with one seed every run has the same OP.
        """
        proposal, name = self.running[key], f"OP after {stage} tasks"
        proposal.set_user_attr(name, op)
        is_rung = stage > 1 and stage.bit_count() == 1
        if not is_rung or proposal.user_attrs["point"] == self.search.own_point:
            return False
        trials = self.study.get_trials(deepcopy=False)
        scores = sorted(t.user_attrs[name] for t in trials if name in t.user_attrs)
        return op < scores[-max(1, len(scores) // 2)]

    def tell(self, key: str, state: str) -> None:
        """Tell Optuna how a run ended: all objectives of a finished one, or none."""
        proposal = self.running.pop(key)
        run = self._run(proposal.user_attrs["point"])
        self._close(proposal, run if run.objectives else replace(run, state=state))

    def _close(self, proposal: Any, run: Known | None) -> None:
        """Tell Optuna how a run ended, or that a trial has none."""
        states = {"finished": self.states.COMPLETE, "stopped": self.states.PRUNED}
        state = states.get(run.state if run else "", self.states.FAIL)
        self.study.tell(proposal, run.objectives if run else None, state=state)


def front_table(search: Search, folder: Path) -> PlainTable:
    """Tabulate the finished runs of a search that no other beats in OP, BWT and time, and its
    base."""
    study = SearchStudy(search, folder)
    runs, front = study.known(), study.best()
    shown = [(run.trial.variant, run, "") for run in front]
    for run in runs:
        if run.trial.variant == BASE and run not in front:
            shown.append(("base, beaten", run, "dim"))
    table = PlainTable("run", title="Best in OP, BWT or time", min_width=80)
    for name, key in {"OP (%)": "op", "BWT": "bwt", "s": "seconds"}.items():
        table.add_column(name, key=key, justify="right")
    for name, run, style in shown:
        if run.objectives:
            values = zip(run.objectives, ("{:.1f}", "{:+.1f}", "{:.0f}"), strict=True)
            cells = [Cell(value, form.format(value)) for value, form in values]
            table.add_row(name, *cells, style=style)
    states = Counter(run.state for run in runs)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    # The best of many runs is partly luck, on these examples and with this seed.
    table.caption = (
        f"{counts}. Scored on examples held out from training, one seed: run the chosen ones on "
        "the test examples."
    )
    return table


def importances(folder: Path) -> dict[str, float]:
    """Return how much of the difference in OP each key of a search explains, most important first.

    They are those of the largest study in the folder, over the keys that all its finished runs
    have. Fewer than four runs give none, nor does a machine without Optuna.

    Raises:
        InputError: the study is damaged.
    """
    if not (folder / JOURNAL).is_file() or find_spec("optuna") is None:
        return {}
    optuna, storage = _optuna(), _storage(folder)
    summaries = optuna.get_all_study_summaries(storage)
    if not summaries:
        return {}
    largest = max(summaries, key=attrgetter("n_trials"))
    study = optuna.load_study(study_name=largest.study_name, storage=storage)
    if len(study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))) < _ENOUGH:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(
            study, evaluator=evaluator, target=lambda trial: trial.values[0]
        )


def _cut_torn_line(journal: Path) -> None:
    """Cut away a last line that a kill or a full disk left without its end.

    Optuna ignores it when it reads, but would append to it. Only one process writes: the search
    holds the lock of its folder.
    """
    content = journal.read_bytes() if journal.is_file() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(journal, content.rfind(b"\n") + 1)


def _storage(folder: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal = folder / JOURNAL

    class Backend(JournalFileBackend):
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with writing(journal):
                super().append_logs(logs)

    with writing(journal):
        backend = Backend(str(journal))
    try:
        return JournalStorage(backend)
    except Exception as error:  # whatever Optuna raises when it reads what it did not write
        remedy = "restore it, or move it away: a new study counts the finished runs it meets again"
        message = f"{journal} is damaged ({one_line(error)}); {remedy}"
        raise InputError(message, path=journal) from None


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("Optuna is not installed; pip install 'forever-cl[ray]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
