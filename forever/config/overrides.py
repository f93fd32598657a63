"""Dotted keys, `key=value` arguments, and one-line explanations of what is wrong with a run."""

import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ValidationError

from forever.config.methods import METHOD_CONFIGS
from forever.config.parts import DatasetConfig
from forever.errors import InputError, unknown


def parse_assignments(arguments: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` arguments as dotted changes.

    Values are YAML, so `method.days=[1,2,4]` is a list.

    Raises:
        InputError: an argument has no "=", or its value is not YAML.
    """
    changes: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise InputError(f"{argument!r} is not of the form key=value, e.g. optim.lr=1e-3")
        try:
            changes[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(
                f"{argument!r}: the value is not valid YAML; quote it if it is text"
            ) from None
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


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, each with both values; None stands for a missing one."""
    left, right = flatten(there), flatten(here)
    return {
        key: (left.get(key), right.get(key))
        for key in sorted({*left, *right})
        if left.get(key) != right.get(key)
    }


def difference_lines(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What differs between two settings, a line each: "optim.lr is 0.5 there, 0.01 here"."""
    return [
        f"{key} is {left!r} there, {right!r} here"
        for key, (left, right) in differences(there, here).items()
    ]


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """List all keys of a configuration, those of every method included."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        nested: list[str] = []
        for part in _models(field.annotation):
            nested += dotted_keys(part, f"{prefix}{name}.")
        keys += nested or [prefix + name]
    return list(dict.fromkeys(keys))


def _models(annotation: Any) -> list[type[BaseModel]]:
    """List the pydantic models in an annotation, which may be a union."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, Annotated):
        models: list[type[BaseModel]] = []
        for part in typing.get_args(annotation):
            models += _models(part)
        return models
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return [annotation] if is_model else []


def explain(
    error: ValidationError, values: Mapping[str, Any], model: type[BaseModel]
) -> InputError:
    """Explain the first problem in one line: the key, the value and the rule."""
    problems = error.errors()
    first = problems[0]
    path = _path(first["loc"])
    if first["type"] == "union_tag_invalid":
        return unknown("method", str(first.get("ctx", {}).get("tag")), METHOD_CONFIGS)
    if first["type"] == "union_tag_not_found":
        return InputError(
            f"method: field 'name' is missing; valid: {', '.join(sorted(METHOD_CONFIGS))}"
        )
    if first["type"] == "extra_forbidden":
        near = _method_keys(values) if path[0] == "method" else []
        if path[:2] == ["data", "datasets"]:
            near = dotted_keys(DatasetConfig, ".".join(path[:3]) + ".")
        return unknown("key", ".".join(path), near or dotted_keys(model))
    # A field that may be of several types has an error for each type. Those that got furthest into
    # the value say what the user meant.
    paths = [_path(problem["loc"]) for problem in problems]
    depth = max(len(key_path) for key_path in paths if key_path[: len(path)] == path)
    deepest: list[Any] = []
    for problem, problem_path in zip(problems, paths, strict=True):
        if problem_path[: len(path)] == path and len(problem_path) == depth:
            deepest.append(problem)
    key = ".".join(_path(deepest[0]["loc"]))
    cause = deepest[0].get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return InputError(f"{key}: {cause}")
    rules = dict.fromkeys(problem["msg"][0].lower() + problem["msg"][1:] for problem in deepest)
    return InputError(f"{key}={deepest[0]['input']!r}: {'; or '.join(rules)}")


def _path(location: tuple[int | str, ...]) -> list[str]:
    """Return the key of a problem without what pydantic adds.

    It adds the tag of the method's union and the names of types.
    """
    path = [str(part) for part in location]
    if path[0] == "method" and len(path) > 1 and path[1] in METHOD_CONFIGS:
        del path[1]
    return [part for part in path if not _is_type(part)]


def _is_type(part: str) -> bool:
    return part[:1].isupper() or "[" in part or part in _TYPE_NAMES


_TYPE_NAMES = {"str", "int", "float", "list", "tuple", "bool", "none"}
_TYPE_NAMES |= {"constrained-int", "constrained-str"}


def _method_keys(values: Mapping[str, Any]) -> list[str]:
    """List the dotted keys of the method that `values` name, if there is such a method."""
    method = values.get("method")
    name = method.get("name") if isinstance(method, Mapping) else None
    return dotted_keys(METHOD_CONFIGS[name], "method.") if name in METHOD_CONFIGS else []
