"""Configurations as a person compares them: dotted keys and what differs."""

from collections.abc import Mapping
from typing import Any


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `other` that `base` has not. Another method's own fields are left out: its
    name says it all."""
    changed = {key: value for key, value in other.items() if key not in base or base[key] != value}
    if "method.name" in changed:
        changed = {
            k: v for k, v in changed.items() if k == "method.name" or not k.startswith("method.")
        }
    return changed


def show(value: Any) -> str:
    """A setting as a person would write it."""
    if isinstance(value, list):
        return ", ".join(show(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
