"""How many updates make the first day: an eighth to four times the base's S, so 3 to 96 (the
paper's study of S)."""

from forever.config.run import RunConfig
from forever.sweeps.sweep import Sweep

PAPER = (3, 6, 12, 24, 48, 96)


def warmup_window(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """Up to six lengths of the warm-up, whole numbers of updates."""
    # A method without S is refused with the first variant.
    own = getattr(base.method, "warmup_steps", 24)
    lengths = {f"S = {max(1, own * length // 24)}": f"S = {length}" for length in PAPER}
    variants = {name: {"method.warmup_steps": int(name.removeprefix("S = "))} for name in lengths}
    return Sweep("warmup_window", base, variants, seeds, reference=f"S = {own}", paper=lengths)
