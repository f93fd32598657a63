"""All methods by name, in the order of the paper's main table."""

from typing import Any

from forever.config.methods.base import MethodConfig
from forever.methods.aimmerging import AimMerging
from forever.methods.base import Method
from forever.methods.ewc import Ewc
from forever.methods.fixed_interval import FixedInterval
from forever.methods.forever import Forever
from forever.methods.migu import Migu
from forever.methods.moelora.method import MoeLora
from forever.methods.olora import OLora
from forever.methods.plain import Finetune, MixReplay, Mtl
from forever.methods.recurrent_kif import RecurrentKif
from forever.methods.sapt.method import Sapt
from forever.methods.ssr.method import Ssr
from forever.methods.vbm import Vbm

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
    """Build the method that a configuration describes."""
    return METHODS[config.name](config)
