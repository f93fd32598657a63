"""What tests read from a store of MLflow."""

from typing import Any


def client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(uri)


def runs(uri: str) -> list[Any]:
    """All runs of a store."""
    experiments = [entry.experiment_id for entry in client(uri).search_experiments()]
    return client(uri).search_runs(experiments)


def by_name(uri: str) -> dict[str, Any]:
    return {run.info.run_name: run for run in runs(uri)}


def histories(uri: str, run: Any) -> dict[str, list[tuple[int, float]]]:
    """The points of each metric of a run, also those that came twice."""
    found: dict[str, list[tuple[int, float]]] = {}
    for key in run.data.metrics:
        points = client(uri).get_metric_history(run.info.run_id, key)
        found[key] = sorted((point.step, point.value) for point in points)
    return found


def artifacts(uri: str, run: Any) -> set[str]:
    return {file.path for file in client(uri).list_artifacts(run.info.run_id)}
