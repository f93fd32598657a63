"""Values of a sweep's file that depend on the run they change: multiples of a base, values by
scale, names made of values."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from forever.config.overrides import dotted_keys
from forever.config.run import RunConfig
from forever.errors import InputError, unknown

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
        The value; a multiple stays within the bounds of its field, and is rounded down if that holds
        whole numbers.

    Raises:
        InputError: no run has a number under the key that is multiplied.
    """
    if isinstance(value, ByScale):
        return value.at.get(scale, value.otherwise)
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
