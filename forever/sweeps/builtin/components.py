"""Which part of FOREVER does what: the paper's component ablation, as differences from the full
method.

| variant   | takes out or puts in                                   | difference                                 |
|-----------|--------------------------------------------------------|--------------------------------------------|
| base      | FOREVER as published                                   | none                                       |
| +FIR      | fixed-interval replay: every model day                 | days                                       |
| +RR       | reversed spacing: sparse, then dense                   | days                                       |
| +ER       | replay at the end of the task only, whole budget       | days, consolidation_epochs                 |
| +STC      | step clock: S updates are a day                        | clock                                      |
| -IAR      | no regulariser                                         | regularizer                                |
| +PIR      | parameter importance instead of intensity              | regularizer                                |
| +IAR&PIR  | both                                                   | regularizer                                |

Why these readings of the paper's words: docs/protocol.md, A21 to A26.
"""

from collections.abc import Mapping
from typing import Any

from forever.config.run import RunConfig
from forever.sweeps.sweep import Sweep

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "base": {},
    "+FIR": {"method.days": "fixed_interval"},
    "+RR": {"method.days": "decreasing"},
    "+ER": {"method.days": "end_only", "method.consolidation_epochs": "matched"},
    "+STC": {"method.clock": "steps"},
    "-IAR": {"method.regularizer": "none"},
    "+PIR": {"method.regularizer": "importance"},
    "+IAR&PIR": {"method.regularizer": "intensity_importance"},
}


def components(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """The component ablation of any FOREVER run."""
    return Sweep("components", base, VARIANTS, seeds)
