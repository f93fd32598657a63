"""How strongly a replay is held to the end of the previous task (FOREVER, "Intensity-aware
regularisation").

    L_replay = CE + beta * sum_j w_j (Theta_j - Theta*_j)^2
    beta     = beta_base * s,  s = clip(1 + gamma (r - 1), s_min, s_max),  r = mu / mu_0

`intensity` is the paper's (IAR): w = 1, beta from the pace of learning. `importance` (PIR) keeps
beta = beta_base and weighs each parameter by its Fisher information. `intensity_importance` does
both, `none` replays with CE alone.
"""

from dataclasses import dataclass
from typing import Literal

RegularizerName = Literal["none", "intensity", "importance", "intensity_importance"]


@dataclass(frozen=True)
class Regularizer:
    """The strength of one replay as a function of the pace r, and whether parameters are weighed by
    importance.

    Args:
        beta: beta_base (paper: 1e-3); 0 takes the term out.
        gamma: how strongly beta follows the pace; 0 keeps it at beta_base.
        low, high: bounds of the factor s (paper: 0.5 and 3.0).
        weighted: whether w is the Fisher information of the previous tasks, else 1.
    """

    beta: float
    gamma: float
    low: float
    high: float
    weighted: bool

    @classmethod
    def named(
        cls, name: RegularizerName, beta: float, gamma: float, low: float, high: float
    ) -> "Regularizer":
        """One of the four regularisers of the component ablation."""
        return cls(
            beta=0.0 if name == "none" else beta,
            gamma=gamma if "intensity" in name else 0.0,
            low=low,
            high=high,
            weighted="importance" in name,
        )

    def factor(self, pace: float) -> float:
        """s: the factor on beta_base at pace r; always 1 if beta does not follow the pace (gamma =
        0)."""
        if self.gamma == 0:
            return 1.0
        return min(max(1 + self.gamma * (pace - 1), self.low), self.high)

    def strength(self, pace: float) -> float:
        """beta at pace r; frozen for a whole replay (docs/protocol.md, A10)."""
        return self.beta * self.factor(pace)
