"""Minutes an epoch of four methods on four backbones: what replay, probes, views and merges cost.

The runs of `backbones` tell the same; this one needs a single seed and order.
"""

from forever.config.run import RunConfig
from forever.sweeps.builtin.backbones import reference, references, variants
from forever.sweeps.sweep import Sweep


def training_time(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """Every method on every backbone, once."""
    return Sweep(
        "training_time",
        base,
        variants(base),
        seeds,
        reference=reference(base),
        references=references(base),
    )
