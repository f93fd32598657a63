"""The space of a search: from a file, or from the fields of a method."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from pydantic import Field, model_validator

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.sweeps.parts import DottedKey, Part, Value, bounds, field_schema, resolve, value_of


class Axis(Part):
    """A key of a space: one of several values, or a number in a range.

    Attributes:
        low, high: multiples of what a run has only until the axis is put `around` one.
        condition: by key, the values with which this one acts.
        label: what stands before its value in a run's name; None is the last part of the key.
    """

    key: str = ""
    choices: tuple[Any, ...] = Field((), alias="among")
    low: Value = Field(None, alias="from")
    high: Value = Field(None, alias="to")
    log: bool = False
    condition: dict[DottedKey, tuple[Any, ...]] = Field({}, alias="if")
    label: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "Axis":
        if bool(self.choices) == (self.low is not None and self.high is not None):
            raise InputError("a key of the space has either `among`, or `from` and `to`")
        return self

    def around(self, base: RunConfig, key: str) -> "Axis":
        """The axis of a key for the runs around a base."""
        ends = [resolve(end, key, (base, RunConfig())) for end in (self.low, self.high)]
        if not self.choices and field_schema(base, key).get("type") != "integer":
            ends = [float(end) for end in ends]
        values: dict[str, Any] = {"key": key, "low": ends[0], "high": ends[1]}
        if self.label is None:
            values["label"] = _label(key)
        return self.model_copy(update=values)

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
        low, high, log = _two_digits(number / 10), _two_digits(number * 10), True
    return Axis.model_construct(
        key=key, choices=choices, low=low, high=high, log=log, label=_label(key)
    )


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")


def _label(key: str) -> str:
    return f"{key.rpartition('.')[2]}="
