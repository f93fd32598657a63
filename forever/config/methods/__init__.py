"""Hyper-parameters of all methods, free of torch.

So a run is refused before anything heavy is loaded.
"""

from typing import Annotated

from pydantic import Field

from forever.config.methods.base import MethodConfig
from forever.config.methods.baselines import (
    AimMergingConfig,
    EwcConfig,
    MiguConfig,
    MoeLoraConfig,
    OLoraConfig,
    RecurrentKifConfig,
    SaptConfig,
)
from forever.config.methods.replay import (
    FinetuneConfig,
    FixedIntervalConfig,
    ForeverConfig,
    MixReplayConfig,
    MtlConfig,
    SsrConfig,
    VbmConfig,
)

AnyMethodConfig = Annotated[
    FinetuneConfig
    | MtlConfig
    | MixReplayConfig
    | FixedIntervalConfig
    | EwcConfig
    | OLoraConfig
    | MoeLoraConfig
    | SaptConfig
    | MiguConfig
    | SsrConfig
    | RecurrentKifConfig
    | AimMergingConfig
    | VbmConfig
    | ForeverConfig,
    Field(discriminator="name"),
]

# In the order of the paper's main table: bounds and plain replay, then methods without memory,
# methods with memory, and FOREVER.
METHOD_CONFIGS: dict[str, type[MethodConfig]] = {
    "finetune": FinetuneConfig,
    "mtl": MtlConfig,
    "mix_replay": MixReplayConfig,
    "fixed_interval": FixedIntervalConfig,
    "ewc": EwcConfig,
    "olora": OLoraConfig,
    "moelora": MoeLoraConfig,
    "sapt": SaptConfig,
    "migu": MiguConfig,
    "ssr": SsrConfig,
    "recurrent_kif": RecurrentKifConfig,
    "aimmerging": AimMergingConfig,
    "vbm": VbmConfig,
    "forever": ForeverConfig,
}
