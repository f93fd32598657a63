"""Sequential fine-tuning: the lower bound. One adapter is trained on task after task, nothing is replayed."""

from typing import Annotated, Literal

from pydantic import Field

from forever.data.batching import Batch
from forever.data.tasks import Task
from forever.learner import Learner, LossEvent
from forever.methods.base import Card, Method, MethodConfig
from forever.steps import Probe, Step, Steps


class FinetuneConfig(MethodConfig):
    name: Literal["finetune"] = "finetune"
    probe_every: Annotated[int, Field(ge=1)] | None = None
    """Updates between two looks at the loss on the kept rows of earlier tasks, for the forgetting rate
    (experiments/forgetting_rate.py); nothing is learned from them. None: no looks."""


class Finetune(Method[FinetuneConfig]):
    """The task's batches, one after another."""

    card = Card(
        title="Fine-tuning",
        paper="lower bound",
        memory="none",
        extra="none",
        uncertain="nothing",
    )

    def steps(self, learner: Learner, task: Task) -> Steps:
        every = self.config.probe_every
        for batch in learner.batches(task.train):
            if every and learner.step % every == 0:
                yield from self.look_back(learner, task)
            yield Step(batch)
        if every and learner.step % every == 0:
            yield from self.look_back(learner, task)

    def look_back(self, learner: Learner, task: Task) -> Steps:
        """The loss on each earlier task: the mean over its kept rows, all of which were trained on then."""
        losses: dict[str, float] = {}
        for name, rows in learner.memory.kept.items():
            total = 0.0
            for start in range(0, len(rows), learner.config.optim.batch_size):
                batch = Batch(rows[start : start + learner.config.optim.batch_size], 0)
                record = yield Probe(batch)
                total += record.loss * len(batch.examples)
            losses[name] = total / len(rows)
        if losses:
            learner.log_event(LossEvent(task.name, learner.step, losses))
