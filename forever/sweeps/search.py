"""A search as pure data: a base run and a space around it. Optuna and Ray are not known here."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.sweeps.files import SweepFile
from forever.sweeps.parts import Axis, bounds, field_schema, label_of, two_digits, value_of
from forever.sweeps.sweep import Sweep, Trial

BASE = "base"
# Of the training examples, for what is scored while searching: the test examples must not choose.
VALIDATION = 0.2


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
        return self._point(lambda axis: axis.ask(trial))

    def _point(self, choose: Callable[[Axis], Any]) -> dict[str, Any]:
        point: dict[str, Any] = {}
        for axis in self.space:
            if axis.acts(point):
                point[axis.key] = choose(axis)
        return point

    @cached_property
    def own_point(self) -> dict[str, Any] | None:
        """Where the base, with which the others are compared, lies in the space; None: outside."""
        point = self._point(lambda axis: value_of(axis.key, self.base))
        inside = all(axis.holds(point[axis.key]) for axis in self.space if axis.key in point)
        return point if inside else None

    def sweep(self, point: Mapping[str, Any]) -> Sweep:
        """A point as a sweep of one run."""
        name = BASE
        if self.base.override(point) != self.base:
            labels = {axis.key: axis.label for axis in self.space}
            name = " ".join(f"{labels[key]}{_text(value)}" for key, value in point.items())
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


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def find_search(file: SweepFile, base: RunConfig, seeds: Sequence[int] | None = None) -> Search:
    """The search that a file describes around a base run; one of a method of which the file has no
    space has that of its fields.

    Args:
        seeds: the one seed of all its runs; None for the base's own.

    Raises:
        InputError: there are several seeds.
    """
    if seeds and len(seeds) > 1:
        raise InputError(
            "search compares all its runs on one seed; run the best ones again with the others"
        )
    if seeds:
        base = base.override({"seed": seeds[0]})
    if base.data.validation is None:
        base = base.override({"data.validation": VALIDATION})
    axes = file.spaces.get(base.method.name, {})
    if file.method in (None, base.method.name):
        axes = file.space
    space = tuple(axis.around(base, key) for key, axis in axes.items()) or space_of_fields(base)
    return Search(file.name, base, space, file.trials, file.source)


def space_of_fields(base: RunConfig) -> tuple[Axis, ...]:
    """The space of a method that has no file: every field of it that is a choice or a number.

    A number goes over its whole range if the field has one, else from a tenth to ten times what it
    is (a whole number from a quarter to four times). Fields that leave a number to the method
    (None) and those of several parts stay. A method without any has its learning rate searched.
    """
    names = [name for name in type(base.method).model_fields if name != "name"]
    axes = [_axis(f"method.{name}", base) for name in names]
    return tuple(filter(None, axes)) or tuple(filter(None, [_axis("optim.lr", base)]))


def _axis(key: str, base: RunConfig) -> Axis | None:
    schema, number = field_schema(base, key), value_of(key, base)
    kind, (low, high) = schema.get("type"), bounds(schema)
    choices, log = tuple(schema.get("enum", ())), False
    if kind == "boolean":
        choices = (False, True)
    if choices:
        low = high = 0.0
    elif kind not in ("integer", "number"):
        return None
    elif isfinite(low) and isfinite(high):
        margin = 0.01 * (high - low)  # an open end is no value itself
        low = float(low + margin * ("exclusiveMinimum" in schema))
        high = float(high - margin * ("exclusiveMaximum" in schema))
    elif not isinstance(number, int | float):
        return None
    elif kind == "integer":
        low, high = max(int(low), int(number) // 4), max(1, 4 * int(number))
        log = low > 0
    elif number == 0:
        low, high = 0.0, 1.0
    else:
        low, high, log = two_digits(number / 10), two_digits(number * 10), True
    return Axis.model_construct(
        key=key, choices=choices, low=low, high=high, log=log, label=label_of(key)
    )
