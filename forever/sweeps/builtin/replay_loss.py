"""The task loss and the penalty at each replay of a FOREVER run (the paper's figure)."""

from forever.config.run import RunConfig
from forever.sweeps.named_runs import method_settings
from forever.sweeps.sweep import Sweep


def replay_loss(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """One variant."""
    return Sweep(
        "replay_loss",
        base,
        {"forever": method_settings(base, "forever")},
        seeds,
        reference="forever",
    )
