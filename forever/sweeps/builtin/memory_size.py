"""How much is kept of each task: 2, 5, 10 or 50 % (the paper's memory study), as multiples of the
base's share.

FOREVER and VBM, as there: FOREVER against its own smallest memory, VBM against FOREVER with as
much. No share is above all rows, so a small benchmark may have fewer sizes.
"""

from forever.config.run import RunConfig
from forever.sweeps.named_runs import method_settings
from forever.sweeps.sweep import Sweep

TIMES = {"2 %": 1.0, "5 %": 2.5, "10 %": 5.0, "50 %": 25.0}


def memory_size(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """Two methods with up to four sizes of memory each."""
    variants: dict[str, dict[str, object]] = {}
    paper: dict[str, str] = {}
    references: dict[str, str] = {}
    for method in ("forever", "vbm"):
        for name, times in TIMES.items():
            fraction = min(1.0, round(times * base.memory.fraction, 6))
            variant = f"{method} {100 * fraction:g} %"
            variants[variant] = {**method_settings(base, method), "memory.fraction": fraction}
            paper[variant] = f"{method} {name}"
            if method == "vbm":
                references[variant] = f"forever {100 * fraction:g} %"
    first = next(iter(variants))
    return Sweep(
        "memory_size", base, variants, seeds, reference=first, paper=paper, references=references
    )
