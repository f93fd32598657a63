"""The parts of a sweep's file, and the values in it that depend on the run that they change."""

import re
from collections.abc import Collection, Mapping, Sequence
from math import inf, isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from forever.config.methods import METHOD_CONFIGS, has_method, method_names
from forever.config.orders import ORDERS
from forever.config.overrides import dotted_keys
from forever.config.parts import Flag, Integer, Real
from forever.config.run import RunConfig
from forever.errors import InputError, shown, unknown
from forever.sweeps.named_runs import SCALES, method_settings
from forever.sweeps.sweep import BOUNDS


def _one_of(what: str, valid: Collection[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in valid:
            raise unknown(what, name, valid)
        return name

    return AfterValidator(check)


LONGEST_NAME = 150  # of a variant, and so of a folder; the system allows 255 bytes
VariantName = Annotated[str, Field(max_length=LONGEST_NAME, pattern=r"\S")]
_KINDS = (
    "intervals", "accuracy", "radar", "pareto", "matrices", "timelines", "replay_loss",
    "sensitivity", "spacing", "backbones", "training_time", "model_day", "forgetting_rate",
    "doses",
)  # fmt: skip
_WORDS = ("method", "named", "reference", "scales", "published")
_KEYS = tuple(dotted_keys(RunConfig))


def _known_key(*words: str) -> AfterValidator:
    valid = (*_KEYS, *words)

    def check(key: str) -> str:
        part, _, field = key.partition(".")
        if key in valid:
            return key
        if part == "method":
            for config in METHOD_CONFIGS.values():
                if new := config.renamed.get(field):
                    raise InputError(f"{key} is now called method.{new}", key=key)
            if len(method_names()) > len(METHOD_CONFIGS):
                return key  # of another package; it is known when the run is made
        raise unknown("key", key, valid)

    return AfterValidator(check)


def _known_method(name: str) -> str:
    if not has_method(name):
        raise unknown("method", name, method_names())
    return name


DottedKey = Annotated[str, _known_key()]
ChangedKey = Annotated[str, _known_key(*_WORDS)]
MethodName = Annotated[str, AfterValidator(_known_method)]
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
    """A multiple of what the run has under the key `of`, by default the value's own key. It is
    rounded to `decimals` if there are any, and is `otherwise` if the run has no number there."""

    times: Real
    of: DottedKey | None = None
    decimals: Integer | None = None
    otherwise: Real | None = None


def _read_value(value: Any) -> Any:
    is_multiple = isinstance(value, dict) and "times" in value
    return Relative.model_validate(value) if is_multiple else value


Value = Annotated[Any, AfterValidator(_read_value)]  # what is written in the file, or a Relative


def resolve(value: Any, key: str, runs: Sequence[RunConfig]) -> Any:
    """Return what a value of a file means for the first of `runs` that has what it multiplies.

    A multiple stays within the bounds of its field, and is rounded down where the field holds whole
    numbers.

    Raises:
        InputError: no run has a number under the key that is multiplied, and there is no other.
    """
    if not isinstance(value, Relative):
        return value
    of = value.of or key
    if value.times == 1 and isinstance(listed := value_of(of, runs[0]), tuple):
        return listed  # such as a budget for each task
    numbers = [number for run in runs if isinstance(number := value_of(of, run), int | float)]
    if not numbers:
        if value.otherwise is None:
            raise InputError(f"{of} is not a number, so it has no multiple", key=key)
        return value.otherwise
    product = value.times * numbers[0]
    if value.decimals is not None:
        product = round(product, value.decimals)
    schema = field_schema(runs[0], key)
    low = schema.get("minimum", schema.get("exclusiveMinimum", -inf))
    high = schema.get("maximum", schema.get("exclusiveMaximum", inf))
    product = min(max(product, low), high)
    if not isfinite(product):
        rule = f"{value.times:g} times {of}={numbers[0]:g} is not finite"
        raise InputError(rule, key=key)
    return int(product) if schema.get("type") == "integer" else product


def value_of(key: str, run: RunConfig) -> Any:
    """Return the value of a dotted key; None if the run's method has no such field."""
    value: Any = run
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def field_schema(run: RunConfig, key: str) -> dict[str, Any]:
    """Return the JSON schema of a field, or of the number that it may be among other things."""
    parent, _, name = key.rpartition(".")
    part = value_of(parent, run) or run
    schema = type(part).model_json_schema()["properties"].get(name, {})
    numbers = [o for o in schema.get("anyOf", ()) if o.get("type") in ("number", "integer")]
    return numbers[0] if numbers else schema


_KEY_IN_NAME = re.compile(r"\{([^{} ]+)( %)?\}")


def filled(template: str, run: RunConfig) -> str:
    """Replace `{key}` and `{key %}` in a name by values of the run, paths by their last part."""

    def text(match: re.Match[str]) -> str:
        value = value_of(match[1], run)
        if not isinstance(value, int | float):
            return str(value).rsplit("/", 1)[-1]
        return f"{100 * value:g} %" if match[2] else f"{value:g}"

    return _KEY_IN_NAME.sub(text, template)


def _template(text: str) -> str:
    for key, _ in _KEY_IN_NAME.findall(text):
        if key not in _KEYS:
            raise unknown("key", key, _KEYS)
    return text


# ---- the parts of a file


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


class Point(Part):
    """A difference that each variant of a file is run with: dotted keys, and a name."""

    named: Annotated[str, AfterValidator(_template)] = ""  # the key in the file is the paper's name
    changes: dict[DottedKey, Value] = {}

    @model_validator(mode="before")
    @classmethod
    def _keys_are_changes(cls, values: Any) -> Any:
        if not isinstance(values, dict | None):
            raise InputError(f"a variant is a mapping of keys to values, not {shown(values)}")
        changes = dict(values or {})
        words = {word: changes.pop(word) for word in _WORDS if word in changes}
        return {**words, "changes": changes}


class Variant(Point):
    """A difference from the base run: dotted keys, and these words."""

    method: MethodName | None = None  # with its settings at the base's scale
    reference: str = ""  # what this variant is compared with, if not with the sweep's
    scales: tuple[Scale, ...] | None = None  # where there is such a variant; None: everywhere
    published: dict[str, Published] = {}  # the paper's numbers by benchmark
    levels: tuple[str, ...] = ()  # its names in `variants` and in `each`, whose cell it is
    changes: dict[ChangedKey, Value] = {}

    @property
    def is_bound(self) -> bool:
        """Whether the variant is one of the bounds between which methods are judged."""
        return (self.method or self.changes.get("method.name")) in BOUNDS

    def difference(self, base: RunConfig) -> dict[str, Any]:
        """Return the dotted keys that differ from a base run."""
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
        """Return the axis of a key for the runs around a base."""
        label = f"{key.rpartition('.')[2]}=" if self.label is None else self.label
        if self.choices:
            return self.model_copy(update={"key": key, "label": label})
        low, high = [resolve(end, key, (base, RunConfig())) for end in (self.low, self.high)]
        if field_schema(base, key).get("type") != "integer":
            low, high = float(low), float(high)
        _check_ends(low, high, self.log)
        return self.model_copy(update={"key": key, "low": low, "high": high, "label": label})

    def acts(self, point: Mapping[str, Any]) -> bool:
        """Return whether the key matters beside the values that were chosen before it."""
        return all(point.get(key) in allowed for key, allowed in self.condition.items())

    def ask(self, trial: Any) -> Any:
        """Return a value from an Optuna trial; a number has two digits."""
        if self.choices:
            return trial.suggest_categorical(self.key, self.choices)
        if isinstance(self.low, int):
            return trial.suggest_int(self.key, self.low, int(self.high), log=self.log)
        value = trial.suggest_float(self.key, self.low, self.high, log=self.log)
        return float(f"{value:.1e}")  # one run cannot tell more digits


def _check_ends(low: Any, high: Any, log: bool) -> None:
    """Refuse a range that is empty or endless; a multiple is known only later."""
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float | Relative):
            raise InputError(f"`from` and `to` are numbers or multiples, not {shown(end)}")
    if isinstance(low, Relative) or isinstance(high, Relative):
        return
    if not low <= high < inf:
        raise InputError(f"a range goes up: from={low:g} and to={high:g} do not")
    if log and low <= 0:
        raise InputError(f"a logarithmic range begins above 0, not at from={low:g}")
