"""The task loss and the penalty at each replay of a FOREVER run (the paper's figure)."""

from experiments.runs import method_settings
from forever.config import RunConfig
from forever.sweep import Sweep


def replay_loss(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """One variant."""
    return Sweep("replay_loss", base, {"forever": method_settings(base, "forever")}, seeds, reference="forever")
