"""VBM: the view-batch model (Kang et al. 2025, CVPR), carried over from images to text.

A recalled row comes as V views in one batch, held together by a consistency loss, and comes back V
times more rarely: as many rows are presented in all, but the recall interval is V times as long.

    L = CE over all views + alpha * mean over rows and views v >= 2 of KL(sg p_1 || p_v), at the answer's positions

Followed: the paper's loss; hankyul2/ViewBatchModel: datasets/utils/continual_dataset.py for the
sampler (its KL, a mean over classes, would vanish for a vocabulary). There is no published code for
language models, so two variants: `interval` replays at fixed intervals, as FOREVER describes VBM;
`mix` puts views into the main loop, as that code does. View 1 is the row itself; in the others each
token of the input field is left out with probability `drop`, and every view has a dropout mask of
its own. V is fixed: no published code chooses it online.
"""

import math
import random

from torch import Tensor

from forever.config.methods.replay import VbmConfig
from forever.data.batching import Batch
from forever.data.encoding import Encoded
from forever.data.tasks import Task
from forever.methods.base import Card
from forever.methods.fixed_interval import ReplayByUpdates
from forever.replay.schedules import Days, standard_events
from forever.seeding import derive
from forever.training.learner import Learner
from forever.training.steps import Forward, Step


class Vbm(ReplayByUpdates[VbmConfig]):
    """Rare recalls of several views."""

    card = Card(
        title="VBM",
        paper="Kang et al. 2025",
        memory="rows",
        extra="as fixed-interval replay; a softmax over the vocabulary at the answer's positions of each view",
        uncertain="no code for language models: views, interval and which variant FOREVER ran are ours",
    )

    def days(self, learner: Learner, task: Task) -> Days:
        """Event j of n comes after update j T / n; the last one is the consolidation."""
        events = self.events(learner)
        return (float(round(j * learner.planned_steps / events)) for j in range(1, events))

    def events(self, learner: Learner) -> int:
        """n: the passes of fixed-interval replay, 2 J + 1, in events of one pass that shows V views
        of each row."""
        passes = 2 * standard_events(learner.planned_steps, self.config.warmup_steps) + 1
        # One an update.
        return min(max(1, math.floor(passes / self.config.views + 0.5)), learner.planned_steps)

    def passes(self, learner: Learner, task: Task, epochs: int) -> list[Batch]:
        rows = learner.config.optim.batch_size // self.config.views
        return list(learner.memory.batches(epochs, task.name, rows))

    def encode(self, learner: Learner, step: Step) -> list[tuple[Encoded, ...]]:
        if step.kind == "task":
            return super().encode(learner, step)
        assert learner.task is not None
        stream = random.Random(
            derive(learner.config.seed, "views", learner.task.name, learner.updates)
        )
        groups: list[tuple[Encoded, ...]] = []
        for example in step.batch.examples:
            others = (
                learner.encoder.with_drops(example, self.config.drop, stream)
                for _ in range(self.config.views - 1)
            )
            groups.append((learner.encoder.encode(example), *others))
        return groups

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        """Views of a row have the same answer, so their positions pair up from the answer's
        start."""
        views = len(forward.groups[0])
        if views == 1 or not self.config.consistency:
            return forward.cross_entropy
        log_p = forward.logits.log_softmax(-1)  # [n, V]
        parts = iter(log_p.split([len(row.answer) for group in forward.groups for row in group]))
        divergence = log_p.new_zeros(())
        for _ in forward.groups:
            first = next(parts).detach()
            for _ in range(views - 1):
                divergence = divergence + (first.exp() * (first - next(parts))).sum(-1).mean()
        return forward.cross_entropy + forward.share * self.config.consistency * divergence / (
            len(forward.groups) * (views - 1)
        )
