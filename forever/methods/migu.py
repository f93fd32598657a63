"""MIGU: magnitude-based gradient updating (Du et al. 2024, Findings of EMNLP).

Different tasks light up different outputs of a linear layer. Only the matrix rows whose outputs are
largest on the current batch are updated, so that the updates of different tasks collide less:

    grad(A)[k, :] *= M_A[k],  M_A keeps the r - floor(T r) rows of largest sum_tokens |(A x)_k|
    grad(B)[j, :] *= M_B[j],  M_B keeps the o - floor(T o) rows of largest sum_tokens |y_j|

The text of the paper defines the method, because its released LoRA path does not run. From the code
come two things: masks begin with the second task, and y is the layer's whole output, not the
adapter's part (activation_combined). A masked gradient does not freeze a row: AdamW's momentum
still moves it, as in the paper's own training.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from forever.config.methods.ours import MiguConfig
from forever.config.run import RunConfig
from forever.data.tasks import Task
from forever.models import lora
from forever.models.lora import LoraBank
from forever.training.learner import Learner
from forever.training.method import Card, Method
from forever.training.steps import Step, Steps


class Migu(Method[MiguConfig]):
    """Fine-tuning under gradient masks, which follow the magnitude of outputs."""

    card = Card(
        title="MIGU",
        paper="Du et al. 2024",
        memory="examples",
        extra="Each update sums absolute outputs and sorts the sums of each layer.",
        uncertain="That FOREVER's MIGU replays is inferred from its numbers.",
    )

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        lora.adapt(model, config.model, config.seed)  # a bank can be observed

    def begin_task(self, learner: Learner, task: Task) -> None:
        banks = dict(lora.banks(learner.backbone.model))
        heights: list[int] = []
        for bank in banks.values():
            heights += [bank.A.shape[1], bank.B.shape[1]]
        # The sums of all layers lie in one vector, so that ranks add them up in one call.
        self.sums = learner.parameters.flat.new_zeros(sum(heights))
        sums = self.sums.split(heights)
        places = torch.arange(len(self.sums), device=self.sums.device).split(heights)
        # For each entry of a matrix, the place of its row in `sums`.
        self.row = torch.zeros_like(learner.parameters.flat, dtype=torch.long)
        rows = learner.parameters.split(self.row)
        for i, (name, bank) in enumerate(banks.items()):
            rows[f"{name}.A"].copy_(places[2 * i][:, None])
            rows[f"{name}.B"].copy_(places[2 * i + 1][:, None])
            observe = partial(self.observe, sums[2 * i : 2 * i + 2])
            bank.observe = observe if learner.stage else None
        # Matrices of equal height are sorted together; alone, there would be over a hundred sorts
        # in each update.
        self.alike: list[Tensor] = []
        for height in sorted({*heights}):
            self.alike.append(torch.stack([part for part in places if len(part) == height]))

    def steps(self, learner: Learner, task: Task) -> Steps:
        replay = self.config.replay
        for batch in learner.mixed_batches(task) if replay else learner.batches(task.train):
            yield Step(batch)

    def begin_passes(self, learner: Learner) -> None:
        self.sums.zero_()

    def observe(self, sums: tuple[Tensor, ...], bank: LoraBank, A_x: Tensor, y: Tensor) -> None:
        """Add a forward pass to the sums: A x [B, T, R] and y [B, T, O].

        A token counts as often as examples share it, and padding not at all.
        """
        assert bank.counts is not None
        for total, values in zip(sums, (A_x, y), strict=True):
            total += (values.detach().float().abs() * bank.counts[..., None]).sum((0, 1))

    def on_gradients(self, learner: Learner) -> None:
        if not learner.stage:
            return
        learner.world.sum_(self.sums)
        self.kept = torch.zeros_like(self.sums)
        for places in self.alike:
            self.kept[places] = largest(self.sums[places], self.config.fraction)
        learner.parameters.grad.mul_(self.kept[self.row])


def largest(values: Tensor, masked: float) -> Tensor:
    """Mark the n - floor(masked * n) largest of n values, [..., n], with 1 and the rest with 0.

    Of equal values the first counts as larger.
    """
    keep = values.shape[-1] - math.floor(masked * values.shape[-1] + 1e-9)
    first = values.sort(dim=-1, descending=True, stable=True).indices[..., :keep]
    return values.new_zeros(values.shape).scatter_(-1, first, 1)
