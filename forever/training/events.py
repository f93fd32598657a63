"""What a method reports beside its updates: the lines of events.jsonl. Nothing here loads torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ReplayEvent:
    """One replay of the memory.

    Attributes:
        step: number of updates of the current task before the event.
        day: the threshold that fired; None for consolidation.
        days, tau: what the clock showed.
        ratio: r, the pace of learning.
        strength: s, the strength of the replay.
        beta: the weight of the penalty.
        updates: the number of updates that the event took.
        rows: the number of examples that were replayed.
        loss_before, loss_after: the cross-entropy of the event's first batch on either side of the
            event, dropout off.
    """

    kind: Literal["replay", "consolidation"]
    task: str
    step: int
    day: float | None
    days: float
    tau: float
    ratio: float
    strength: float
    beta: float
    updates: int
    rows: int
    loss_before: float
    loss_after: float


@dataclass(frozen=True)
class LossEvent:
    """A look at the loss on earlier tasks, from which nothing is learned.

    Attributes:
        step: number of updates of the current task before it.
        losses: the cross-entropy on the kept examples of each task, dropout off.
    """

    task: str
    step: int
    losses: dict[str, float]
    kind: Literal["look"] = "look"
