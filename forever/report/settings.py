"""In what the settings of runs differ, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forever.config.methods import METHOD_CONFIGS
from forever.config.overrides import flatten
from forever.report.format import setting


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `other` that `base` has not; of another method's own fields, those that are
    not its defaults."""
    changed: dict[str, Any] = {}
    expected = dict(base)
    if base["method.name"] != other["method.name"]:
        method = METHOD_CONFIGS.get(other["method.name"])
        defaults = method.model_validate({}).model_dump(mode="json") if method else {}
        expected |= flatten({"method": defaults})
        expected["method.name"] = base["method.name"]
    for key, value in other.items():
        if key not in expected or expected[key] != value:
            changed[key] = value
    return changed


def pairs(settings: Mapping[str, Any]) -> list[str]:
    """Settings as a person would write them: "optim.lr=0.01"."""
    return [f"{key}={setting(value)}" for key, value in settings.items()]
