"""What a checkpoint says of a run beside its tensors."""

from dataclasses import astuple, dataclass, field
from typing import Any

from forever.training.steps import StepRecord


@dataclass
class State:
    """How far a run is: state.json of a checkpoint, field by field.

    Attributes:
        stage: the stage that is or was trained last; -1 before the first.
        trained: whether it is trained to its end, importance and memory included.
        records: what happened in it so far, as lists of numbers; empty once it is trained.
        method: what the method carries, as JSON values.
        steps, events: lines of the journal; within a stage, those that stood there at its start,
            since the records write the others again.
        notes: what was found out about each trained stage.
        seconds: where the time went.
        data: the digests of the tasks.
    """

    stage: int = -1
    trained: bool = True
    records: list[Any] = field(default_factory=list)
    method: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    events: int = 0
    notes: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    data: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The content of state.json."""
        return dict(vars(self))

    def place(self) -> list[Any]:
        """Where in training this is; the same on every rank."""
        return [self.stage, self.trained, len(self.records)]

    def add(self, record: StepRecord) -> None:
        """Remember what an action of the current stage led to."""
        self.records.append(astuple(record))

    def past(self) -> list[StepRecord]:
        """What happened in the current stage."""
        return [StepRecord(*numbers) for numbers in self.records]
