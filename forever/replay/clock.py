"""Time as a learner lives it (FOREVER, "Model-centric time" and Algorithm 1).

    Delta_t = ||Theta_t - Theta_{t-1}||_2   how far update t of the task moved the parameters
    tau_t   = sum_{i<=t} Delta_i            the time that has passed in this task
    day     = tau_S                         a model day: the distance of the first S updates
    mu_t    = (1-lambda) mu_{t-1} + lambda Delta_t, from mu_S = mu_0 = tau_S / S

Every update on the current task counts, those of the warm-up too, because Algorithm 1 sums from the
first update. Replay does not make the learner older (docs/protocol.md#clock-and-replay).
"""

import math
from abc import ABC, abstractmethod


class Clock(ABC):
    """The time since the current task began, and the pace at which the parameters move.

    `day_steps` is S (paper: 24), `smoothing` is lambda of the moving average mu (paper: 0.05).
    """

    def __init__(self, day_steps: int, smoothing: float) -> None:
        self.day_steps = day_steps
        self.smoothing = smoothing
        self.steps = 0
        self.tau = 0.0
        self.tau_day: float | None = None  # unknown until the warm-up is over
        self.mu: float | None = None
        self.mu0: float | None = None
        # The update after which day 7 came: of this day the paper prints it, 140 to 180.
        self.day_7: int | None = None

    def advance(self, update_norm: float) -> None:
        """Count one update of the current task, which moved the parameters by `update_norm`.

        One that was left out is none. FloatingPointError: time would never pass again.
        """
        if not math.isfinite(update_norm):
            raise FloatingPointError(f"an update of norm {update_norm} cannot be counted as time")
        self.steps += 1
        self.tau += update_norm
        if self.steps == self.day_steps:
            self.tau_day = self.tau
            self.mu = self.mu0 = self.tau / self.day_steps
        elif self.mu is not None:
            self.mu = (1 - self.smoothing) * self.mu + self.smoothing * update_norm
        if self.day_7 is None and self.reached(7.0):
            self.day_7 = self.steps

    @property
    @abstractmethod
    def days(self) -> float:
        """The days since the task began; 0 until the warm-up has fixed how long a day is."""

    @property
    def findings(self) -> dict[str, float | None]:
        """What only the task could tell; nothing on a clock of updates."""
        return {}

    def reached(self, day: float) -> bool:
        """Tell whether `day` has come, up to the rounding of a sum of steps, about 1e-13 here."""
        return self.tau_day is not None and self.days >= day * (1 - 1e-9)

    def pace(self) -> float:
        """Return r = mu / (mu_0 + eps), which falls below 1 once learning settles; 1 in warm-up."""
        if self.mu is None or self.mu0 is None:
            return 1.0
        return self.mu / (self.mu0 + 1e-12)


class ModelClock(Clock):
    """FOREVER's clock, on which a day is the distance of the first S updates."""

    @property
    def days(self) -> float:
        return self.tau / self.tau_day if self.tau_day else 0.0  # 0 if nothing moved, too

    @property
    def findings(self) -> dict[str, float | None]:
        return {"tau_day": self.tau_day, "day_7": self.day_7}


class StepClock(Clock):
    """A clock on which a day is S updates, however far they move (ablation +STC)."""

    @property
    def days(self) -> float:
        return self.steps / self.day_steps if self.tau_day is not None else 0.0


CLOCKS: dict[str, type[Clock]] = {"model": ModelClock, "steps": StepClock}
