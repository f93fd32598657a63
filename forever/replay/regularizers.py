"""How strongly a replay is held to the end of the previous task (FOREVER, "Intensity-aware
regularisation").

    L_replay = CE + beta * sum_j w_j (Theta_j - Theta*_j)^2
    beta     = beta_base * s,  s = clip(1 + gamma (r - 1), s_min, s_max),  r = mu / mu_0

`intensity` is the paper's regulariser (IAR): w = 1, and beta follows the pace of learning.
`importance` (PIR) keeps beta = beta_base and weighs each parameter by its Fisher information.
`intensity_importance` does both, and `none` replays with CE alone. Two hold the answers in the
place of the parameters, each on the replayed examples, and keep beta = beta_base:

    kl       beta * KL(p* || p), p* from the model at the end of the previous task
    logits   beta * mean (z - z*)^2, z* from the model at the end of the example's own task (DER)
"""

from dataclasses import dataclass
from typing import Literal

RegularizerName = Literal["none", "intensity", "importance", "intensity_importance", "kl", "logits"]
PenaltyScale = Literal["update", "event", "batch"]


@dataclass(frozen=True)
class Regularizer:
    """One of the regularisers, a function of the pace r."""

    name: RegularizerName
    beta: float = 0.0  # beta_base (paper: 1e-3)
    gamma: float = 0.0  # how strongly beta follows the pace
    low: float = 1.0  # s_min (paper: 0.5)
    high: float = 1.0  # s_max (paper: 3.0)

    @property
    def weighted(self) -> bool:
        """Whether w is the Fisher information of the previous tasks; else it is 1."""
        return "importance" in self.name

    @property
    def holds_answers(self) -> bool:
        """Whether it holds the answers to replayed examples, and not the parameters."""
        return self.name in ("kl", "logits")

    def factor(self, pace: float) -> float:
        """Return s, the factor on beta_base at pace r; it is 1 if gamma is 0."""
        if self.gamma == 0 or "intensity" not in self.name:
            return 1.0
        return min(max(1 + self.gamma * (pace - 1), self.low), self.high)

    def strength(self, pace: float) -> float:
        """Return beta at pace r. A replay takes it once, before its first update."""
        return 0.0 if self.name == "none" else self.beta * self.factor(pace)


def scaled(beta: float, scale: PenaltyScale, replayed: int, batch_size: int, updates: int) -> float:
    """Return the part of beta that an update on memory has.

    `update` is the paper's text: each update has all of it, so an event pulls the harder the more
    is kept. `event` divides it by the event's updates. `batch` goes by the replayed examples, as
    shares of a full batch: its sum over a task is beta times budget over batch size, for events as
    for replay that is mixed into the task's batches.
    """
    if scale == "event":
        return beta / updates
    return beta * replayed / batch_size if scale == "batch" else beta
