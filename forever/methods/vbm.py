"""VBM: the view-batch model (Kang et al. 2025, CVPR), carried over from images to text.

A recalled example comes as V views in one batch, held together by a consistency loss. So many
showings take fewer recalls: at equal distances 1 / V of those of other replay.

    L = CE over all views + alpha * mean over examples and views v >= 2 of KL(sg p_1 || p_v)

The KL term is taken at the answer's positions. The loss follows the paper, the sampler follows
hankyul2/ViewBatchModel: datasets/utils/continual_dataset.py (whose KL, a mean over classes, would
vanish for a vocabulary). No code for language models is published. FOREVER says "fixed step-based
intervals" and "step-based Ebbinghaus replay": `days` has both. View 1 is the example itself; in
each other view a token of the input field is left out with probability `drop`, and every view has a
dropout mask of its own.
"""

import math
import random
from dataclasses import replace

from torch import Tensor

from forever.config.methods.ours import VbmConfig
from forever.data.batching import Batches
from forever.data.encoding import Encoded
from forever.data.tasks import Task
from forever.methods.scheduled_replay import ScheduledReplay
from forever.replay.schedules import Days, ebbinghaus, standard_events
from forever.seeding import derive
from forever.training.learner import Learner
from forever.training.method import Card
from forever.training.steps import Forward, Step


class Vbm(ScheduledReplay[VbmConfig]):
    """Rare recalls of several views of each example."""

    card = Card(
        title="VBM",
        paper="Kang et al. 2025",
        memory="examples",
        extra="Replay costs about as much as FOREVER's; each view adds a softmax over the "
        "vocabulary at the answer's positions.",
        uncertain="Views, interval and variant: no code for language models is published.",
    )

    def days(self, learner: Learner) -> Days:
        """Return the days: event j of n comes after update j T / n, the last one at the end; or the
        standard days."""
        if self.config.days == "ebbinghaus":
            return (day * self.config.day_steps for day in ebbinghaus())
        events = self.events(learner)
        return (float(round(j * learner.planned_steps / events)) for j in range(1, events))

    def events(self, learner: Learner) -> int:
        """Return n, which spends the 2 J + 1 passes of fixed-interval replay on passes of V views.

        An update has at most one event.
        """
        passes = 2 * standard_events(learner.planned_steps, self.config.day_steps) + 1
        events = max(1, math.floor(passes / self.config.views + 0.5))
        return min(events, learner.planned_steps)

    def parts(self, learner: Learner) -> int:
        # At equal distances the last event is the end.
        return self.events(learner) if self.config.days == "equal" else super().parts(learner)

    def passes(self, learner: Learner, task: Task, epochs: int | None) -> Batches:
        size = learner.config.optim.batch_size // self.config.views
        if epochs is None:
            seen = learner.examples["replayed"] // self.config.views
            batches = learner.memory.further(seen, task.name, size)
        else:
            batches = learner.memory.batches(epochs, task.name, size)
        return (replace(batch, views=self.config.views) for batch in batches)

    def encode(self, learner: Learner, step: Step) -> list[tuple[Encoded, ...]]:
        if step.kind == "task":
            return super().encode(learner, step)
        assert learner.task is not None
        seed = derive(learner.config.seed, "views", learner.task.name, learner.updates)
        stream = random.Random(seed)
        groups: list[tuple[Encoded, ...]] = []
        for example in step.batch.examples:
            views = [learner.encoder.encode(example)]
            for _ in range(self.config.views - 1):
                views.append(learner.encoder.with_drops(example, self.config.drop, stream))
            groups.append(tuple(views))
        return groups

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        """Add the consistency loss. Views have the same answer, so their positions pair up."""
        views = len(forward.groups[0])
        if views == 1 or not self.config.consistency:
            return forward.cross_entropy
        log_p = forward.logits.log_softmax(-1)  # [n, V]
        lengths = [len(view.learned) for group in forward.groups for view in group]
        parts = iter(log_p.split(lengths))
        divergence = log_p.new_zeros(())
        for _ in forward.groups:
            first = next(parts).detach()
            for _ in range(views - 1):
                divergence = divergence + (first.exp() * (first - next(parts))).sum(-1).mean()
        pairs = len(forward.groups) * (views - 1)
        weight = forward.share * self.config.consistency
        return forward.cross_entropy + weight * divergence / pairs
