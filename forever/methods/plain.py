"""The bounds: fine-tuning and joint training.

`finetune` is the lower bound: one adapter is trained on task after task and nothing is replayed.

`mtl` is the upper bound: one fresh adapter is trained on the union of all tasks, naturally mixed,
for as many epochs as the others spend on each task. Scores exist after that one stage only, so OP
is defined and BWT is not.
"""

from forever.config.methods.ours import FinetuneConfig, MtlConfig
from forever.data.batching import Batch
from forever.data.tasks import Task
from forever.training.events import LossEvent
from forever.training.learner import Learner
from forever.training.method import Card, Method
from forever.training.steps import Probe, Step, Steps


class Finetune(Method[FinetuneConfig]):
    """Sequential fine-tuning: the task's batches, one after another."""

    card = Card(title="Fine-tuning", paper="lower bound")

    def steps(self, learner: Learner, task: Task) -> Steps:
        for batch in learner.batches(task.train):
            yield from self.look_back(learner, task)
            yield Step(batch)
        yield from self.look_back(learner, task)

    def look_back(self, learner: Learner, task: Task) -> Steps:
        """Measure the loss on the kept examples of each earlier task, if it is time."""
        every = self.config.probe_every
        if not every or learner.step % every or not learner.memory:
            return
        losses: dict[str, float] = {}
        for name, examples in learner.memory.kept.items():
            record = yield Probe(Batch(examples))
            losses[name] = record.loss
        learner.log_event(LossEvent(task.name, learner.step, losses))


class Mtl(Method[MtlConfig]):
    """Fine-tuning on the union of all tasks."""

    card = Card(
        title="MTL",
        paper="upper bound",
        memory="all examples",
        extra="Nothing; one stage trains on the union of all examples.",
    )
