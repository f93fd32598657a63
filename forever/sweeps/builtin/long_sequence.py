"""Thirty tasks, Long Sequence and SuperNI shuffled into one sequence: does a method hold over
time?"""

from forever.config.run import RunConfig
from forever.sweeps.named_runs import method_settings, orders
from forever.sweeps.sweep import Sweep

METHODS = ("recurrent_kif", "aimmerging", "vbm", "forever")


def long_sequence(base: RunConfig, seeds: tuple[int, ...] = (0, 1, 2)) -> Sweep:
    """Four methods on the order of thirty tasks; on `mini` on its two."""
    variants = {method: method_settings(base, method) for method in METHODS}
    return Sweep("long_sequence", base, variants, seeds, orders(base, "thirty"), "forever")
