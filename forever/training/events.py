"""What a method reports beside its updates: the lines of events.jsonl. Nothing here loads torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ReplayEvent:
    """One replay of the memory."""

    kind: Literal["replay", "consolidation"]
    task: str  # that is learned
    step: int  # updates of the current task before the event
    day: float | None  # the threshold that fired; None for consolidation
    days: float  # what the clock showed
    tau: float  # the same in units of the model's movement
    ratio: float  # r, the pace of learning
    strength: float  # s, the strength of the replay
    beta: float  # the weight of the penalty
    updates: int  # that the event took
    rows: int  # examples that were replayed
    loss_before: float  # cross-entropy of the event's first batch, dropout off
    loss_after: float  # the same right after the event


@dataclass(frozen=True)
class LossEvent:
    """A probe of the loss on earlier tasks, from which nothing is learned."""

    task: str  # that is learned
    step: int  # updates of the current task before it
    losses: dict[str, float]  # cross-entropy on the kept examples of each task, dropout off
    # How far the model has gone in this task: the sum of Delta, the distance from where the task
    # began, and on the kept examples of each task the mean KL from what it said there.
    tau: float
    distance: float
    kl: dict[str, float]
    kind: Literal["look"] = "look"
