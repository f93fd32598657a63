"""All methods by name."""

from typing import Annotated, Any

from pydantic import Field

from forever.methods.base import Method, MethodConfig
from forever.methods.finetune import Finetune, FinetuneConfig
from forever.methods.fixed_interval import FixedInterval, FixedIntervalConfig
from forever.methods.forever import Forever, ForeverConfig
from forever.methods.mix_replay import MixReplay, MixReplayConfig
from forever.methods.mtl import Mtl, MtlConfig

AnyMethodConfig = Annotated[
    FinetuneConfig | MtlConfig | MixReplayConfig | FixedIntervalConfig | ForeverConfig, Field(discriminator="name")
]

METHODS: dict[str, type[Method[Any]]] = {
    "finetune": Finetune,
    "mtl": Mtl,
    "mix_replay": MixReplay,
    "fixed_interval": FixedInterval,
    "forever": Forever,
}


def build_method(config: MethodConfig) -> Method[Any]:
    """The method that a configuration describes."""
    return METHODS[getattr(config, "name")](config)  # noqa: B009 - every subclass has `name`, the base has not
