"""Four methods with all parameters trained instead of an adapter, SuperNI.

The paper gives no learning rate for it. Here it is a tenth of the adapter's: the ratio between the
best rates of LoRA and of full fine-tuning that Schulman et al. report ("LoRA Without Regret",
2025). beta_base stays (docs/protocol.md, A31).
"""

from forever.config.run import RunConfig
from forever.sweeps.named_runs import method_settings, orders
from forever.sweeps.sweep import Sweep

METHODS = ("recurrent_kif", "aimmerging", "vbm", "forever")


def full_finetuning(base: RunConfig, seeds: tuple[int, ...] = (0, 1, 2)) -> Sweep:
    """Four methods without an adapter."""
    full = {"model.tuning": "full", "optim.lr": base.optim.lr / 10}
    variants = {method: {**method_settings(base, method), **full} for method in METHODS}
    return Sweep("full_finetuning", base, variants, seeds, orders(base, "superni"), "forever")
