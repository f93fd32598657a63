"""Fixed-interval replay: FOREVER's replay unit on a plain step clock, without penalty
(docs/protocol.md).

It separates "when" from "that": J events, as many as FOREVER's schedule fires in a task of updates
of equal length, every floor(T / J) updates, then the same consolidation pass. The paper gives no
interval; matching the budget is the only statement on budgets in it.
"""

from typing import TypeVar

from forever.config.methods.replay import FixedIntervalConfig, ScheduledReplayConfig
from forever.data.tasks import Task
from forever.methods.base import Card
from forever.methods.scheduled_replay import ScheduledReplay
from forever.replay.clock import Clock, StepClock
from forever.replay.regularizers import Regularizer
from forever.replay.schedules import Days, standard_events
from forever.training.learner import Learner

R = TypeVar("R", bound=ScheduledReplayConfig)


class ReplayByUpdates(ScheduledReplay[R]):
    """Replay after given numbers of updates, without a penalty. Subclasses say after which."""

    def __init__(self, config: R) -> None:
        super().__init__(config, Regularizer.named("none", beta=0.0, gamma=0.0, low=1.0, high=1.0))

    def clock(self) -> Clock:
        return StepClock(warmup_steps=1, smoothing=1.0)  # a day is one update


class FixedInterval(ReplayByUpdates[FixedIntervalConfig]):
    """J replays at equal distances in updates."""

    card = Card(
        title="Fixed-interval replay",
        paper="as in FOREVER's table",
        memory="rows",
        extra="2 J + 1 passes over memory",
        uncertain="the interval: none is published, the budget matches FOREVER's",
    )

    def days(self, learner: Learner, task: Task) -> Days:
        events = standard_events(learner.planned_steps, self.config.warmup_steps)
        interval = self.config.interval or learner.planned_steps // max(events, 1)
        return (float(i * interval) for i in range(1, events + 1))
