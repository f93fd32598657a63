"""What the hyper-parameters of all methods have in common."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from forever.config.parts import Part, RunParts, Share
from forever.errors import InputError

Weights = tuple[Share, Share]


class MethodConfig(Part):
    """The hyper-parameters of a method. A subclass adds a literal `name`, by which it is chosen,
    and says where the method's `code` is."""

    name: Any  # a literal in every subclass
    code: ClassVar[str]  # of the subclass of `Method`: "package.module:Class"
    # Whether the method trains on the union of all tasks instead of one after another.
    joint: ClassVar[bool] = False
    # What of `model` it needs: "lora" to get back the model as it was before, "banks" since it
    # stacks, mixes or observes adapters of its own.
    needs: ClassVar[Literal["nothing", "lora", "banks"]] = "nothing"
    # Whether its banks have room for an adapter that it did not train, frozen before all others.
    begins_frozen: ClassVar[bool] = False
    # Whether it reads instruction and input of an example, which a conversation does not have.
    needs_inputs: ClassVar[bool] = False
    # Fields that earlier versions had, with the only value that runs of today's code have. They
    # count in the fingerprint, so that runs of those versions keep their names.
    retired: ClassVar[dict[str, Any]] = {}
    # Fields that earlier versions did not have, with what those did. They count there unless they
    # say the same.
    added: ClassVar[dict[str, Any]] = {}
    # Fields that earlier versions called otherwise: the new name by the old one, which still counts
    # in the fingerprint.
    renamed: ClassVar[dict[str, str]] = {}

    @classmethod
    def written(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Translate what an earlier version wrote of a run: what it did not have it did as ever."""
        kept = {key: value for key, value in values.items() if key not in cls.retired}
        return cls.added | {cls.renamed.get(key, key): value for key, value in kept.items()}

    def identity(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what counts of `values`, as JSON, under the names that it had from the first."""
        kept = {key: value for key, value in values.items() if key not in self.added}
        kept |= {key: values[key] for key, old in self.added.items() if values[key] != old}
        for old, new in self.renamed.items():
            kept[old] = kept.pop(new)
        return kept | self.retired

    @model_validator(mode="before")
    @classmethod
    def _refuse_old_names(cls, values: Any) -> Any:
        for old, new in cls.renamed.items():
            if isinstance(values, dict) and old in values:
                raise InputError(f"method.{old} is now called method.{new}", key=f"method.{old}")
        return values

    def models(self) -> dict[str, str]:
        """Return the models that the method reads beside the backbone, by the field that names
        each: hub names or folders."""
        return {}

    def estimate(self) -> str:
        """Say in a sentence what a plan can only estimate, since training decides it."""
        return ""

    def updates_of_day(self) -> int | None:
        """Return how many updates a day of the clock has, if that is known before training."""
        return None

    def check(self, run: RunParts) -> None:
        """Refuse a run in which the method cannot work; called as soon as a configuration is read.

        Raises:
            InputError: the message says why and what to change.
        """
        if self.needs != "nothing" and run.model.tuning == "full":
            raise InputError(
                f"method {self.name} works on LoRA adapters; model.tuning='full' has none, "
                "use 'lora'"
            )
        if self.needs == "banks" and run.model.adapter:
            raise InputError(
                f"method {self.name} lays LoRA adapters of its own, and model.adapter is for "
                "methods with one adapter; use model.rank, alpha, dropout and targets"
            )
        if self.needs == "banks" and run.model.init and not self.begins_frozen:
            raise InputError(
                f"method {self.name} weighs or masks the adapters that it trained itself, and has "
                "no room for that of model.init; merge it into the model and give that as "
                "model.name, or take olora or a method with one adapter",
                key="model.init",
            )
        if self.needs == "banks" and run.model.gradient_checkpointing:
            raise InputError(
                f"method {self.name} mixes or observes its adapters while a layer is computed, "
                "which model.gradient_checkpointing does twice; set it to false",
                key="model.gradient_checkpointing",
            )

    def check_width(self, run: RunParts, tasks: int, width: int) -> None:
        """Refuse more tasks than fit a model whose hidden states have this width.

        It is called before the model is loaded, if the width is known by then.
        """
