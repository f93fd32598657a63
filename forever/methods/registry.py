"""All methods by name."""

from typing import Annotated, Any

from pydantic import Field

from forever.methods.aimmerging import AimMerging, AimMergingConfig
from forever.methods.base import Method, MethodConfig
from forever.methods.ewc import Ewc, EwcConfig
from forever.methods.finetune import Finetune, FinetuneConfig
from forever.methods.fixed_interval import FixedInterval, FixedIntervalConfig
from forever.methods.forever import Forever, ForeverConfig
from forever.methods.migu import Migu, MiguConfig
from forever.methods.mix_replay import MixReplay, MixReplayConfig
from forever.methods.moelora import MoeLora, MoeLoraConfig
from forever.methods.mtl import Mtl, MtlConfig
from forever.methods.olora import OLora, OLoraConfig
from forever.methods.recurrent_kif import RecurrentKif, RecurrentKifConfig
from forever.methods.sapt import Sapt, SaptConfig
from forever.methods.ssr import Ssr, SsrConfig
from forever.methods.vbm import Vbm, VbmConfig

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

# In the order of the paper's main table: bounds and plain replay, then without memory, with memory, and FOREVER.
METHODS: dict[str, type[Method[Any]]] = {
    "finetune": Finetune,
    "mtl": Mtl,
    "mix_replay": MixReplay,
    "fixed_interval": FixedInterval,
    "ewc": Ewc,
    "olora": OLora,
    "moelora": MoeLora,
    "sapt": Sapt,
    "migu": Migu,
    "ssr": Ssr,
    "recurrent_kif": RecurrentKif,
    "aimmerging": AimMerging,
    "vbm": Vbm,
    "forever": Forever,
}


def build_method(config: MethodConfig) -> Method[Any]:
    """The method that a configuration describes."""
    return METHODS[getattr(config, "name")](config)  # noqa: B009 - every subclass has `name`, the base has not
