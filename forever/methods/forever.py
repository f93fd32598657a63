"""FOREVER: forgetting-curve-inspired memory replay (arXiv 2601.03938).

The memory is replayed at Ebbinghaus days of model time, and each replay is held to the end of the
previous task with a strength that follows the pace of learning. Where the paper is silent, the
field in forever/config/methods/ours.py says so and gives the reason. The component ablation
changes `clock`, `days` and `regularizer` and nothing else.
"""

from itertools import islice

from forever.config.methods.ours import ForeverConfig
from forever.data.batching import Batch, Batches, shuffled
from forever.data.tasks import Task
from forever.methods.scheduled_replay import ScheduledReplay
from forever.replay.clock import CLOCKS, Clock
from forever.replay.schedules import CONTROLS, Days, days
from forever.training.learner import Learner
from forever.training.method import Card


class Forever(ScheduledReplay[ForeverConfig]):
    """Algorithm 1 with the parts that the paper chose."""

    card = Card(
        title="FOREVER",
        paper="arXiv 2601.03938",
        memory="examples",
        extra="Each event passes twice over the memory, the end of a task once; one copy of the "
        "adapter is kept.",
        uncertain="gamma is not published; docs/protocol.md lists the other decisions.",
    )

    def clock(self) -> Clock:
        return CLOCKS[self.config.clock](self.config.day_steps, self.config.smoothing)

    def days(self, learner: Learner) -> Days:
        if isinstance(self.config.days, str) and (drawn := CONTROLS.get(self.config.days)):
            assert learner.task is not None
            updates, seed = learner.planned_steps, learner.config.seed
            return drawn(updates, self.config.day_steps, seed, learner.task.name)
        return days(self.config.days)

    def passes(self, learner: Learner, task: Task, epochs: int | None) -> Batches:
        batches = super().passes(learner, task, epochs)
        if self.config.source == "memory":
            return batches
        # As many examples of the current task, from where the event before ended.
        own = shuffled(task.train, learner.config.seed, "pad", task.name)
        own = islice(own, learner.examples["padded"], None)
        return (Batch(tuple(islice(own, len(batch.examples)))) for batch in batches)
