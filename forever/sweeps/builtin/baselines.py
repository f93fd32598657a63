"""All methods side by side on one benchmark: the rows of the paper's main table, FOREVER as the
reference."""

from forever.config.run import RunConfig
from forever.methods.registry import METHODS
from forever.sweeps.named_runs import method_settings
from forever.sweeps.sweep import Sweep


def baselines(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """Every method on the benchmark, order and training settings of any run."""
    variants = {name: method_settings(base, name) for name in METHODS}
    return Sweep("baselines", base, variants, seeds, reference="forever")
