"""VBM: the view-batch model (Kang et al. 2025, CVPR), carried over from images to text.

A recalled row comes as V views in one batch, held together by a consistency loss, and comes back V times more rarely:
as many rows are presented in all, but the recall interval is V times as long.

    L = CE over all views + alpha * mean over rows and views v >= 2 of KL(sg p_1 || p_v), at the answer's positions

Followed: the paper's loss; hankyul2/ViewBatchModel: datasets/utils/continual_dataset.py for the sampler (its KL, a mean
over classes, would vanish for a vocabulary). There is no published code for language models, so two variants:
`interval` replays at fixed intervals, as FOREVER describes VBM; `mix` puts views into the main loop, as that code does.
View 1 is the row itself; in the others each token of the input field is left out with probability `drop`, and every
view has a dropout mask of its own. V is fixed: no published code chooses it online.
"""

import math
import random
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from forever.data.batching import Batch
from forever.data.tasks import Task
from forever.errors import InputError
from forever.learner import Learner
from forever.methods.base import Card
from forever.methods.fixed_interval import ReplayByUpdates
from forever.methods.scheduled_replay import ScheduledReplayConfig
from forever.replay.schedules import Days, standard_events
from forever.seeding import derive
from forever.steps import Forward, Step, Steps

if TYPE_CHECKING:
    from torch import Tensor

    from forever.config import RunConfig
    from forever.data.encoding import Encoded


class VbmConfig(ScheduledReplayConfig):
    """Sources: the paper and its code."""

    name: Literal["vbm"] = "vbm"
    warmup_steps: Annotated[int, Field(ge=1)] = 24
    """S of the FOREVER whose budget of replayed rows is matched; nothing is warmed up. `mix` has no events and does
    not use it."""
    variant: Literal["interval", "mix"] = "interval"
    """Views at scheduled replays, or in every batch."""
    views: Annotated[int, Field(ge=1)] = 4
    """V: 4 is best in the paper, 16 too long an interval."""
    consistency: Annotated[float, Field(ge=0)] = 1.0
    """alpha."""
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Ours: the paper augments images."""
    memory_epochs: Annotated[int, Field(ge=1)] = 1
    """Passes at each event of `interval`: a recall is one pass, which shows every row `views` times."""
    # Narrower than in the base class, which is safe for a frozen field.
    consolidation_epochs: Annotated[int, Field(ge=0)] = 1  # pyright: ignore[reportIncompatibleVariableOverride]
    """Passes of the last recall of `interval`, when the task is over. Not "matched": the recalls match the budget."""

    def check(self, run: "RunConfig") -> None:
        if self.variant == "mix":
            for key in ("memory_epochs", "consolidation_epochs"):
                if (value := getattr(self, key)) != type(self).model_fields[key].default:
                    raise InputError(
                        f"method vbm: {key}={value} counts the passes of an event, and method.variant='mix' has none; "
                        f"leave out method.{key} or set method.variant='interval'"
                    )
        if run.optim.batch_size % self.views:
            raise InputError(
                f"method vbm: optim.batch_size={run.optim.batch_size} cannot hold whole rows of {self.views} views; "
                "make it a multiple of method.views"
            )


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
        """n: the passes of fixed-interval replay, 2 J + 1, in events of one pass that shows V views of each row."""
        passes = 2 * standard_events(learner.planned_steps, self.config.warmup_steps) + 1
        return min(max(1, math.floor(passes / self.config.views + 0.5)), learner.planned_steps)  # one an update

    def passes(self, learner: Learner, task: Task, epochs: int) -> list[Batch]:
        rows = learner.config.optim.batch_size // self.config.views
        return list(learner.memory.batches(epochs, task.name, rows))

    def steps(self, learner: Learner, task: Task) -> Steps:
        if self.config.variant == "interval":
            yield from super().steps(learner, task)
            return
        for batch in learner.batches(task.train + learner.memory.examples, self.config.views):
            yield Step(batch)

    def rows(self, learner: Learner, step: Step) -> "list[tuple[Encoded, ...]]":
        if self.config.variant == "interval" and step.kind == "task":
            return super().rows(learner, step)
        assert learner.task is not None
        stream = random.Random(derive(learner.config.seed, "views", learner.task.name, learner.updates))
        groups: list[tuple[Encoded, ...]] = []
        for example in step.batch.examples:
            others = (
                learner.encoder.with_drops(example, self.config.drop, stream) for _ in range(self.config.views - 1)
            )
            groups.append((learner.encoder.encode(example), *others))
        return groups

    def loss(self, learner: Learner, forward: Forward) -> "Tensor":
        """Views of a row have the same answer, so their positions pair up from the answer's start."""
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
