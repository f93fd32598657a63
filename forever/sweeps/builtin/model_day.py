"""Is a model day a property of the task? Its length in two orders, beside what is forgotten and
what can be learned.

FOREVER tells tau_day of each task, joint training tells how well it can be learned (the paper's
figure: Pearson's r).
"""

from forever.config.run import RunConfig
from forever.sweeps.named_runs import method_settings, orders
from forever.sweeps.sweep import Sweep


def model_day(base: RunConfig, seeds: tuple[int, ...] = (0, 1, 2)) -> Sweep:
    """FOREVER and joint training on both orders of SuperNI."""
    variants = {name: method_settings(base, name) for name in ("forever", "mtl")}
    return Sweep("model_day", base, variants, seeds, orders(base, "superni"), "forever")
