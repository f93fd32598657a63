"""What tests read from a store of MLflow."""

import time
from collections.abc import Callable
from typing import Any

import pytest

# MLflow uses deprecated parts of its dependencies, and leaves database connections to the
# collector.
MLFLOW_WARNS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(uri)


def runs(uri: str) -> list[Any]:
    """All runs of a store."""
    experiments = [entry.experiment_id for entry in client(uri).search_experiments()]
    return client(uri).search_runs(experiments)


def histories(uri: str, run: Any) -> dict[str, list[tuple[int, float]]]:
    """The points of each metric of a run, also those that came twice."""
    found: dict[str, list[tuple[int, float]]] = {}
    for key in run.data.metrics:
        points = client(uri).get_metric_history(run.info.run_id, key)
        found[key] = sorted((point.step, point.value) for point in points)
    return found


def artifacts(uri: str, run: Any) -> set[str]:
    return {file.path for file in client(uri).list_artifacts(run.info.run_id)}


def wait_until(happened: Callable[[], bool], within_s: float = 60) -> None:
    give_up = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.05)
