"""When day 7 of the model's clock came: the one day whose updates the paper prints, 140 to 180 of a
task (docs/protocol.md#replay-times)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple


class DaySeven(NamedTuple):
    """The update of a task after which day 7 came, and which share of the task's updates that is;
    infinite if it did not come."""

    update: float
    share: float

    def __str__(self) -> str:
        if math.isinf(self.update):
            return "never"
        return f"{self.update:.0f} ({self.share:.0%})".replace("%", " %")


def day_seven(results: Iterable[Mapping[str, Any]]) -> DaySeven | None:
    """Return the medians over all tasks of all runs; a task without day 7 counts as infinitely
    late. None if no run has a clock of the model, or all are of a version that did not say.

    Args:
        results: contents of result.json.
    """
    updates: list[float] = []
    shares: list[float] = []
    for result in results:
        for note in result["notes"].values():
            if "day_7" in note and "planned" in note:
                came = note["day_7"] is not None
                updates.append(note["day_7"] if came else math.inf)
                shares.append(note["day_7"] / note["planned"] if came else math.inf)
    return DaySeven(median(updates), median(shares)) if updates else None


def day_seven_of_updates(day_steps: int, planned: Sequence[int]) -> DaySeven:
    """Return `day_seven` of tasks of so many updates on a clock on which a day is S of them."""
    update = 7.0 * day_steps
    share = median(update / count if update <= count else math.inf for count in planned)
    return DaySeven(update if math.isfinite(share) else math.inf, share)
