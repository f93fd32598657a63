"""A search as pure data: a base run and a space around it, from a file or from the fields of a
method. Optuna and Ray are not known here."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.sweeps.files import SweepFile
from forever.sweeps.parts import bounds, field_schema, resolve, value_of
from forever.sweeps.sweep import Sweep, Trial

BASE = "base"
# Of the training examples, for what is scored while searching: the test examples must not choose.
VALIDATION = 0.2


@dataclass(frozen=True)
class Axis:
    """A key of a space.

    Attributes:
        choices: what it may be; none of them: a number from `low` to `high`.
        condition: by key, the values with which this one acts.
        label: what stands before its value in a run's name.
    """

    key: str
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    condition: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    label: str = ""

    def acts(self, point: Mapping[str, Any]) -> bool:
        """Whether the key matters beside the values that were chosen before it."""
        return all(point.get(key) in allowed for key, allowed in self.condition.items())

    def ask(self, trial: Any) -> Any:
        """A value from an Optuna trial; numbers with two digits."""
        if self.choices:
            return trial.suggest_categorical(self.key, self.choices)
        if isinstance(self.low, int):
            return trial.suggest_int(self.key, self.low, int(self.high), log=self.log)
        return _two_digits(trial.suggest_float(self.key, self.low, self.high, log=self.log))

    def holds(self, value: Any) -> bool:
        """Whether the space has this value, digit for digit."""
        if self.choices:
            return value in self.choices
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return isinstance(self.low, int) or value == _two_digits(value)


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


# ---- the space


def space_of(file: SweepFile, base: RunConfig) -> tuple[Axis, ...]:
    """The space of a file around a base run; a base of another method than the file's has that of
    its fields."""
    if file.method not in (None, base.method.name):
        return default_space(base)
    axes: list[Axis] = []
    for key, dimension in file.space.items():
        low, high = (
            resolve(end, key, (base, RunConfig()), "") for end in (dimension.low, dimension.high)
        )
        label = f"{_last(key)}=" if dimension.label is None else dimension.label
        if not dimension.among and field_schema(base, key).get("type") != "integer":
            low, high = float(low), float(high)
        axes.append(
            Axis(key, dimension.among, low, high, dimension.log, dimension.condition, label)
        )
    return tuple(axes)


def default_space(base: RunConfig) -> tuple[Axis, ...]:
    """The space of a method that has no file: every field of it that is a choice or a number.

    A number goes over its whole range if the field has one, else from a tenth to ten times what it
    is (a whole number from a quarter to four times). Fields that leave a number to the method
    (None) and those of several parts stay. A method without any has its learning rate searched.
    """
    axes: list[Axis] = []
    for name in type(base.method).model_fields:
        axis = _axis(f"method.{name}", base)
        if name != "name" and axis is not None:
            axes.append(axis)
    learning_rate = _axis("optim.lr", base)
    assert learning_rate is not None
    return tuple(axes) or (learning_rate,)


def _axis(key: str, base: RunConfig) -> Axis | None:
    schema, own = field_schema(base, key), value_of(key, base)
    label = f"{_last(key)}="
    if "enum" in schema:
        return Axis(key, tuple(schema["enum"]), label=label)
    if schema.get("type") == "boolean":
        return Axis(key, (False, True), label=label)
    if schema.get("type") not in ("integer", "number"):
        return None
    low, high = bounds(schema)
    if high < float("inf") and low > float("-inf"):
        margin = 0.01 * (high - low)  # an open end is no value itself
        low += margin * ("exclusiveMinimum" in schema)
        high -= margin * ("exclusiveMaximum" in schema)
        return Axis(key, low=float(low), high=float(high), label=label)
    if not isinstance(own, int | float):
        return None
    if schema["type"] == "integer":
        low, high = max(int(low), int(own) // 4), max(1, 4 * int(own))
        return Axis(key, low=low, high=high, log=low > 0, label=label)
    if own == 0:
        return Axis(key, low=0.0, high=1.0, label=label)
    return Axis(key, low=_two_digits(own / 10), high=_two_digits(own * 10), log=True, label=label)


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")


def _last(key: str) -> str:
    return key.rpartition(".")[2]
