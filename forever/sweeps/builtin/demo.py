"""The demo: the paper's component ablation on `mini`, between its lower and its upper bound."""

from forever.config.run import RunConfig
from forever.sweeps.builtin.components import VARIANTS
from forever.sweeps.sweep import Sweep

# Fine-tuning forgets everything it can, joint training has nothing to forget: what replay can win
# lies in between.
BOUNDS = {"finetune": {"method.name": "finetune"}, "mtl": {"method.name": "mtl"}}


def demo(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """Eight variants of FOREVER, fine-tuning and joint training."""
    return Sweep("demo", base, {**VARIANTS, **BOUNDS}, seeds)
