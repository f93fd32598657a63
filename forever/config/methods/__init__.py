"""Hyper-parameters of all methods, free of torch, so that a bad run is refused at once."""

from typing import Annotated, get_args

from pydantic import Field

from forever.config.methods import baselines, replay
from forever.config.methods.base import MethodConfig

# In the order of the paper's main table: bounds and plain replay, then methods without memory,
# methods with memory, and FOREVER.
AnyMethodConfig = Annotated[
    replay.FinetuneConfig
    | replay.MtlConfig
    | replay.MixReplayConfig
    | replay.FixedIntervalConfig
    | baselines.EwcConfig
    | baselines.OLoraConfig
    | baselines.MoeLoraConfig
    | baselines.SaptConfig
    | baselines.MiguConfig
    | replay.SsrConfig
    | baselines.RecurrentKifConfig
    | baselines.AimMergingConfig
    | replay.VbmConfig
    | replay.ForeverConfig,
    Field(discriminator="name"),
]
METHOD_CONFIGS: dict[str, type[MethodConfig]] = {
    config.model_fields["name"].default: config for config in get_args(get_args(AnyMethodConfig)[0])
}
