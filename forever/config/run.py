"""A run as a frozen value: what to run, but not where. Keys have dots everywhere: `optim.lr`.

Defaults are the paper's implementation details unless the line says otherwise.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from forever.config.methods import AnyMethodConfig, config_class, has_method
from forever.config.methods.ours import ForeverConfig
from forever.config.orders import default_order
from forever.config.overrides import dotted_keys, explain, flatten
from forever.config.parts import RunParts, is_template
from forever.errors import InputError, shown, unknown
from forever.storage.address import from_anywhere
from forever.text import holds_secret, without_credentials
from forever.yaml_file import to_yaml


class RunConfig(RunParts):
    """The configuration of one run."""

    method: AnyMethodConfig = ForeverConfig()

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Make a configuration from nested values.

        Raises:
            InputError: one line on the first key, value or combination that cannot be.
        """
        if not isinstance(values, Mapping):  # a YAML file may hold anything
            raise InputError(f"a configuration is a mapping of keys to values, not {shown(values)}")
        try:
            config = cls.model_validate(values)
        except ValidationError as error:
            raise explain(error, values, cls) from None
        if not config.data.order:
            order = tuple(config.data.datasets) or default_order(config.data.benchmark)
            data = config.data.model_copy(update={"order": order})
            config = config.model_copy(update={"data": data})
        config.method.check(config)
        _refuse_secrets(config.model_dump(mode="json"))
        return config

    def override(self, changes: Mapping[str, Any]) -> "RunConfig":
        """Return this configuration with dotted keys changed.

        A new `method.name` starts from that method's defaults.
        """
        values = self.model_dump(mode="json")
        # A default is not a choice, see `model.init`.
        values["model"] = self.model.model_dump(mode="json", exclude_unset=True)
        if changes.get("method.name", self.method.name) != self.method.name:
            values["method"] = {}
        if changes.get("data.benchmark", self.data.benchmark) != self.data.benchmark:
            # Order, numbers of examples and metrics belonged to the other benchmark.
            values["data"] = self.data.model_dump(include={"root", "prompt", "supervise"})
        for key, value in changes.items():
            *parents, last = key.split(".")
            place: Any = values
            for parent in parents:
                place = place.setdefault(parent, {}) if isinstance(place, dict) else None
            if not isinstance(place, dict):
                raise unknown("key", key, dotted_keys(RunConfig), key=key)
            place[last] = value
        return RunConfig.parse(values)

    def identity(self) -> dict[str, Any]:
        """Return everything that decides the result, as JSON values."""
        values = self.model_dump(mode="json")
        del values["data"]["root"], values["data"]["datasets"]
        # What earlier versions did not have counts where it is used: their runs keep their names.
        if not self.model.adapter:
            values["model"].pop("adapter", None)
        if self.model.packing == "shared":
            del values["model"]["packing"]
        if self.model.init is None:
            del values["model"]["init"]
        del values["model"]["gradient_checkpointing"]  # it changes no bit
        if self.data.prompt == "alpaca":
            del values["data"]["prompt"]
        elif is_template(self.data.prompt):
            digest = hashlib.sha256(self.data.prompt.encode()).hexdigest()[:12]
            values["data"]["prompt"] = f"template {digest}"
        if self.data.supervise == "last":
            del values["data"]["supervise"]
        if not self.optim.nonfinite_skips:
            del values["optim"]["nonfinite_skips"]
        values["budget"] = self.budget.model_dump(exclude_none=True)
        if not values["budget"]:
            del values["budget"]
        if self.data.datasets:
            tasks = {task: dataset.identity() for task, dataset in self.data.datasets.items()}
            values["data"]["datasets"] = tasks
        values["method"] = self.method.identity(values["method"])
        return values

    def text(self) -> str:
        """Return it as YAML, with `data.root` as it is found from any folder."""
        values = self.model_dump(mode="json")
        if self.data.root is not None:
            values["data"]["root"] = from_anywhere(self.data.root)
        return to_yaml(values)

    def fingerprint(self) -> str:
        """Return twelve hex digits of the SHA-256 of `identity`."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def key(self) -> str:
        """Return the run directory's name: benchmark, order, method, seed and fingerprint."""
        order = self.data.order if isinstance(self.data.order, str) else "custom"
        parts = [self.data.benchmark, order, self.method.name, f"s{self.seed}"]
        return "-".join([*parts, self.fingerprint()[:8]]).replace("/", "_")


def in_todays_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the configuration that a run of an earlier release wrote."""
    method = values.get("method")
    if not isinstance(method, dict) or not has_method(method.get("name")):
        return {**values}
    return {**values, "method": config_class(method["name"]).written(method)}


def _refuse_secrets(values: Mapping[str, Any]) -> None:
    """Refuse what a run would keep in its files, show in its reports and send to MLflow."""
    for key, value in flatten(values).items():
        if holds_secret(str(value)):
            raise InputError(
                f"{key}={without_credentials(str(value))}: what is shown as *** looks like a "
                "password or a token, and a run's files keep its configuration; give it by an "
                "environment variable",
                key=key,
            )
