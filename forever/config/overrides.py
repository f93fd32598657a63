"""Dotted keys, `key=value` arguments, and one-line explanations of what is wrong with a
configuration."""

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
    """`key=value` arguments as dotted changes; values are YAML, so `method.days=[1,2,4]` is a list.

    Raises:
        InputError: an argument without "=", or a value that is not YAML.
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
    """Nested values under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= (
            flatten(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": value}
        )
    return flat


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """All keys of a configuration; those of every method, since any may be chosen."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        parts = [t for t in _classes(field.annotation) if issubclass(t, BaseModel)]
        keys += [k for part in parts for k in dotted_keys(part, f"{prefix}{name}.")] or [
            prefix + name
        ]
    return list(dict.fromkeys(keys))


def _classes(annotation: Any) -> list[type]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, Annotated):
        return [t for part in typing.get_args(annotation) for t in _classes(part)]
    return [annotation] if isinstance(annotation, type) else []


def explain(
    error: ValidationError, values: Mapping[str, Any], model: type[BaseModel]
) -> InputError:
    """The first problem as one line: the key, the value and the rule."""
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
    # A field that may be of several types has one error a type: say what got furthest into the
    # value, or all rules.
    alike = [p for p in problems if _path(p["loc"])[: len(path)] == path]
    depth = max(len(_path(p["loc"])) for p in alike)
    alike = [p for p in alike if len(_path(p["loc"])) == depth]
    key = ".".join(_path(alike[0]["loc"]))
    cause = alike[0].get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return InputError(f"{key}: {cause}")
    rules = dict.fromkeys(p["msg"][0].lower() + p["msg"][1:] for p in alike)
    return InputError(f"{key}={alike[0]['input']!r}: {'; or '.join(rules)}")


def _path(location: tuple[int | str, ...]) -> list[str]:
    """The key of a problem, without what pydantic adds: the tag of the method's union, and names of
    types."""
    path = [str(part) for part in location]
    if path[0] == "method" and len(path) > 1 and path[1] in METHOD_CONFIGS:
        del path[1]
    return [
        part
        for part in path
        if not part[:1].isupper() and "[" not in part and part not in _TYPE_NAMES
    ]


_TYPE_NAMES = {
    "str",
    "int",
    "float",
    "list",
    "tuple",
    "bool",
    "constrained-int",
    "constrained-str",
    "none",
}


def _method_keys(values: Mapping[str, Any]) -> list[str]:
    """The dotted keys of the method that is named in `values`, if it is one."""
    method = values.get("method")
    name = method.get("name") if isinstance(method, Mapping) else None
    return dotted_keys(METHOD_CONFIGS[name], "method.") if name in METHOD_CONFIGS else []
