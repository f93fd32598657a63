"""How the runs of a sweep are spread: what a sweep and a search are told alike."""

from dataclasses import dataclass, field
from importlib.util import find_spec

from forever.errors import InputError
from forever.launch.local import Placement


@dataclass(frozen=True)
class Fleet:
    """How the runs of a sweep or a search are spread, and where they are told of.

    Attributes:
        concurrent: runs at once; None is as many as fit.
        workers: Ray Train workers of each run; 0 trains in the trial's own process, which starts
            ten seconds faster. None is 1 on a cluster that has GPUs, where a run must outlive a
            spot machine, and 0 elsewhere.
        placement: how each run uses its machine.
        mlflow: address of the MLflow store; None for no MLflow.
        retries: how often a failed trial is tried again at once, going on from its last checkpoint.
        retry_failed: whether trials that failed for good in an earlier call run again; they go on
            likewise.
        rounds: how often Tune itself is started if it breaks down.
        show: whether the live table is printed.
    """

    concurrent: int | None = None
    workers: int | None = None
    placement: Placement = Placement()
    mlflow: str | None = None
    retries: int = 1
    retry_failed: bool = False
    rounds: int = 3
    show: bool = True


@dataclass
class SweepOutcome:
    """What became of the trials of a sweep, by key.

    Attributes:
        finished: got their result now.
        failed: with one line each on the reason.
        skipped: had their result before.
        stopped: were given up early, by a search.
    """

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)


def require_ray() -> None:
    """Say what to install before anything that imports Ray is loaded.

    Raises:
        InputError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise InputError("Ray is not installed; pip install 'forever-cl[ray]'")
