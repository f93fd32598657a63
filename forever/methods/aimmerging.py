"""AIMMerging: adaptive iterative model merging (Feng et al. 2025, EMNLP).

The method merges as Recurrent-KIF does, but with one weight for all entries and at moments that the
training chooses. How fast the parameters move (learning) sets the interval between merges, and the
loss on memory (forgetting) can bring a merge forward.

The code follows WoodScene/AimMerging: trainer.py, merge "version2". The paper smooths both signals
in sliding windows whose constants are not in that code. Not followed are its errors (as in
Recurrent-KIF), and dropout while the memory loss is measured.
"""

import math
from itertools import islice

from torch import Size

from forever.config.methods.base import Weights
from forever.config.methods.ours import AimMergingConfig
from forever.data.tasks import Task
from forever.methods.recurrent_kif import Merging
from forever.training.learner import Learner
from forever.training.method import Card
from forever.training.steps import Probe, Reading, Step, Steps


class AimMerging(Merging[AimMergingConfig]):
    """Merge the movements on task and memory when the signals ask for it."""

    card = Card(
        title="AIMMerging",
        paper="Feng et al. 2025",
        memory="examples",
        extra="Each update also measures a loss on memory, the memory has half as many updates "
        "again or as many, and two copies of the adapter are kept.",
        uncertain="The paper's windows and growth factors; the constants were tuned at batch 32.",
    )

    def begin_task(self, learner: Learner, task: Task) -> None:
        super().begin_task(learner, task)
        self.tensors["pace"] = learner.parameters.flat.new_zeros(())  # Lambda

    def carried(self, learner: Learner, stage: int, trained: bool) -> dict[str, Size]:
        return super().carried(learner, stage, trained) | {"pace": Size()}

    def steps(self, learner: Learner, task: Task) -> Steps:
        c = self.config
        # Two random streams over the memory: one for measuring, one for training.
        probes = learner.memory.draws(task.name, "probe")
        draws = learner.memory.draws(task.name, "outer")
        interval, planned = c.interval, c.interval  # S, and the update for which a merge is planned
        losses: list[float] = []  # H
        threshold, flags = math.inf, 0  # h*, f
        paces: list[float] = []  # Lambda of all merges
        for t, batch in enumerate(learner.batches(task.train), start=1):
            record = yield Step(batch)
            if record.skipped or not learner.memory:
                continue
            loss = (yield Probe(next(probes))).loss
            # Signal of forgetting: a loss above h*, which the first two thirds of S calibrate.
            if len(losses) <= 2 * interval // 3:
                losses.append(loss)
                if len(losses) > 2 * interval // 3:
                    threshold = c.forgetting * sum(losses) / len(losses)
            elif loss >= threshold or t >= planned + interval:
                flags += 1
            if (t < planned or flags < 1) and flags < 3:
                continue
            # Signal of learning: the distance that the parameters moved since the last merge.
            self.keep_middle(learner)
            moved = (self.tensors["middle"] - self.tensors["start"]).abs().sum()
            self.tensors["pace"].copy_(moved / interval)
            paces.append((yield Reading(self.tensors["pace"])).value)
            for batch in islice(draws, max(1, c.outer_steps * interval // c.interval)):
                yield Step(batch, "replay")
            w_in, w_out = self.weights(flags > 1, interval <= c.learning_interval)
            self.merge(learner, w_in, w_out)
            learner.log_task(merges=float(len(paces)))
            interval = self.next_interval(interval, paces)
            planned, losses, threshold, flags = t + interval, [], math.inf, 0

    def weights(self, forgetting: bool, learning: bool) -> Weights:
        """Return (w_in, w_out) of a merge, by whether the past and the present matter."""
        c = self.config
        cases = {(True, True): c.both, (True, False): c.past, (False, True): c.present}
        return cases.get((forgetting, learning), c.neither)

    def next_interval(self, interval: int, paces: list[float]) -> int:
        """Return S after a merge: shorter if the parameters speed up, longer if they slow down."""
        c = self.config
        if len(paces) <= c.cold_merges + 1:
            return interval
        previous, current = paces[-2:]
        if current >= previous:
            if current:
                interval = max(c.min_interval, int(interval * previous / current))
            return max(c.min_interval, interval // 2) if interval >= 64 else interval
        if not current:
            return c.max_interval
        growth = previous / current + (1.0 if interval < 64 else 0.5)
        return int(min(c.max_interval, interval * growth))
