"""A search as pure data: a base run and a space that is asked for differences. Optuna and Ray are
not known here."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

from forever.config.overrides import flatten
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.runs.directory import RunDirectory, write_text
from forever.sweeps.sweep import Sweep, Trial, read_manifest

BASE = "base"
_POINT = "point.json"
T = TypeVar("T")


class Suggests(Protocol):
    """What a space asks: an Optuna trial, or anything that answers like one. Names are dotted keys
    of the run."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int: ...

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...


@dataclass(frozen=True)
class Search:
    """A family of runs that is found while it runs.

    Attributes:
        name: also the name of the folder and of the MLflow experiment.
        base: the run from which all others differ. Its seed is that of every run.
        space: asks for values and returns the dotted keys that differ; what it asks may depend on
        what it was told.
        label: names a difference from the base; the base itself is called "base".
    """

    name: str
    base: RunConfig
    space: Callable[[Suggests], dict[str, Any]]
    label: Callable[[Mapping[str, Any]], str]

    def sweep(self, point: Mapping[str, Any]) -> Sweep:
        """One point of the space as a sweep of one trial."""
        changes = self.space(_Answers(point))
        own = self.base.override(changes) == self.base
        variants = {BASE if own else self.label(changes): changes}
        return Sweep(
            self.name,
            self.base,
            variants,
            (self.base.seed,),
            reference=BASE if self.own_point() else "",
        )

    def trial(self, point: Mapping[str, Any]) -> Trial:
        """The run of a point; its key is stable.

        Args:
            point: the answers that the space got, by name.

        Raises:
            InputError: the space asks for something that the point does not say, or the run cannot
            be.
        """
        (trial,) = self.sweep(point).trials()
        return trial

    def draw(self, random: Random) -> Trial:
        """The run of a point that is drawn from the space, as the first ones of a search are."""
        draws = Draws(random)
        self.space(draws)
        return self.trial(draws.params)

    def own_point(self) -> dict[str, Any] | None:
        """The point at which the base itself lies: what the others are compared with. None if it is
        outside."""
        answers = _Answers(flatten(self.base.model_dump()))
        try:
            changes = self.space(answers)
        except InputError:
            return None
        if self.base.override(changes) != self.base:  # the space rounds
            return None
        return answers.asked


@dataclass(frozen=True)
class Known:
    """A run of a search that is on disk.

    Attributes:
        result: of a finished one. ended: see `RunDirectory.end_without_result`. Neither: it was
        interrupted.
    """

    trial: Trial
    point: dict[str, Any]
    result: dict[str, Any] | None
    ended: dict[str, str] | None

    @property
    def state(self) -> str:
        """ "finished", "failed", "stopped" or "interrupted"."""
        return (
            "finished"
            if self.result is not None
            else self.ended["state"]
            if self.ended
            else "interrupted"
        )

    @property
    def objectives(self) -> tuple[float, float, float]:
        """OP and BWT (more is better) and seconds (less is better) of a finished run."""
        assert self.result is not None
        return self.result["op"], self.result["bwt"], sum(self.result["seconds"].values())


def remember(search: Search, point: Mapping[str, Any], folder: Path) -> Trial:
    """List a point's run in the manifest of `folder`, and keep the point in the run's own
    folder."""
    trial = search.trial(point)
    write_text(folder / trial.key / _POINT, json.dumps(dict(point), indent=1) + "\n")
    search.sweep(point).write_manifest(folder)
    return trial


def known(search: Search, folder: Path) -> list[Known]:
    """The runs of this search that are in `folder`, in the order in which they were found.

    Runs that were searched from another base lie in the same folder and are left out: their numbers
    say little here.
    """
    found: list[Known] = []
    listed = read_manifest(folder)["trials"] if (folder / "sweep.json").is_file() else []
    for key in (entry["key"] for entry in listed):
        path = folder / key / _POINT
        if not path.is_file():
            continue
        point = json.loads(path.read_text(encoding="utf-8"))
        try:
            trial = search.trial(point)
        except InputError:  # the space has changed
            continue
        if trial.key == key:
            directory = RunDirectory(folder / key)
            found.append(Known(trial, point, directory.finished(), directory.end_without_result()))
    return found


def front(runs: Iterable[T], objectives: Callable[[T], tuple[float, float, float]]) -> list[T]:
    """The runs that no other beats: at least as good in OP, BWT and time, and better in one.
    Highest OP first."""
    found = [(run, objectives(run)) for run in runs]
    scores = [(op, bwt, -seconds) for _, (op, bwt, seconds) in found]

    def beaten(mine: tuple[float, ...]) -> bool:
        return any(
            all(a >= b for a, b in zip(other, mine, strict=True))
            for other in scores
            if other != mine
        )

    best = [(run, mine) for (run, _), mine in zip(found, scores, strict=True) if not beaten(mine)]
    return [run for run, _ in sorted(best, key=lambda pair: pair[1], reverse=True)]


class _Answers:
    """Answers a space from known values.

    Raises:
        InputError: a value is missing or out of the space's range.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.asked: dict[str, Any] = {}

    def _answer(self, name: str, allowed: Callable[[Any], bool]) -> Any:
        if name not in self.values or not allowed(self.values[name]):
            raise InputError(f"{name}={self.values.get(name)!r} is not in the space of the search")
        self.asked[name] = self.values[name]
        return self.values[name]

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        return self._answer(name, lambda value: low <= value <= high)

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        return self._answer(name, lambda value: low <= value <= high)

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._answer(name, lambda value: value in choices)


class Draws:
    """Answers a space at random, evenly in the logarithm where it asks for that, and remembers what
    it was asked."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.params: dict[str, Any] = {}

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        if log:
            self.params[name] = math.exp(self.random.uniform(math.log(low), math.log(high)))
        else:
            self.params[name] = self.random.uniform(low, high)
        return self.params[name]

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        value = round(self.suggest_float(name, low - 0.5, high + 0.5, log=log))
        self.params[name] = min(max(value, low), high)
        return self.params[name]

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        self.params[name] = self.random.choice(choices)
        return self.params[name]
