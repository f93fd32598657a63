"""O-LoRA: orthogonal low-rank adapters (Wang et al. 2023, Findings of EMNLP).

Every task has an adapter of its own. Earlier adapters are frozen, and the rows of the new A are
pushed to be orthogonal to all earlier rows, so that the new update acts on input directions which
the old tasks did not use. At test all adapters are summed.

    L = CE + l1 * sum_m |A_old,m A_t,m^T|_1 + l2 * sum_m (||A_t,m||_F + ||B_t,m||_F)

The code follows cmnfriend/O-LoRA: src/uie_trainer_lora.py, which sums absolute values over LoRA's
A; the published l1 belongs to that form, although the paper writes squares. Not followed are an l1
for each task, which is tuned to one order, and a prefix that names the dataset in every prompt.
"""

from torch import Tensor, nn

from forever.config.methods.ours import OLoraConfig
from forever.config.run import RunConfig
from forever.data.tasks import Task
from forever.models import lora
from forever.training.learner import Learner
from forever.training.method import Card, Method
from forever.training.steps import Forward


class OLora(Method[OLoraConfig]):
    """One adapter for each task, in a subspace of its own."""

    card = Card(
        title="O-LoRA",
        paper="Wang et al. 2023",
        extra="Each layer has a frozen branch of rank (t-1) r and one product of that with A.",
        uncertain="No paper that we read uses l1 = 0.5 with 10 epochs and 15 tasks.",
    )

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        lora.adapt(model, config.model, config.seed)
        for name, bank in lora.banks(model):
            self.config.check_width(config, tasks, bank.A.shape[-1], name)

    def begin_task(self, learner: Learner, task: Task) -> None:
        if learner.stage:
            lora.freeze(learner.backbone.model, learner.config.seed)

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        c, loss = self.config, forward.cross_entropy
        for _, bank in lora.banks(learner.backbone.model):
            overlap = bank.frozen_A.flatten(0, 1) @ bank.A[0].T  # [(t-1) R, R]
            overlap = overlap.abs() if c.orth_norm == "l1" else overlap.square()
            loss = loss + forward.share * c.orthogonality * overlap.sum()
            if c.norm:
                loss = loss + forward.share * c.norm * (bank.A.norm() + bank.B.norm())
        return loss
