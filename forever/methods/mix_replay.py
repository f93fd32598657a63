"""MixReplay: the memory is shuffled into the data of the current task (docs/protocol.md).

Followed: WoodScene/CL_Memory: finetune_cl.py, which concatenates and shuffles; the memory is not oversampled, so an
epoch of task k has N_k + |M| rows.
"""

from typing import Literal

from forever.data.tasks import Task
from forever.learner import Learner
from forever.methods.base import Card, Method, MethodConfig
from forever.steps import Step, Steps


class MixReplayConfig(MethodConfig):
    name: Literal["mix_replay"] = "mix_replay"


class MixReplay(Method[MixReplayConfig]):
    """CE on D_k united with M_{<k}."""

    card = Card(
        title="MixReplay",
        paper="as in FOREVER's table",
        memory="rows",
        extra="the memory's rows in every epoch",
        uncertain="memory is mixed in and not oversampled, as in the lab's code",
    )

    def steps(self, learner: Learner, task: Task) -> Steps:
        for batch in learner.batches(task.train + learner.memory.examples):
            yield Step(batch)
