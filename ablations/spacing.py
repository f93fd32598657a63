"""How replays are spread over a task: six events each, on model days (the paper's spacing study).

| variant     | days                  |
|-------------|-----------------------|
| standard    | 1, 2, 4, 7, 15, 30    |
| exponential | 1, 2, 4, 8, 16, 32    |
| polynomial  | 1, 4, 9, 16, 25, 36   |
| uniform     | 2, 4, 6, 8, 10, 12    |
| decreasing  | 15, 23, 26, 28, 29, 30 |

Budgets are equal as far as a task reaches the days: what was replayed is in the report's columns. `standard` goes on by
doubling after day 30, which no task of 1250 updates of equal length reaches (docs/protocol.md, A7, A29).
"""

from collections.abc import Mapping
from typing import Any

from forever.config import RunConfig
from forever.sweep import Sweep

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "standard": {},
    "exponential": {"method.days": "exponential"},
    "polynomial": {"method.days": "polynomial"},
    "uniform": {"method.days": "uniform"},
    "decreasing": {"method.days": "decreasing"},
}


def spacing(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """Five spacings of any FOREVER run."""
    return Sweep("spacing", base, VARIANTS, seeds, reference="standard")
