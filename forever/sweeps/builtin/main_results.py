"""The main table: all methods on Standard CL (orders 1 to 3), Long Sequence (4 to 6) and SuperNI
(7, 8), 3 seeds."""

from forever.config.run import RunConfig
from forever.methods.registry import METHODS
from forever.sweeps.named_runs import method_settings, orders
from forever.sweeps.sweep import Sweep


def main_results(base: RunConfig, seeds: tuple[int, ...] = (0, 1, 2)) -> Sweep:
    """Fourteen methods on eight orders; on `mini` on its two."""
    variants = {name: method_settings(base, name) for name in METHODS}
    return Sweep(
        "main_results",
        base,
        variants,
        seeds,
        orders(base, "standard", "long", "superni"),
        "forever",
    )
