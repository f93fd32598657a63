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

from forever.config.methods.baselines import RecurrentKifConfig
from forever.data.tasks import Task
from forever.methods.base import Card, Method
from forever.training.importance import above_quantile, track_movement
from forever.training.learner import Learner
from forever.training.steps import Step, Steps


class RecurrentKif(Method[RecurrentKifConfig]):
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

    def begin_task(self, learner: Learner, task: Task) -> None:
        if learner.memory:
            for name in ("inner_I", "inner_U", "outer_I", "outer_U"):
                self.tensors[name] = learner.parameters.snapshot().zero_()
            self.tensors["start"] = learner.parameters.snapshot()  # Theta_b
            self.tensors["middle"] = learner.parameters.snapshot()  # after the inner updates

    def steps(self, learner: Learner, task: Task) -> Steps:
        draws = learner.memory.draws(task.name, "outer")
        for t, batch in enumerate(learner.batches(task.train), start=1):
            yield Step(batch)
            if not learner.memory:
                continue
            self.track(learner, "inner")
            if t % self.config.inner_steps == 0:
                self.tensors["middle"].copy_(learner.parameters.flat.detach())
                for batch in islice(draws, self.config.outer_steps):
                    yield Step(batch, "replay")
                    self.track(learner, "outer")
                self.merge(learner)
                learner.log_task(merges=float(t // self.config.inner_steps))

    def track(self, learner: Learner, block: str) -> None:
        """Update a block's importance by the clipped gradient of the last update."""
        mean, spread = self.tensors[f"{block}_I"], self.tensors[f"{block}_U"]
        theta, gradient = learner.parameters.flat.detach(), learner.parameters.grad
        track_movement(mean, spread, theta, gradient, self.config.smoothing)

    def merge(self, learner: Learner) -> None:
        """Merge the two movements of a block, and begin the next block there."""
        tensors = self.tensors
        inner = above_quantile(tensors["inner_I"] * tensors["inner_U"], self.config.quantile)
        outer = above_quantile(tensors["outer_I"] * tensors["outer_U"], self.config.quantile)
        w_in = self.weights(inner, outer, side=0)
        w_out = self.weights(inner, outer, side=1)
        learner.parameters.merge(tensors["start"], tensors["middle"], w_in, w_out)
        tensors["start"].copy_(learner.parameters.flat.detach())
        # The inner statistics begin anew, the outer ones go on (the scripts' flags).
        tensors["inner_I"].zero_()
        tensors["inner_U"].zero_()

    def weights(self, inner: Tensor, outer: Tensor, side: int) -> Tensor:
        """Return w_in (side 0) or w_out (side 1) of every entry, from the two masks."""
        c, inner, outer = self.config, inner.float(), outer.float()
        return (
            c.both[side] * inner * outer
            + c.inner_only[side] * inner * (1 - outer)
            + c.outer_only[side] * (1 - inner) * outer
            + c.neither[side] * (1 - inner) * (1 - outer)
        )

    def end_task(self, learner: Learner, task: Task) -> None:
        self.tensors.clear()
