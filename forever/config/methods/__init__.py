"""Hyper-parameters of all methods, free of torch, so that a bad run is refused at once.

Methods of other packages are found by the entry points of the group `forever.methods`, each of
which names a `MethodConfig`. None is loaded before a configuration chooses it.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from forever.config.methods.base import MethodConfig
from forever.config.methods.ours import OURS
from forever.errors import InputError, one_line, unknown

GROUP = "forever.methods"
METHOD_CONFIGS = {config.model_fields["name"].default: config for config in OURS}


def entry_point(name: str) -> EntryPoint | None:
    """Return where another package has the method, which is not loaded; None if none has it."""
    if name in METHOD_CONFIGS:
        return None
    return next(iter(entry_points(group=GROUP, name=name)), None)


def has_method(name: object) -> bool:
    """Tell whether a method of this name is installed."""
    return isinstance(name, str) and (name in METHOD_CONFIGS or entry_point(name) is not None)


def method_names() -> list[str]:
    """Return the names of all methods, ours first, then those of other packages."""
    return [*METHOD_CONFIGS, *sorted(entry_points(group=GROUP).names - METHOD_CONFIGS.keys())]


def config_class(name: str) -> type[MethodConfig]:
    """Return the class of a method's hyper-parameters; that of another package is loaded now.

    Raises:
        InputError: no installed package has the method, or its package cannot be used.
    """
    if name in METHOD_CONFIGS:
        return METHOD_CONFIGS[name]
    point = entry_point(name)
    if point is None:
        error = unknown("method", name, method_names(), key="method.name")
        where = f"a package that provides it (entry points {GROUP!r}) must be installed here"
        raise InputError(f"{error}; {where}", key="method.name")
    return _load(point)


@cache
def _load(point: EntryPoint) -> type[MethodConfig]:
    try:
        config = point.load()
    except Exception as error:  # whatever a strange module raises
        raise InputError(
            f"method {point.name}: {point.value} cannot be loaded ({one_line(error)})",
            key="method.name",
        ) from error
    is_config = isinstance(config, type) and issubclass(config, MethodConfig)
    if not is_config or config.model_fields["name"].default != point.name:
        raise InputError(
            f"method {point.name}: {point.value} is not a MethodConfig of this name",
            key="method.name",
        )
    return config


def distribution(name: str) -> dict[str, str]:
    """Return the package and the version of a method that is not ours."""
    point = entry_point(name)
    if point is None or point.dist is None:
        return {}
    return {"name": point.dist.name, "version": point.dist.version}


def _chosen(values: Any) -> Any:
    """Read hyper-parameters as the class that `name` chooses."""
    if not isinstance(values, dict):
        return values
    if not isinstance(values.get("name"), str):
        valid = ", ".join(method_names())
        raise InputError(f"method: field 'name' is missing; valid: {valid}", key="method.name")
    return config_class(values["name"]).model_validate(values)


AnyMethodConfig = Annotated[SerializeAsAny[MethodConfig], BeforeValidator(_chosen)]
