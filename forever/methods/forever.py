"""FOREVER: forgetting-curve-inspired memory replay (arXiv 2601.03938).

Replay at Ebbinghaus days of model time, held to the end of the previous task with a strength that
follows the pace of learning. Followed: Algorithm 1. Where the paper is silent the field says so
with the reason (docs/protocol.md). The component ablation changes `clock`, `days` and `regularizer`
and nothing else.
"""

from forever.config.methods.replay import ForeverConfig
from forever.data.tasks import Task
from forever.methods.base import Card
from forever.methods.scheduled_replay import ScheduledReplay
from forever.replay.clock import CLOCKS, Clock
from forever.replay.regularizers import Regularizer
from forever.replay.schedules import Days, days
from forever.training.learner import Learner


class Forever(ScheduledReplay[ForeverConfig]):
    """Algorithm 1 with the paper's parts."""

    card = Card(
        title="FOREVER",
        paper="arXiv 2601.03938",
        memory="rows",
        extra="2 passes over memory an event and one at the end; a norm an update; one copy of the adapter",
        uncertain="gamma, and A1 to A31 of docs/protocol.md",
    )

    def __init__(self, config: ForeverConfig) -> None:
        bounds = config.min_strength, config.max_strength
        super().__init__(
            config, Regularizer.named(config.regularizer, config.beta, config.gamma, *bounds)
        )

    def clock(self) -> Clock:
        return CLOCKS[self.config.clock](self.config.warmup_steps, self.config.smoothing)

    def days(self, learner: Learner, task: Task) -> Days:
        return days(self.config.days)
