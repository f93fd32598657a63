"""How many passes over the memory a replay takes: 1, 2 or 4 (the paper's study of E_mem)."""

from forever.config.run import RunConfig
from forever.sweeps.sweep import Sweep

EPOCHS = (1, 2, 4)


def memory_epochs(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """Three lengths of a replay."""
    variants = {f"E_mem = {epochs}": {"method.memory_epochs": epochs} for epochs in EPOCHS}
    return Sweep("memory_epochs", base, variants, seeds, reference="E_mem = 2")
