"""When to replay: a clock and a schedule as one thing, which any training loop can ask.

Algorithm 1 calls it after every update of a task; a callback of another trainer would do the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forever.replay.clock import Clock
from forever.replay.schedules import Days


@dataclass(frozen=True)
class Due:
    """A replay that is due now."""

    day: float | None  # the threshold that came; None at the end of a task
    days: float  # what the clock shows
    tau: float  # the same in units of the model's movement
    pace: float  # r, the pace of learning


class Trigger:
    """It observes the updates of one task and says when a replay is due."""

    def __init__(self, clock: Clock, days: Days) -> None:
        self.clock = clock
        self.days = days
        self.next_day = next(days, None)  # the day that is awaited; None when no more will come
        self.events = 0  # that were due so far, the end of the task not counted

    def observe(self, update_norm: float | None) -> Due | None:
        """Count an update of the task by Delta, the distance that it moved the parameters, and
        return the replay that is due after it.

        None is an update that was skipped: it moved nothing, but an event may still wait, since an
        update has at most one ("if" in Algorithm 1). Updates on memory are not observed.
        """
        if update_norm is not None:
            self.clock.advance(update_norm)
        if self.next_day is None or not self.clock.reached(self.next_day):
            return None
        day, self.next_day = self.next_day, next(self.days, None)
        self.events += 1
        return self._due(day)

    def resume(self, clock: Mapping[str, Any], events: int) -> None:
        """Continue where a trigger of the same days was after so many events.

        Args:
            clock: the variables of its clock.
        """
        vars(self.clock).update(clock)
        for _ in range(events):
            self.next_day = next(self.days, None)
        self.events = events

    def end(self) -> Due:
        """Return the replay that ends the task."""
        return self._due(None)

    def _due(self, day: float | None) -> Due:
        return Due(day, self.clock.days, self.clock.tau, self.clock.pace())
