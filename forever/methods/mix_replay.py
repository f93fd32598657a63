"""Memory mixed into the task's batches, and DER++, which also holds what the model said of it.

`mix_replay` shuffles the memory into the data of the current task, without oversampling it, so an
epoch of task k has N_k + |M| examples (WoodScene/CL_Memory: finetune_cl.py). With a budget of
replayed examples an equal part of it is in each epoch: then it is plain interleaving. All that can
hold FOREVER's replay can hold it, too.

`der` is that with stored logits, L = CE + alpha * mean (z - z*)^2 over replayed examples. Followed:
the logits' term, and right answers of replayed examples beside it (DER++). Not followed: one draw
from memory is used for both terms; logits are those of the end of a task, when its examples are
chosen, and not of the update in which an example was seen; they are kept where an answer is, and of
a large vocabulary only the largest, with KL in the place of the squared distance.
"""

from typing import TypeVar

from forever.config.methods.ours import DerConfig, InterleavedConfig, MixReplayConfig
from forever.data.tasks import Task
from forever.methods.anchored import Anchored
from forever.replay.clock import ModelClock
from forever.training.learner import Learner
from forever.training.method import Card
from forever.training.steps import Steps

M = TypeVar("M", bound=InterleavedConfig)


class Interleaved(Anchored[M]):
    """Cross-entropy on the union of D_k and M_{<k}."""

    def steps(self, learner: Learner, task: Task) -> Steps:
        clock = ModelClock(self.config.day_steps, self.config.smoothing)
        for batch in learner.mixed_batches(task):
            # An event takes the pace before its first update, and so does an update here.
            record = yield self.step_on(learner, batch, self.regularizer.strength(clock.pace()))
            if not record.skipped:
                clock.advance(record.update_norm)


class MixReplay(Interleaved[MixReplayConfig]):
    """Memory in every batch."""

    card = Card(
        title="MixReplay",
        paper="as in FOREVER's table",
        memory="examples",
        extra="Every epoch also has the memory's examples.",
        uncertain="The memory is mixed in without oversampling, as in the lab's code.",
    )


class Der(Interleaved[DerConfig]):
    """Memory in every batch, held to the logits that were kept with it."""

    card = Card(
        title="DER++",
        paper="Buzzega et al. 2020",
        memory="examples and their logits",
        extra="One pass over a task's kept examples when it is over; a softmax's worth of work for "
        "each replayed token.",
        uncertain="alpha, and which logits to keep of a large vocabulary: the paper has images.",
    )
