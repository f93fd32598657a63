"""Fixed-interval replay: FOREVER's replay at equal distances in updates, without a penalty.

The baseline shows whether the time of a replay matters or only that there is one. A task has J
events, as many as FOREVER's schedule fires in a task whose updates are of equal length: one every
floor(T / J) updates, and then the same consolidation pass. The paper gives no interval, but it says
that budgets are matched (docs/protocol.md#fixed-interval-replay).
"""

from forever.config.methods.ours import FixedIntervalConfig
from forever.methods.scheduled_replay import ScheduledReplay
from forever.replay.schedules import Days
from forever.training.learner import Learner
from forever.training.method import Card


class FixedInterval(ScheduledReplay[FixedIntervalConfig]):
    """Replay J times, at equal distances in updates."""

    card = Card(
        title="Fixed-interval replay",
        paper="as in FOREVER's table",
        memory="examples",
        extra="A task has 2 J + 1 passes over the memory.",
        uncertain="No interval is published; ours makes the budget equal to FOREVER's.",
    )

    def days(self, learner: Learner) -> Days:
        events = self.parts(learner) - 1
        interval = self.config.interval or max(learner.planned_steps // max(events, 1), 1)
        return (float(i * interval) for i in range(1, events + 1))

    def parts(self, learner: Learner) -> int:
        return self.config.events + 1 if self.config.events else super().parts(learner)
