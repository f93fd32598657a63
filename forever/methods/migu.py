"""MIGU: magnitude-based gradient updating (Du et al. 2024, Findings of EMNLP).

Different tasks light up different outputs of a linear layer. Only the rows whose outputs are largest on the current
batch are updated, so that the updates of different tasks collide less:

    grad(A)[k, :] *= M_A[k],  M_A keeps the r - floor(T r) rows of largest sum over tokens of |(A x)_k|
    grad(B)[j, :] *= M_B[j],  M_B keeps the o - floor(T o) rows of largest sum over tokens of |y_j|

Followed: the paper. Its released LoRA path does not run, so the text defines the method. From task 2 on (the code);
y is the layer's whole output, not the adapter's part (the code's activation_combined). A masked gradient does not
freeze a row: AdamW's momentum still moves it, as in the paper's own training.
"""

import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from forever.data.tasks import Task
from forever.learner import Learner
from forever.methods.base import Card, Method, MethodConfig, needs_lora
from forever.steps import Step, Steps

if TYPE_CHECKING:
    from torch import Tensor

    from forever.config import RunConfig
    from forever.models.lora import LoraBank


class MiguConfig(MethodConfig):
    """Sources: the paper, its appendices for T."""

    name: Literal["migu"] = "migu"
    replay: bool = True
    """Train on task and memory together, as MixReplay. FOREVER lists MIGU among the methods with memory, and its
    numbers there follow MixReplay's."""
    masked: Annotated[float, Field(ge=0, le=1)] | None = None
    """T, the fraction of rows that is masked. None is the paper's: 0.4 with replay, 0.7 without."""
    hard_mask: bool = False
    """Also undo what momentum does to masked rows; off in the paper, an ablation."""

    def check(self, run: "RunConfig") -> None:
        needs_lora(run)

    @property
    def fraction(self) -> float:
        """T."""
        return (0.4 if self.replay else 0.7) if self.masked is None else self.masked


class Migu(Method[MiguConfig]):
    """Gradient masks from the magnitude of outputs."""

    card = Card(
        title="MIGU",
        paper="Du et al. 2024",
        memory="rows",
        extra="sums of absolute outputs, and a sort of them a layer",
        uncertain="that FOREVER's row uses replay is inferred from its numbers",
    )

    def begin_task(self, learner: Learner, task: Task) -> None:
        import torch

        from forever.models import lora

        banks = dict(lora.banks(learner.backbone.model))
        sizes = [n for bank in banks.values() for n in (bank.A.shape[1], bank.B.shape[1])]
        self.sums = learner.parameters.flat.new_zeros(sum(sizes))  # of all layers, so that ranks add up in one call
        parts = iter(self.sums.split(sizes)) if sizes else iter(())
        self.magnitudes = {name: (next(parts), next(parts)) for name in banks}
        places = torch.arange(len(self.sums), device=self.sums.device).split(sizes) if sizes else ()
        # Layers of equal width are sorted together: one by one they are over a hundred sorts an update.
        self.alike = [torch.stack([part for part in places if len(part) == n]) for n in sorted({*sizes})]
        self.mask = learner.parameters.flat.new_ones(learner.parameters.flat.shape)
        self.row = torch.zeros_like(self.mask, dtype=torch.long)  # of each entry, in `sums`
        rows = learner.parameters.split(self.row)
        for name, a, b in zip(banks, places[::2], places[1::2], strict=True):
            rows[f"{name}.A"].copy_(a[:, None])
            rows[f"{name}.B"].copy_(b[:, None])
        for name, bank in banks.items():
            bank.observe = partial(self.observe, name) if learner.stage else None

    def steps(self, learner: Learner, task: Task) -> Steps:
        for batch in learner.batches(task.train + (learner.memory.examples if self.config.replay else ())):
            before = learner.parameters.snapshot() if self.config.hard_mask else None
            yield Step(batch)
            if before is not None:
                learner.parameters.load(learner.parameters.flat.detach().where(self.mask > 0, before))

    def observe(self, name: str, bank: "LoraBank", A_x: "Tensor", y: "Tensor") -> None:
        """Add up a forward pass: A x [B, T, R] and y [B, T, O], over tokens that are no padding."""
        assert bank.real is not None
        for total, values in zip(self.magnitudes[name], (A_x, y), strict=True):
            total += (values.detach().float().abs() * bank.real[..., None]).sum((0, 1))

    def on_gradients(self, learner: Learner) -> None:
        if not learner.stage:
            return
        learner.world.sum_(self.sums)
        kept = self.sums.clone()
        for places in self.alike:
            kept[places] = largest(self.sums[places], self.config.fraction)
        self.mask.copy_(kept[self.row])
        learner.parameters.grad.mul_(self.mask)
        self.sums.zero_()


def largest(values: "Tensor", masked: float) -> "Tensor":
    """1 for the n - floor(masked * n) largest of n values, [..., n], and 0 for the rest; of equal ones the first is
    larger."""
    keep = values.shape[-1] - math.floor(masked * values.shape[-1] + 1e-9)
    first = values.sort(dim=-1, descending=True, stable=True).indices[..., :keep]
    return values.new_zeros(values.shape).scatter_(-1, first, 1)
