"""What a sweep and a search share: how their runs are spread, and what became of them."""

from dataclasses import dataclass, field
from importlib.util import find_spec

from forever.errors import InputError
from forever.launch.local import Placement


@dataclass(frozen=True)
class Fleet:
    """How the runs of a sweep or a search are spread."""

    concurrent: int | None = None  # runs at once; None is as many as fit
    # Ray Train workers of each run; 0 trains in the trial's own process, which starts ten seconds
    # faster. None is 1 on a cluster with GPUs, where a run must outlive a spot machine, and else 0.
    workers: int | None = None
    placement: Placement = Placement()
    mlflow: str | None = None  # address of the MLflow store
    retries: int = 1  # of a failed trial, each from its last checkpoint
    retry_failed: bool = False  # trials that failed for good in an earlier call go on
    show: bool = True  # the live table


@dataclass
class SweepOutcome:
    """What became of the trials of a sweep, by key."""

    finished: list[str] = field(default_factory=list)  # now
    failed: dict[str, str] = field(default_factory=dict)  # with one line each on the reason
    skipped: list[str] = field(default_factory=list)  # had their result before
    stopped: list[str] = field(default_factory=list)  # were given up early, by a search

    def add(self, other: "SweepOutcome") -> None:
        """Put in the trials of another round."""
        self.finished += other.finished
        self.failed |= other.failed
        self.skipped += other.skipped
        self.stopped += other.stopped


def require_ray() -> None:
    """Raise InputError where Ray is not installed, before anything that imports it is loaded."""
    if find_spec("ray") is None:
        raise InputError("Ray is not installed; pip install 'forever-cl[ray]'")
