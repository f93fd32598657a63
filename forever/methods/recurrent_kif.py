"""Recurrent-KIF: recurrent knowledge identification and fusion (Feng et al. 2025, ACL).

Short inner blocks on the new task alternate with short outer blocks on the memory. After each pair,
the two movements are merged entry by entry, guided by masks of freshly estimated importance:

    I = |Theta g|,  I_ <- b1 I_ + (1 - b1) I,  U_ <- b2 U_ + (1 - b2) |I - I_|
    m = [I_ U_ above its q-quantile]
    Theta <- Theta_b + w_in Delta_in + w_out Delta_out
    (w_in, w_out) = (.4, .6) in both masks, (1, 0) and (0, 1) in one, (.5, .5) in none

The code follows WoodScene/Recurrent_KIF: trainer.py, utils/lora_importance_bilevel.py, where the
published results come from. The paper's formula, Theta_b + m_in Delta_in + m_out Delta_out, is
`both=[1,1] neither=[0,0]`. It does not follow the errors there: an outer optimiser at rate zero in
fp16, outer gradients divided by the accumulation count, and ranks that drift apart.
"""

from itertools import islice

from torch import Tensor

from forever.config.methods.ours import RecurrentKifConfig
from forever.data.tasks import Task
from forever.training.importance import above_quantile, track_movement
from forever.training.learner import Learner
from forever.training.method import C, Card, Method
from forever.training.steps import Step, Steps

STATISTICS = ("inner_I", "inner_U", "outer_I", "outer_U")  # of the inner and the outer block


class Merging(Method[C]):
    """Blocks of updates on the task and then on memory, whose movements are merged."""

    vectors = ("start", "middle")

    def begin_task(self, learner: Learner, task: Task) -> None:
        if learner.memory:
            self.tensors["start"] = learner.parameters.snapshot()  # Theta_b
            self.tensors["middle"] = learner.parameters.snapshot()  # before updates on memory

    def keep_middle(self, learner: Learner) -> None:
        """Note where the updates on memory begin."""
        self.tensors["middle"].copy_(learner.parameters.flat.detach())

    def merge(self, learner: Learner, w_in: Tensor | float, w_out: Tensor | float) -> None:
        """Set Theta to Theta_b + w_in Delta_in + w_out Delta_out, where the next block begins."""
        learner.parameters.merge(self.tensors["start"], self.tensors["middle"], w_in, w_out)
        self.tensors["start"].copy_(learner.parameters.flat.detach())
        if not self.tensors["start"].isfinite().all():
            raise learner.diverged("a merge gave weights that are not finite")

    def end_task(self, learner: Learner, task: Task) -> None:
        self.tensors.clear()


class RecurrentKif(Merging[RecurrentKifConfig]):
    """Bi-level training with merges under masks."""

    card = Card(
        title="Recurrent-KIF",
        paper="Feng et al. 2025",
        memory="examples",
        extra="The memory has half as many updates again (P/Q), and six vectors of the adapter's "
        "size are kept.",
        uncertain="Code and paper differ in merge and smoothing; the constants were tuned at batch "
        "8 (T5) and 64 (LLaMA).",
    )

    vectors = (*Merging.vectors, *STATISTICS)

    def begin_task(self, learner: Learner, task: Task) -> None:
        super().begin_task(learner, task)
        if learner.memory:
            for name in STATISTICS:
                self.tensors[name] = learner.parameters.snapshot().zero_()

    def steps(self, learner: Learner, task: Task) -> Steps:
        draws = learner.memory.draws(task.name, "outer")
        for t, batch in enumerate(learner.batches(task.train), start=1):
            record = yield Step(batch)
            if not learner.memory:
                continue
            if not record.skipped:
                self.track(learner, "inner")
            if t % self.config.inner_steps == 0:
                self.keep_middle(learner)
                for batch in islice(draws, self.config.outer_steps):
                    record = yield Step(batch, "replay")
                    if not record.skipped:
                        self.track(learner, "outer")
                w_in, w_out = self.weights()
                self.merge(learner, w_in, w_out)
                self.tensors["inner_I"].zero_()  # outer statistics continue (the scripts' flags)
                self.tensors["inner_U"].zero_()
                learner.log_task(merges=float(t // self.config.inner_steps))

    def track(self, learner: Learner, block: str) -> None:
        """Update a block's importance by the clipped gradient of the last update."""
        mean, spread = self.tensors[f"{block}_I"], self.tensors[f"{block}_U"]
        theta, gradient = learner.parameters.flat.detach(), learner.parameters.grad
        track_movement(mean, spread, theta, gradient, self.config.smoothing)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Return w_in and w_out of every entry, [N] each, from the masks of both blocks."""
        c, tensors = self.config, self.tensors
        inner = above_quantile(tensors["inner_I"] * tensors["inner_U"], c.quantile)
        outer = above_quantile(tensors["outer_I"] * tensors["outer_U"], c.quantile)
        # By inner mask, outer mask, and whether it is w_in or w_out.
        cases = tensors["start"].new_tensor([[c.neither, c.outer_only], [c.inner_only, c.both]])
        chosen = cases[inner.long(), outer.long()]
        return chosen[:, 0], chosen[:, 1]
