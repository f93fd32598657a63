"""AIMMerging: adaptive iterative model merging (Feng et al. 2025, EMNLP).

As Recurrent-KIF, but with one weight for all entries and at moments that the training chooses: how
fast the parameters move (learning) sets the interval between merges, the loss on memory
(forgetting) can bring one forward.

Followed: WoodScene/AimMerging: trainer.py, merge "version2". The paper smooths both signals in
sliding windows whose constants are not in the code. Not followed: its errors (outer gradients
divided by the accumulation count, ranks that drift apart); the memory loss is measured with dropout
off.
"""

import math
from itertools import islice
from typing import Annotated

from pydantic import Field

from forever.config.methods.baselines import AimMergingConfig
from forever.data.tasks import Task
from forever.methods.base import Card, Method
from forever.training.learner import Learner
from forever.training.steps import Probe, Reading, Step, Steps

Weight = Annotated[float, Field(ge=0, le=1)]
Weights = tuple[Weight, Weight]
Count = Annotated[int, Field(ge=1)]


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
            # Theta before the updates on memory.
            self.tensors["middle"] = learner.parameters.snapshot()
            self.tensors["pace"] = learner.parameters.flat.new_zeros(())  # Lambda

    def steps(self, learner: Learner, task: Task) -> Steps:
        c = self.config
        probes, draws = (
            learner.memory.draws(task.name, "probe"),
            learner.memory.draws(task.name, "outer"),
        )
        interval, planned = c.interval, c.interval  # S, and the update for which a merge is planned
        losses: list[float] = []  # H
        threshold, flags = math.inf, 0  # h*, f
        paces: list[float] = []  # Lambda of all merges
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
            # Read from `tensors`: a resumed run comes here before its weights are put back, but
            # reads after that.
            self.tensors["pace"].copy_(moved / interval)
            paces.append((yield Reading(self.tensors["pace"])).value)
            for batch in islice(draws, max(1, c.outer_steps * interval // c.interval)):
                yield Step(batch, "replay")
            self.merge(
                learner,
                self.weights(forgetting=flags > 1, learning=interval <= c.learning_interval),
            )
            learner.log_task(merges=float(len(paces)))
            interval = self.next_interval(interval, paces)
            planned, losses, threshold, flags = t + interval, [], math.inf, 0

    def weights(self, forgetting: bool, learning: bool) -> Weights:
        """(w_in, w_out) of a merge."""
        c = self.config
        if forgetting:
            return c.both if learning else c.past
        return c.present if learning else c.neither

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
