"""The methods' code by the names of their configurations."""

from importlib import import_module
from typing import Any

from forever.config.methods import METHOD_CONFIGS
from forever.config.methods.base import MethodConfig
from forever.errors import InputError
from forever.training.method import Method


def method_class(config: type[MethodConfig]) -> type[Method[Any]]:
    """Import the method that a class of hyper-parameters belongs to."""
    module, _, name = config.code.partition(":")
    return getattr(import_module(module), name)


METHODS = {name: method_class(config) for name, config in METHOD_CONFIGS.items()}


def build_method(config: MethodConfig) -> Method[Any]:
    """Build the method that a configuration describes.

    Raises:
        InputError: its package does not have it where the configuration says.
    """
    try:
        method = method_class(type(config))
    except (ImportError, AttributeError, ValueError) as error:
        where = f"method {config.name}: {config.code!r} cannot be imported ({error})"
        raise InputError(where, key="method.name") from error
    return method(config)
