"""An MLflow store: its address, its experiments, and the runs that stand for folders.

Runs are found again by a tag with the identity of their folder (mlflow.json in it), so a folder can
be copied from a cluster and sent from elsewhere, and two runs of one configuration in two folders
stay two runs. Each point of a curve is sent once.
"""

import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from forever.errors import InputError
from forever.runs.directory import read_json, write_text

Point = tuple[str, float | None, int]
"""Key, value and step of a metric; no value is no point."""

_SQLITE = "sqlite:///"
_AT_ONCE = 1000  # metrics in one request: the server refuses more


def tracking_uri(choice: str | None = None) -> str:
    """`choice`, MLFLOW_TRACKING_URI, or a database in the working folder: the first of them that is
    given.

    A database gets an absolute path, since Ray's processes work elsewhere.
    """
    uri = choice or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}mlflow.db"
    if uri.startswith(_SQLITE):
        return _SQLITE + str(Path(uri.removeprefix(_SQLITE)).absolute())
    return uri


class Store:
    """A client that gives up after seconds. MLflow's own default lets a dead server hold up each
    call for minutes.

    Args:
        uri: see `tracking_uri`. User and password leave it, since MLflow prints it and puts it into
            its errors; MLflow finds them in the environment.
    """

    def __init__(self, uri: str) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        for chatty in ("alembic", "mlflow.store.db.utils", "mlflow.tracking.fluent"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        from mlflow import MlflowClient

        parts = urlsplit(uri)
        if parts.scheme in ("http", "https") and parts.username and parts.password:
            os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
            os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password)
            uri = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self.uri = uri
        self.client = MlflowClient(uri)

    def experiment(self, name: str) -> str:
        """The id of the experiment `name`, created if need be.

        Raises:
            InputError: it was deleted, which leaves its name taken.
        """
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return self.client.create_experiment(name, artifact_location=self._artifacts(name))
            except Exception:  # another process may have been faster; if not, this is a real error
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        if experiment.lifecycle_stage == "deleted":
            raise InputError(
                f"the MLflow experiment {name!r} was deleted; bring it back by "
                f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
            )
        return experiment.experiment_id

    def _artifacts(self, name: str) -> str | None:
        """Files go beside a local database; a server knows better, and otherwise MLflow would use
        the working folder."""
        if not self.uri.startswith(_SQLITE):
            return None
        folder = Path(self.uri.removeprefix(_SQLITE)).parent / "mlartifacts" / name
        return folder.absolute().as_uri()

    def run(self, experiment: str, folder: Path, name: str, tags: Mapping[str, str]) -> str:
        """The id of the run that stands for `folder`, created if need be."""
        path = folder / "mlflow.json"
        if not path.is_file():
            write_text(path, json.dumps({"id": uuid.uuid4().hex}) + "\n")
        mark = read_json(path)["id"]
        runs = self.client.search_runs([experiment], f"tags.`forever.id` = '{mark}'", max_results=1)
        if runs:
            return runs[0].info.run_id
        begun = int(folder.stat().st_ctime * 1000)
        tags = {"forever.id": mark, **tags}
        run = self.client.create_run(experiment, start_time=begun, tags=tags, run_name=name)
        return run.info.run_id

    def status(self, run: str) -> str:
        """RUNNING, FINISHED, FAILED or KILLED."""
        return self.client.get_run(run).info.status

    def open_children(self, experiment: str, parent: str) -> list[str]:
        """The names of the runs below `parent` that are shown as running."""
        children = f"tags.`mlflow.parentRunId` = '{parent}' and attributes.status = 'RUNNING'"
        runs = self.client.search_runs([experiment], children)
        return [run.data.tags["forever.run_key"] for run in runs]

    def describe(self, run: str, params: Mapping[str, object]) -> bool:
        """Set the parameters that are missing, since they are immutable; says whether any was."""
        from mlflow.entities import Param

        present = self.client.get_run(run).data.params
        missing: list[Param] = []
        for key, value in params.items():
            if key not in present:
                text = json.dumps(value) if isinstance(value, list) else str(value)
                missing.append(Param(key, text))
        if missing:
            self.client.log_batch(run, params=missing)
        return bool(missing)

    def last_steps(self, run: str) -> dict[str, int]:
        """The last step that the server has of each metric."""
        steps: dict[str, int] = {}
        for key in self.client.get_run(run).data.metrics:
            steps[key] = max(point.step for point in self.client.get_metric_history(run, key))
        return steps

    def send(self, run: str, points: Iterable[Point], sent: dict[str, int]) -> None:
        """Send the points that lie behind the last step that was `sent` of their metric."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        fresh: list[Metric] = []
        for name, value, step in points:
            key = allowed(name)
            if value is not None and step > sent.get(key, 0):
                fresh.append(Metric(key, value, now, step))
        for start in range(0, len(fresh), _AT_ONCE):
            self.client.log_batch(run, metrics=fresh[start : start + _AT_ONCE])
        for metric in fresh:
            sent[metric.key] = max(metric.step, sent.get(metric.key, 0))

    def send_datasets(
        self, run: str, source: str, digests: Mapping[str, str], rows: Mapping[str, object]
    ) -> None:
        """Say on which datasets a run was trained. The store knows one by name and digest, so
        repeating it does not add up.

        Args:
            source: where all of them come from.
            rows: how many each has.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        tags = [InputTag("mlflow.data.context", "train and test")]
        inputs: list[DatasetInput] = []
        for name, digest in digests.items():
            dataset = Dataset(name, digest, "local", source, profile=json.dumps(rows[name]))
            inputs.append(DatasetInput(dataset, tags))
        self.client.log_inputs(run, inputs)


def allowed(name: str) -> str:
    """The name of a metric with the characters that MLflow takes."""
    return re.sub(r"[^\w./: -]", "_", name)
