"""The parts of a sweep's file, and its values that depend on the run that they change."""

import re
from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from forever.config.methods import METHOD_CONFIGS
from forever.config.overrides import dotted_keys
from forever.config.parts import Flag, Integer, Real
from forever.config.run import RunConfig
from forever.data.orders import ORDERS
from forever.errors import InputError, shown, unknown
from forever.sweeps.named_runs import SCALES, method_settings


def _one_of(what: str, valid: Collection[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in valid:
            raise unknown(what, name, valid)
        return name

    return AfterValidator(check)


LONGEST_NAME = 150  # of a variant, and so of a folder; the system allows 255 bytes
_KINDS = (
    "intervals", "accuracy", "radar", "pareto", "matrices", "timelines", "replay_loss",
    "sensitivity", "spacing", "backbones", "training_time", "model_day", "forgetting_rate",
    "doses",
)  # fmt: skip
_WORDS = ("method", "named", "reference", "scales", "published")
_KEYS = tuple(dotted_keys(RunConfig))
DottedKey = Annotated[str, _one_of("key", _KEYS)]
ChangedKey = Annotated[str, _one_of("key", (*_KEYS, *_WORDS))]
MethodName = Annotated[str, _one_of("method", METHOD_CONFIGS)]
BenchmarkName = Annotated[str, _one_of("benchmark", ORDERS)]
Scale = Annotated[str, _one_of("scale", (*SCALES, "other"))]


class Part(BaseModel):
    """A part of a sweep's file."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        valid = [field.alias or name for name, field in cls.model_fields.items()]
        for key in values if isinstance(values, dict) else ():
            if key not in valid:
                raise unknown("key", str(key), valid)
        return values


# ---- values that depend on a run


class Relative(Part):
    """A multiple of what the run has under the key `of`, or else under the value's own key; `None`
    decimals keep it exact. Where the run has no number there it is `otherwise`."""

    times: Real
    of: DottedKey | None = None
    decimals: Integer | None = None
    otherwise: Real | None = None


def _read_value(value: Any) -> Any:
    is_multiple = isinstance(value, dict) and "times" in value
    return Relative.model_validate(value) if is_multiple else value


Value = Annotated[Any, AfterValidator(_read_value)]  # what is written in the file, or a Relative


def resolve(value: Any, key: str, runs: Sequence[RunConfig]) -> Any:
    """What a value of a file means for the first of `runs` that has what it is a multiple of.

    A multiple stays within the bounds of its field, and is rounded down to a whole number where the
    field holds those.

    Raises:
        InputError: no run has a number under the key that is multiplied, and there is no other.
    """
    if not isinstance(value, Relative):
        return value
    of = value.of or key
    found = [value_of(of, run) for run in runs]
    numbers = [number for number in found if isinstance(number, int | float)]
    if not numbers and value.otherwise is not None:
        return value.otherwise
    if not numbers:
        raise InputError(f"{of} is no number, of which there could be a multiple")
    product = value.times * numbers[0]
    if value.decimals is not None:
        product = round(product, value.decimals)
    schema = field_schema(runs[0], key)
    low, high = bounds(schema)
    product = min(max(product, low), high)
    if not isfinite(product):
        raise InputError(f"{value.times:g} times {of}={numbers[0]:g} is no finite number")
    return int(product) if schema.get("type") == "integer" else product


def value_of(key: str, run: RunConfig) -> Any:
    """The value of a dotted key; None if the run's method has no such field."""
    value: Any = run
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def field_schema(run: RunConfig, key: str) -> dict[str, Any]:
    """The JSON schema of a field, of its number if it may be something else, too."""
    parent, _, name = key.rpartition(".")
    part = value_of(parent, run) or run
    schema = type(part).model_json_schema()["properties"].get(name, {})
    for option in schema.get("anyOf", ()):
        if option.get("type") in ("number", "integer"):
            return option
    return schema


def bounds(schema: Mapping[str, Any]) -> tuple[float, float]:
    """The smallest and the largest value of a field, infinite where there is none."""
    low = schema.get("minimum", schema.get("exclusiveMinimum", float("-inf")))
    high = schema.get("maximum", schema.get("exclusiveMaximum", float("inf")))
    return low, high


_PLACE = re.compile(r"\{([^{} ]+)( %)?\}")


def filled(template: str, run: RunConfig) -> str:
    """A name with `{key}` and `{key %}` replaced by values of the run, paths by their last part."""

    def text(match: re.Match[str]) -> str:
        value = value_of(match[1], run)
        if not isinstance(value, int | float):
            return str(value).rsplit("/", 1)[-1]
        return f"{100 * value:g} %" if match[2] else f"{value:g}"

    return _PLACE.sub(text, template)


def _template(text: str) -> str:
    for key, _ in _PLACE.findall(text):
        if key not in _KEYS:
            raise unknown("key", key, _KEYS)
    return text


# ---- what a file has several of


@dataclass(frozen=True)
class Published:
    """OP and BWT of one row of a published table; BWT is None where it is not known."""

    op: Real
    bwt: Real | None = None


class Figure(Part):
    """A figure of the report. `sensitivity` has the key of the run on its horizontal axis, what is
    written there, and the unit by which values are multiplied."""

    kind: Annotated[str, _one_of("kind of figure", _KINDS)]
    key: DottedKey | None = None
    label: str | None = None
    unit: Real = 1.0

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _axis(self) -> "Figure":
        if (self.kind == "sensitivity") != (self.key is not None and self.label is not None):
            raise InputError("sensitivity has a key and a label, and no other kind of figure has")
        return self


class Variant(Part):
    """A difference from the base run: dotted keys, and these words."""

    method: MethodName | None = None  # with its settings at the base's scale
    named: Annotated[str, AfterValidator(_template)] = ""  # the key in the file is the paper's name
    reference: str = ""  # what this variant is compared with, if not with the sweep's
    scales: tuple[Scale, ...] | None = None  # where there is such a variant; None: everywhere
    published: dict[str, Published] = {}  # the paper's numbers by benchmark
    changes: dict[ChangedKey, Value] = {}

    @model_validator(mode="before")
    @classmethod
    def _keys_are_changes(cls, values: Any) -> Any:
        if not isinstance(values, dict | None):
            raise InputError(f"a variant is a mapping of keys to values, not {shown(values)}")
        changes = dict(values or {})
        words = {word: changes.pop(word) for word in _WORDS if word in changes}
        return {**words, "changes": changes}

    def difference(self, base: RunConfig) -> dict[str, Any]:
        """The dotted keys that differ from a base run."""
        settings = method_settings(base, self.method or base.method.name)
        # A multiple is one of the method that is put in, else of the base, else of the default.
        runs = (base.override(settings), base, RunConfig())
        for key, value in self.changes.items():
            settings[key] = resolve(value, key, runs)
        return settings


class Axis(Part):
    """A key of a space: one of several values, or a number in a range."""

    key: str = ""
    choices: tuple[Any, ...] = Field((), alias="among")
    low: Value = Field(None, alias="from")  # a multiple only until the axis is put around a run
    high: Value = Field(None, alias="to")
    log: Flag = False
    # By key the values with which this one acts.
    condition: dict[DottedKey, tuple[Any, ...]] = Field({}, alias="if")
    label: str | None = None  # stands before the value in a run's name; None: "key="

    @model_validator(mode="after")
    def _one_kind(self) -> "Axis":
        if bool(self.choices) == (self.low is not None and self.high is not None):
            raise InputError("a key of the space has either `among`, or `from` and `to`")
        if not self.choices:
            _check_ends(self.low, self.high, self.log)
        return self

    def around(self, base: RunConfig, key: str) -> "Axis":
        """The axis of a key for the runs around a base."""
        low, high = [resolve(end, key, (base, RunConfig())) for end in (self.low, self.high)]
        if not self.choices and field_schema(base, key).get("type") != "integer":
            low, high = float(low), float(high)
        if not self.choices:
            _check_ends(low, high, self.log)
        label = label_of(key) if self.label is None else self.label
        return self.model_copy(update={"key": key, "low": low, "high": high, "label": label})

    def acts(self, point: Mapping[str, Any]) -> bool:
        """Whether the key matters beside the values that were chosen before it."""
        return all(point.get(key) in allowed for key, allowed in self.condition.items())

    def ask(self, trial: Any) -> Any:
        """A value from an Optuna trial; numbers with two digits."""
        if self.choices:
            return trial.suggest_categorical(self.key, self.choices)
        if isinstance(self.low, int):
            return trial.suggest_int(self.key, self.low, int(self.high), log=self.log)
        return two_digits(trial.suggest_float(self.key, self.low, self.high, log=self.log))

    def holds(self, value: Any) -> bool:
        """Whether the space has this value, digit for digit."""
        if self.choices:
            return value in self.choices
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return isinstance(self.low, int) or value == two_digits(value)


def _check_ends(low: Any, high: Any, log: bool) -> None:
    """Refuse, by an InputError, a range that is none; a multiple is known only later."""
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float | Relative):
            raise InputError(f"`from` and `to` are numbers or multiples, not {shown(end)}")
    if isinstance(low, Relative) or isinstance(high, Relative):
        return
    if not low <= high < float("inf"):
        raise InputError(f"a range goes up: from={low:g} and to={high:g} do not")
    if log and low <= 0:
        raise InputError(f"a logarithmic range begins above 0, not at from={low:g}")


def two_digits(value: float) -> float:
    """The number as a search tries it: a third digit is below what one run can tell."""
    return float(f"{value:.1e}")


def label_of(key: str) -> str:
    """What stands before the value of a key in the name of a run."""
    return f"{key.rpartition('.')[2]}="
