"""FOREVER: forgetting-curve-inspired memory replay (arXiv 2601.03938).

Replay at Ebbinghaus days of model time, held to the end of the previous task with a strength that follows the pace of
learning. Followed: Algorithm 1. Where the paper is silent the field says so with the reason (docs/protocol.md).
The component ablation changes `clock`, `days` and `regularizer` and nothing else.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from forever.data.tasks import Task
from forever.errors import InputError, unknown
from forever.learner import Learner
from forever.methods.base import Card
from forever.methods.scheduled_replay import ScheduledReplay, ScheduledReplayConfig
from forever.replay.clock import CLOCKS, Clock
from forever.replay.regularizers import Regularizer, RegularizerName
from forever.replay.schedules import SCHEDULES, Days, days


class ForeverConfig(ScheduledReplayConfig):
    """Defaults are the paper's (implementation details) unless a reason is given."""

    name: Literal["forever"] = "forever"
    clock: Literal["model", "steps"] = "model"
    """What makes time pass: movement of the parameters (paper), or the number of updates (+STC)."""
    days: str | Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=0)] = "ebbinghaus"
    """A named schedule or explicit days in the order in which they are awaited."""
    smoothing: Annotated[float, Field(gt=0, le=1)] = 0.05
    """lambda of the moving average mu."""
    regularizer: RegularizerName = "intensity"
    """What beta and the weights of the penalty follow: nothing, the intensity of learning (paper), importance, both."""
    beta: Annotated[float, Field(ge=0)] = 1e-3
    """beta_base."""
    gamma: Annotated[float, Field(ge=0)] = 1.0
    """Not given in the paper; 1 makes s = clip(r, 0.5, 3), so that the bounds read as bounds on r (A5)."""
    min_strength: Annotated[float, Field(ge=0)] = 0.5
    """Lower bound of the strength s (paper)."""
    max_strength: Annotated[float, Field(ge=0)] = 3.0
    """Upper bound of s (paper)."""

    @field_validator("days")
    @classmethod
    def _known_schedule(cls, value: str | list[float]) -> str | list[float]:
        if isinstance(value, str) and value not in SCHEDULES:
            raise unknown("schedule", value, SCHEDULES)
        return value

    @model_validator(mode="after")
    def _ordered_bounds(self) -> "ForeverConfig":
        if self.min_strength > self.max_strength:
            raise InputError(f"min_strength={self.min_strength} is above max_strength={self.max_strength}")
        return self


class Forever(ScheduledReplay[ForeverConfig]):
    """Algorithm 1 with the paper's parts."""

    card = Card(
        title="FOREVER",
        paper="arXiv 2601.03938",
        memory="rows",
        extra="2 passes over memory an event and one at the end; a norm an update; one copy of the adapter",
        uncertain="gamma, and A1 to A31 of docs/protocol.md",
    )

    def __init__(self, config: ForeverConfig) -> None:
        bounds = config.min_strength, config.max_strength
        super().__init__(config, Regularizer.named(config.regularizer, config.beta, config.gamma, *bounds))

    def clock(self) -> Clock:
        return CLOCKS[self.config.clock](self.config.warmup_steps, self.config.smoothing)

    def days(self, learner: Learner, task: Task) -> Days:
        return days(self.config.days)
