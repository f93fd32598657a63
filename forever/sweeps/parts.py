"""The parts of a sweep's file: variants, figures, a space, and values that depend on the run they
change (multiples of a base, values by scale, names made of values)."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from forever.config.methods import METHOD_CONFIGS
from forever.config.overrides import dotted_keys
from forever.config.run import RunConfig
from forever.data.orders import ORDERS
from forever.errors import InputError, unknown
from forever.sweeps.named_runs import method_settings

Scale = Literal["mini", "cpu", "paper", "other"]


class Part(BaseModel):
    """A part of a sweep's file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _dotted(key: str) -> str:
    if key not in dotted_keys(RunConfig):
        raise unknown("key", key, dotted_keys(RunConfig))
    return key


_PLACE = re.compile(r"\{([^{} ]+)( %)?\}")


def _template(text: str) -> str:
    for match in _PLACE.finditer(text):
        _dotted(match[1])
    return text


DottedKey = Annotated[str, AfterValidator(_dotted)]
Template = Annotated[str, AfterValidator(_template)]


class Relative(Part):
    """A multiple of what the run has.

    Attributes:
        of: the key that is multiplied; None is the key that the value is for.
        decimals: places to which the product is rounded; None keeps it exact.
    """

    times: float
    of: DottedKey | None = None
    decimals: int | None = None


class ByScale(Part):
    """A value for runs of some scales, and one for all others."""

    at: dict[Scale, Any]
    otherwise: Any


Value = Annotated[Relative | ByScale | Any, Field(union_mode="left_to_right")]


def resolve(value: Value, key: str, runs: Sequence[RunConfig], scale: str) -> Any:
    """What a value of a file means for a run.

    Args:
        runs: where the key that is multiplied is looked up, in this order.

    Returns:
        The value; a multiple stays within the bounds of its field, and is rounded down to a whole
        number where the field holds those.

    Raises:
        InputError: no run has a number under the key that is multiplied.
    """
    if isinstance(value, ByScale):
        return {**value.at}.get(scale, value.otherwise)  # pyright: ignore
    if not isinstance(value, Relative):
        return value
    schema = field_schema(runs[0], key)
    low, high = bounds(schema)
    product = value.times * number_of(value.of or key, runs)
    if value.decimals is not None:
        product = round(product, value.decimals)
    kept = min(max(product, low), high)
    return int(kept) if schema.get("type") == "integer" else kept


def number_of(key: str, runs: Sequence[RunConfig]) -> float:
    """The number that the first of the runs with such a key has under it.

    Raises:
        InputError: none of them has one.
    """
    for run in runs:
        number = value_of(key, run)
        if isinstance(number, int | float):
            return number
    raise InputError(f"{key} is no number, of which there could be a multiple")


def value_of(key: str, run: RunConfig) -> Any:
    """The value of a dotted key; None if the run's method has no such field."""
    value: Any = run
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def field_schema(run: RunConfig, key: str) -> dict[str, Any]:
    """The JSON schema of a field, of its number if it may be something else, too."""
    *parents, name = key.split(".")
    part = value_of(".".join(parents), run) if parents else run
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


def filled(template: str, run: RunConfig) -> str:
    """A name with `{key}` and `{key %}` replaced by the run's values; of a path only the last
    part."""

    def text(match: re.Match[str]) -> str:
        value = value_of(match[1], run)
        if not isinstance(value, int | float):
            return str(value).rsplit("/", 1)[-1]
        return f"{100 * value:g} %" if match[2] else f"{value:g}"

    return _PLACE.sub(text, template)


# ---- what a file has several of

_Kind = Literal[
    "intervals", "accuracy", "radar", "pareto", "matrices", "timelines", "replay_loss",
    "sensitivity", "spacing", "backbones", "training_time", "model_day", "forgetting_rate",
]  # fmt: skip
USUAL_FIGURES: tuple[_Kind, ...] = (
    "intervals", "accuracy", "radar", "pareto", "replay_loss", "matrices", "timelines",
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """OP and BWT of one row of a published table; BWT is None where it is not known."""

    op: float
    bwt: float | None = None


class Figure(Part):
    """A figure of the report.

    Attributes:
        key, label, unit: of `sensitivity`: the key of the run on the horizontal axis, what is
            written there, and by what values are multiplied.
    """

    kind: _Kind
    key: DottedKey | None = None
    label: str | None = None
    unit: float = 1.0

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _axis(self) -> "Figure":
        if (self.kind == "sensitivity") != (self.key is not None and self.label is not None):
            raise InputError("sensitivity has a key and a label, and no other kind of figure has")
        return self


def _method(name: str) -> str:
    if name not in METHOD_CONFIGS:
        raise unknown("method", name, METHOD_CONFIGS)
    return name


def _benchmark(name: str) -> str:
    if name not in ORDERS:
        raise unknown("benchmark", name, ORDERS)
    return name


MethodName = Annotated[str, AfterValidator(_method)]
BenchmarkName = Annotated[str, AfterValidator(_benchmark)]


class Variant(Part):
    """A difference from the base run: dotted keys, and these words.

    Attributes:
        method: a method with its settings at the base's scale.
        named: a name made of the run's values; the key in the file is then the paper's name.
        stands_for: the paper's name of a variant that has another one here.
        reference: the variant that this one is compared with, if not the sweep's.
        scales: where there is such a variant; None is everywhere.
        published: the paper's numbers by benchmark.
    """

    method: MethodName | None = None
    named: Template | None = None
    stands_for: str | None = None
    reference: str | None = None
    scales: tuple[Scale, ...] | None = None
    published: dict[str, Published] = {}
    changes: dict[DottedKey, Value] = {}

    @model_validator(mode="before")
    @classmethod
    def _keys_are_changes(cls, values: Any) -> Any:
        if not isinstance(values, dict | None):
            raise InputError(f"a variant is a mapping of keys to values, not {values!r}")
        words = {key: value for key, value in (values or {}).items() if key in cls.model_fields}
        changes = {key: value for key, value in (values or {}).items() if key not in words}
        return {**words, "changes": changes}

    def difference(self, base: RunConfig, scale: str) -> dict[str, Any]:
        """The dotted keys that differ from a base run."""
        settings = method_settings(base, self.method) if self.method else {}
        # A multiple is one of the method that is put in, else of the base, else of the default.
        runs = (base.override(settings), base, RunConfig())
        own = {key: resolve(value, key, runs, scale) for key, value in self.changes.items()}
        return {**settings, **own}


class Dimension(Part):
    """A key of a search's space: one of several values, or a number in a range."""

    among: tuple[Any, ...] = ()
    low: Value = Field(None, alias="from")
    high: Value = Field(None, alias="to")
    log: bool = False
    condition: dict[DottedKey, tuple[Any, ...]] = Field({}, alias="if")
    label: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "Dimension":
        if bool(self.among) == (self.low is not None and self.high is not None):
            raise InputError("a key of the space has either `among`, or `from` and `to`")
        return self


class Beside(Part):
    """The table of another file that a sweep's numbers stand beside.

    Attributes:
        small: the benchmark of that table that a small one stands for.
    """

    sweep: str
    small: str
