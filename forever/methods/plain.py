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
from forever.training.steps import Probe, Step, StepRecord, Steps


class Finetune(Method[FinetuneConfig]):
    """Sequential fine-tuning: the task's batches, one after another."""

    card = Card(title="Fine-tuning", paper="lower bound")
    vectors = ("anchor",)

    def begin_task(self, learner: Learner, task: Task) -> None:
        if self.config.probe_every and learner.memory:
            self.tensors["anchor"] = learner.parameters.snapshot()

    def steps(self, learner: Learner, task: Task) -> Steps:
        tau = 0.0
        for batch in learner.batches(task.train):
            yield from self.look_back(learner, task, tau)
            record = yield Step(batch)
            tau += record.update_norm
        yield from self.look_back(learner, task, tau)

    def look_back(self, learner: Learner, task: Task, tau: float) -> Steps:
        """Measure what is left of each earlier task on its kept examples, if it is time."""
        every = self.config.probe_every
        if not every or learner.step % every or not learner.memory:
            return
        probes: dict[str, StepRecord] = {}
        for name, examples in learner.memory.kept.items():
            probes[name] = yield Probe(Batch(examples), self.tensors["anchor"])
        losses = {name: record.loss for name, record in probes.items()}
        kl = {name: record.kl for name, record in probes.items()}
        distance = next(iter(probes.values())).distance
        learner.log_event(LossEvent(task.name, learner.step, losses, tau, distance, kl))

    def end_task(self, learner: Learner, task: Task) -> None:
        self.tensors.pop("anchor", None)


class Mtl(Method[MtlConfig]):
    """Fine-tuning on the union of all tasks."""

    card = Card(
        title="MTL",
        paper="upper bound",
        memory="all examples",
        extra="Nothing; one stage trains on the union of all examples.",
    )
