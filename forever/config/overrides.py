"""Dotted keys, `key=value` arguments, and one-line explanations of what is wrong with a run."""

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ValidationError

from forever.config.methods import METHOD_CONFIGS, config_class
from forever.config.methods.base import MethodConfig
from forever.config.parts import DatasetConfig
from forever.errors import InputError, shown, unknown
from forever.yaml_file import read_value


def parse_assignments(arguments: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` arguments as dotted changes; a value is YAML, as in `days=[1,2,4]`.

    If a key is given twice, the last value counts, as with other options.

    Raises:
        InputError: an argument has another form, or its value is not valid YAML.
    """
    changes: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise InputError(f"{shown(argument)} is not of the form key=value, e.g. optim.lr=1e-3")
        try:
            changes[key] = read_value(text)
        except InputError as error:
            raise InputError(f"{shown(argument)}: {error}", key=key) from None
    return changes


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Put nested values under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def difference_lines(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return the differences of two settings, a line each: "optim.lr is 0.5 there, 0.01 here"."""
    left, right = flatten(there), flatten(here)
    return [
        f"{key} is {shown(left.get(key))} there, {shown(right.get(key))} here"
        for key in sorted({*left, *right})
        if left.get(key) != right.get(key)
    ]


def joined_lines(lines: Sequence[str], most: int = 12) -> str:
    """Join differences into one message, which shows at most `most` of them."""
    rest = len(lines) - most
    return "; ".join(lines[:most]) + (f"; and {rest} more" if rest > 0 else "")


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """List all keys of a configuration, those of every method of ours included."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        nested: list[str] = []
        for part in _models(field.annotation):
            nested += dotted_keys(part, f"{prefix}{name}.")
        keys += nested or [prefix + name]
    return list(dict.fromkeys(keys))


def _models(annotation: Any) -> list[type[BaseModel]]:
    """List the pydantic models in an annotation, which may be a union."""
    if annotation is MethodConfig:
        return [*METHOD_CONFIGS.values()]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    models: list[type[BaseModel]] = []
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, Annotated):
        for part in typing.get_args(annotation):
            models += _models(part)
    return models


def explain(
    error: ValidationError, values: Mapping[str, Any], model: type[BaseModel]
) -> InputError:
    """Explain the first problem in one line: the key, the value and the rule."""
    problems = error.errors()
    first = problems[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError) and cause.key:
        return cause
    paths = [_path(problem, values) for problem in problems]
    path = paths[0]
    if first["type"] == "extra_forbidden":
        near = dotted_keys(model)
        if path[0] == "method":
            near = dotted_keys(config_class(values["method"]["name"]), "method.")
        elif path[:2] == ["data", "datasets"]:
            near = dotted_keys(DatasetConfig, ".".join(path[:3]) + ".")
        return unknown("key", ".".join(path), near, key=".".join(path))
    # A field that may be of several types has an error for each type. Those that got furthest into
    # the value say what the user meant.
    deepest = max((other for other in paths if other[: len(path)] == path), key=len)
    meant = [problem for problem, other in zip(problems, paths, strict=True) if other == deepest]
    key = ".".join(deepest)
    cause = meant[0].get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return InputError(f"{key}: {cause}", key=key)
    rules = dict.fromkeys(problem["msg"][0].lower() + problem["msg"][1:] for problem in meant)
    message = f"{key}={shown(meant[0]['input'])}: {'; or '.join(rules)}"
    return InputError(message, key=key)


def _path(problem: Mapping[str, Any], values: Any) -> list[str]:
    """Return the key of a problem in `values`: of pydantic's location, the parts that exist there;
    the others name types."""
    path: list[str] = []
    for part in problem["loc"]:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            continue
        path.append(str(part))
    if problem["type"] == "missing":
        path.append(str(problem["loc"][-1]))
    return path
