"""The task loss and the penalty at each replay of a FOREVER run (the paper's figure)."""

from forever.config import RunConfig
from forever.sweep import Sweep


def replay_loss(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """One variant, the base itself."""
    return Sweep("replay_loss", base, {"forever": {}}, seeds, reference="forever")
