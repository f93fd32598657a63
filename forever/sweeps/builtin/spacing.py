"""How replays are spread over a task: six events each, on model days (the paper's spacing study).

| variant     | days                  |
|-------------|-----------------------|
| standard    | 1, 2, 4, 7, 15, 30    |
| exponential | 1, 2, 4, 8, 16, 32    |
| polynomial  | 1, 4, 9, 16, 25, 36   |
| uniform     | 2, 4, 6, 8, 10, 12    |
| decreasing  | 15, 23, 26, 28, 29, 30 |

Budgets are equal: each variant spends that of `standard` in a task whose updates are of equal
length, and replays at the task's end what its days did not (docs/protocol.md, A7, A29).
"""

from collections.abc import Mapping
from typing import Any

from forever.config.run import RunConfig
from forever.sweeps.sweep import Sweep

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    name: {"method.days": days, "method.consolidation_epochs": "matched"}
    for name, days in (
        ("standard", "ebbinghaus"),
        ("exponential", "exponential"),
        ("polynomial", "polynomial"),
        ("uniform", "uniform"),
        ("decreasing", "decreasing"),
    )
}


def spacing(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """Five spacings of any FOREVER run."""
    return Sweep("spacing", base, VARIANTS, seeds, reference="standard")
