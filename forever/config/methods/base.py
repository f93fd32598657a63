"""What the hyper-parameters of all methods have in common.

Nothing in `forever.config` loads torch.
"""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from forever.config.parts import RunParts
from forever.errors import InputError

Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0, le=1)]
Weights = tuple[Weight, Weight]


class MethodConfig(BaseModel):
    """The hyper-parameters of a method. A subclass adds a literal `name`, by which it is chosen.

    Attributes:
        joint: whether the method trains on the union of all tasks instead of one after another.
        retired: fields that earlier versions had, with the only value that is still understood.
            They count in the fingerprint, so that runs of those versions keep their names.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
    name: Any  # a literal in every subclass
    joint: ClassVar[bool] = False
    retired: ClassVar[dict[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_retired_fields(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for key, default in cls.retired.items():
            if key in values and values[key] != default:
                raise InputError(
                    f"{key}={values[key]!r} was removed (docs/methods.md, Variants that were "
                    f"removed); leave out method.{key}"
                )
        return {key: value for key, value in values.items() if key not in cls.retired}

    def check(self, run: RunParts) -> None:
        """Refuse a run in which the method cannot work; called as soon as a configuration is read.

        Raises:
            InputError: the method cannot run like that; the message says why and what to change.
        """

    def check_width(self, run: RunParts, tasks: int, width: int) -> None:
        """Refuse more tasks than fit a model whose hidden states have this width.

        It is called before the model is loaded, if the width is known by then.

        Raises:
            InputError: the tasks do not fit.
        """

    def needs_lora(self, run: RunParts) -> None:
        """Refuse full fine-tuning for a method that also needs the model as it was before.

        Raises:
            InputError: model.tuning is "full".
        """
        if run.model.tuning == "full":
            raise InputError(
                f"method {self.name} works on LoRA adapters; model.tuning='full' has none, "
                "use 'lora'"
            )

    def needs_banks(self, run: RunParts) -> None:
        """Refuse what is not LoRA, for a method that stacks, mixes or observes adapters of its own.

        Raises:
            InputError: model.tuning is "full", or model.adapter is set.
        """
        self.needs_lora(run)
        if run.model.adapter:
            raise InputError(
                f"method {self.name} lays LoRA adapters of its own, and model.adapter is for "
                "methods with one adapter; use model.rank, alpha, dropout and targets"
            )
