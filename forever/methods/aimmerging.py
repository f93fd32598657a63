"""AIMMerging: adaptive iterative model merging (Feng et al. 2025, EMNLP).

As Recurrent-KIF, but with one weight for all entries and at moments that the training chooses: how fast the parameters
move (learning) sets the interval between merges, the loss on memory (forgetting) can bring one forward.

Followed: WoodScene/AimMerging: trainer.py, merge "version2". The paper smooths both signals in sliding windows whose
constants are not in the code. Not followed: its errors (outer gradients divided by the accumulation count, ranks that
drift apart); the memory loss is measured with dropout off.
"""

import math
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from forever.data.tasks import Task
from forever.errors import InputError
from forever.learner import Learner
from forever.methods.base import Card, Method, MethodConfig
from forever.steps import Probe, Reading, Step, Steps

if TYPE_CHECKING:
    from forever.config import RunConfig

Weight = Annotated[float, Field(ge=0, le=1)]
Weights = tuple[Weight, Weight]
Count = Annotated[int, Field(ge=1)]


class AimMergingConfig(MethodConfig):
    """Sources: src/finetune_ours.py and scripts; tuned there at batch 32."""

    name: Literal["aimmerging"] = "aimmerging"
    interval: Count = 8
    """S at the start: task updates between merges as planned."""
    outer_steps: Count = 8
    """P at the start: updates on memory at a merge; P follows S in proportion."""
    min_interval: Count = 2
    """Bounds of S."""
    max_interval: Count = 128
    """Bounds of S."""
    cold_merges: Annotated[int, Field(ge=0)] = 3
    """The interval is fixed up to the merge after these."""
    forgetting: Annotated[float, Field(gt=0)] = 2.0
    """phi: memory loss above this multiple of its calibrated mean counts as forgetting."""
    true_gap: bool = False
    """Lambda by the updates since the last merge; the code divides by S, though up to 2 S have passed."""
    learning_interval: Count = 70
    """The current task counts as important while S is at most this."""
    both: Weights = (0.5, 0.5)
    """(w_in, w_out) if past and present matter."""
    past: Weights = (0.4, 0.6)
    """If only the past matters: its loss passed the threshold more than once."""
    present: Weights = (0.6, 0.4)
    """If only the present matters: S is short."""
    neither: Weights = (0.5, 0.5)
    """If neither does."""

    def check(self, run: "RunConfig") -> None:
        if not self.min_interval <= self.interval <= self.max_interval:
            raise InputError(
                f"method aimmerging: interval={self.interval} is outside of min_interval={self.min_interval} and "
                f"max_interval={self.max_interval}; change one of them"
            )


class AimMerging(Method[AimMergingConfig]):
    """Merges of the task's and the memory's movement, when the signals ask for one."""

    card = Card(
        title="AIMMerging",
        paper="Feng et al. 2025",
        memory="rows",
        extra="a loss on memory every update, P / gap = 0.5 to 1 times as many updates again; two adapter copies",
        uncertain="windows and growth factors of the paper are not in the code; constants were tuned at batch 32",
    )

    def begin_task(self, learner: Learner, task: Task) -> None:
        if learner.memory:
            self.tensors["start"] = learner.parameters.snapshot()  # Theta_b
            self.tensors["middle"] = learner.parameters.snapshot()  # Theta before the updates on memory
            self.tensors["pace"] = learner.parameters.flat.new_zeros(())  # Lambda

    def steps(self, learner: Learner, task: Task) -> Steps:
        c = self.config
        probes, draws = learner.memory.draws(task.name, "probe"), learner.memory.draws(task.name, "outer")
        interval, planned = c.interval, c.interval  # S, and the update for which a merge is planned
        losses: list[float] = []  # H
        threshold, flags = math.inf, 0  # h*, f
        paces: list[float] = []  # Lambda of all merges
        merged = 0  # the update after which the last one was
        for t, batch in enumerate(learner.batches(task.train), start=1):
            yield Step(batch)
            if not learner.memory:
                continue
            loss = (yield Probe(next(probes))).loss
            if len(losses) <= 2 * interval // 3:  # calibrate on the first two thirds of an interval
                losses.append(loss)
                if len(losses) > 2 * interval // 3:
                    threshold = c.forgetting * sum(losses) / len(losses)
            elif loss >= threshold or t >= planned + interval:
                flags += 1
            if (t < planned or flags < 1) and flags < 3:
                continue
            self.tensors["middle"].copy_(learner.parameters.flat.detach())
            moved = (self.tensors["middle"] - self.tensors["start"]).abs().sum()
            # Read from `tensors`: a resumed run comes here before its weights are put back, but reads after that.
            self.tensors["pace"].copy_(moved / (t - merged if c.true_gap else interval))
            paces.append((yield Reading(self.tensors["pace"])).value)
            for batch in islice(draws, max(1, c.outer_steps * interval // c.interval)):
                yield Step(batch, "replay")
            self.merge(learner, self.weights(forgetting=flags > 1, learning=interval <= c.learning_interval))
            learner.note(merges=float(len(paces)))
            interval, merged = self.next_interval(interval, paces), t
            planned, losses, threshold, flags = t + interval, [], math.inf, 0

    def weights(self, forgetting: bool, learning: bool) -> Weights:
        """(w_in, w_out) of a merge."""
        c = self.config
        return (c.both if learning else c.past) if forgetting else (c.present if learning else c.neither)

    def merge(self, learner: Learner, weights: Weights) -> None:
        """Theta <- Theta_b + w_in Delta_in + w_out Delta_out, where the next block begins."""
        learner.parameters.merge(self.tensors["start"], self.tensors["middle"], *weights)
        self.tensors["start"].copy_(learner.parameters.flat.detach())

    def next_interval(self, interval: int, paces: list[float]) -> int:
        """S after a merge: shorter while the parameters speed up, longer while they slow down."""
        c = self.config
        if len(paces) <= c.cold_merges + 1:
            return interval
        before, now = paces[-2:]
        if now >= before:
            shorter = max(c.min_interval, int(interval * before / now)) if now else interval
            return max(c.min_interval, shorter // 2) if shorter >= 64 else shorter
        growth = (before / now if now else math.inf) + (1.0 if interval < 64 else 0.5)
        return int(min(c.max_interval, interval * growth))

    def end_task(self, learner: Learner, task: Task) -> None:
        self.tensors.clear()
