"""How the runs of a sweep are spread: what a sweep and a search are told alike."""

from dataclasses import dataclass

from forever.launch.local import Placement


@dataclass(frozen=True)
class Fleet:
    """How the runs of a sweep or a search are spread, and where they are told of.

    Attributes:
        concurrent: runs at once; None is as many as fit.
        workers: Ray Train workers of each run; 0 trains in the trial's own process, which starts
        ten seconds faster.
            None is 1 on a cluster that has GPUs, where a run must outlive a spot machine, and 0
            elsewhere.
        placement: how each run uses its machine.
        mlflow: URI of the store; None for no MLflow.
        retries: how often a failed trial is tried again at once, going on from its last checkpoint.
        retry_failed: also run the trials that failed for good in an earlier call; they go on
        likewise.
        rounds: how often Tune itself is started again if it breaks down.
        show: print the live table.
    """

    concurrent: int | None = None
    workers: int | None = None
    placement: Placement = Placement()
    mlflow: str | None = None
    retries: int = 1
    retry_failed: bool = False
    rounds: int = 3
    show: bool = True
