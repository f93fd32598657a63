"""forever-cl: when to replay, and how strongly, in the continual learning of language models."""

import os
from pathlib import Path

__version__ = "0.1.0"


def _choose_kernels(processor: Path = Path("/proc/cpuinfo")) -> None:
    """Let PyTorch take its kernels for AVX2 where it would take those for AVX-512.

    An update took 11 to 20 % less time with them (docs/performance.md), and two processors have one
    more kind of rounding in common. PyTorch reads the variable when it first computes.
    """
    try:
        with processor.open(encoding="utf-8") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return
    if " avx512f" in flags:
        os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")


_choose_kernels()
