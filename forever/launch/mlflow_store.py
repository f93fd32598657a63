"""A run directory in MLflow: the directory is the truth; what the server lacks is sent, once.

A run is found again by a tag with the identity of its folder (mlflow.json in it). So a folder can
be copied from a cluster and sent from elsewhere, and one configuration in two folders is two runs.

| MLflow                    | comes from                                                          |
|---------------------------|---------------------------------------------------------------------|
| experiment                | the sweep's name; "forever" for a run of its own                    |
| parent run                | the sweep's folder                                                  |
| params                    | every dotted key of the configuration, `variant`                    |
| `acc/<task>`, `op`, `bwt` | predictions/, step = stage from 1                                   |
| `train/loss`, `clock/tau_days`, `replay/beta` | steps.jsonl, step = line from 1, thinned        |
| `final/...`, dataset inputs, artifacts | result.json                                            |
"""

import json
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from forever.config.overrides import flatten
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.format import as_csv
from forever.replay.times import day_seven
from forever.runs.directory import RunDirectory, read_json, read_lines, write_text
from forever.runs.environment import without_credentials
from forever.runs.progress import stage_scores
from forever.sweeps.sweep import MANIFEST, read_manifest

Point = tuple[str, float | None, int]  # key, value and step of a metric; no value is no point
_SQLITE = "sqlite:///"
_STATUS = {"failed": "FAILED", "stopped": "KILLED", "interrupted": "KILLED"}

# MLflow is loaded after this. By default a dead server would hold up each call for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")


def tracking_uri(choice: str | None = None) -> str:
    """Return `choice`, or MLFLOW_TRACKING_URI, or a database in the working folder.

    A database gets an absolute path, since Ray's processes work elsewhere.
    """
    uri = choice or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}mlflow.db"
    if uri.startswith(_SQLITE):
        return _SQLITE + str(Path(uri.removeprefix(_SQLITE)).absolute())
    return uri


class Store:
    """A client of the store at `uri`.

    User and password leave the address, since MLflow prints it; it finds them in the environment.
    """

    def __init__(self, uri: str | None) -> None:
        from mlflow import MlflowClient

        uri = tracking_uri(uri)
        parts = urlsplit(uri)
        if parts.scheme in ("http", "https") and parts.username and parts.password:
            os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
            os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password)
            uri = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self.uri = uri
        self.client = MlflowClient(uri)

    def experiment(self, name: str) -> str:
        """The id of the experiment `name`, created if need be; InputError if it was deleted."""
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            files: str | None = None  # a server knows its own place
            if self.uri.startswith(_SQLITE):  # MLflow would take the working folder
                database = Path(self.uri.removeprefix(_SQLITE))
                files = (database.parent / "mlartifacts" / name).as_uri()
            return self.client.create_experiment(name, artifact_location=files)
        if experiment.lifecycle_stage == "deleted":
            raise InputError(
                f"the MLflow experiment {name!r} was deleted; bring it back by "
                f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
            )
        return experiment.experiment_id

    def run(self, experiment: str, folder: Path, tags: Mapping[str, str]) -> Any:
        """MLflow's run that stands for `folder`, created if need be."""
        path = folder / "mlflow.json"
        if not path.is_file():
            write_text(path, json.dumps({"id": uuid.uuid4().hex}) + "\n")
        mark = read_json(path)["id"]
        runs = self.client.search_runs([experiment], f"tags.`forever.id` = '{mark}'", max_results=1)
        if runs:
            return runs[0]
        begun = int(folder.stat().st_ctime * 1000)
        tags = {"forever.id": mark, **tags}
        return self.client.create_run(experiment, begun, tags, run_name=folder.name)

    def sweep(self, folder: Path) -> Any:
        """The parent run of the sweep in `folder`."""
        name = read_manifest(folder)["name"]
        return self.run(self.experiment(name), folder, {"forever.sweep": name})


class Mirror:
    """The run directory `folder` and the MLflow run that shows it in the store at `uri`.

    If `over`, nobody trains it. After an MlflowException nothing is known of how much arrived:
    another mirror asks the server.
    """

    def __init__(self, folder: Path, uri: str | None, over: bool = False) -> None:
        from mlflow.entities import Param

        self.directory, self.store = RunDirectory(folder), Store(uri)
        client = self.store.client
        config = self.directory.read_config()
        run = self._find(config)
        self.run = run.info.run_id
        # This status is set when everything has arrived.
        self.complete = self.directory.result.is_file() and run.info.status == "FINISHED"
        if self.complete:
            return
        end = end_of(self.directory) if over else "running"
        client.update_run(self.run, _STATUS.get(end, "RUNNING"))
        params = flatten(config.identity())
        self.variant = run.data.tags.get("variant")  # in a sweep
        self.order = run.data.tags.get("order")
        if self.variant is not None:
            params["variant"] = self.variant
        missing = params.keys() - run.data.params.keys()  # the others are immutable
        batch = [Param(key, str(params[key])) for key in missing]
        client.log_batch(self.run, params=batch)
        client.log_artifact(self.run, str(self.directory.config))
        self.sent: dict[str, int] = {}  # the last step of each metric
        for key in run.data.metrics:
            history = client.get_metric_history(self.run, key)
            self.sent[key] = max(point.step for point in history)

    def _find(self, config: RunConfig) -> Any:
        """MLflow's run of the directory, below that of its sweep if it has one."""
        folder, store, order = self.directory.path, self.store, config.data.order
        tags = {"forever.run_key": folder.name, "method": config.method.name}
        tags |= {"seed": str(config.seed), "order": order if isinstance(order, str) else "custom"}
        revision = read_json(self.directory.environment).get("revision")
        if revision:
            tags["mlflow.source.git.commit"] = revision
        if (folder.parent / MANIFEST).is_file():
            for trial in read_manifest(folder.parent)["trials"]:
                if trial["key"] == folder.name:
                    parent = store.sweep(folder.parent).info
                    tags |= {"variant": trial["variant"], "order": trial["order"]}
                    tags["mlflow.parentRunId"] = parent.run_id
                    return store.run(parent.experiment_id, folder, tags)
        return store.run(store.experiment("forever"), folder, tags)

    def push(self) -> None:
        """Send what the server does not have yet."""
        from mlflow.entities import Metric

        if self.complete:
            return
        lines, result = read_lines(self.directory.steps), self.directory.finished()
        now = int(time.time() * 1000)
        fresh: list[Metric] = []
        for name, value, step in points_of(self.directory, lines, result):
            key = re.sub(r"[^\w./: -]", "_", name)  # what MLflow takes
            if value is not None and step > self.sent.get(key, 0):
                fresh.append(Metric(key, value, now, step))
        self.store.client.log_batch(self.run, metrics=fresh)
        for metric in fresh:
            self.sent[metric.key] = max(metric.step, self.sent.get(metric.key, 0))
        if result is not None:
            self._finish(result)

    def _finish(self, result: Mapping[str, Any]) -> None:
        """Send what a finished run shows, in files whose names are fixed, so that they replace."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        directory, run, client = self.directory, self.run, self.store.client
        source = json.dumps({"benchmark": result["benchmark"], "order": result["order"]})
        context = InputTag("mlflow.data.context", "train and test")
        inputs: list[DatasetInput] = []
        for task, digest in result["data"].items():
            profile = json.dumps(result["rows"][task])
            dataset = Dataset(task, digest, "local", source, profile=profile)
            inputs.append(DatasetInput(dataset, [context]))
        # The store knows a dataset by name and digest, so repeating it does not add up.
        client.log_inputs(run, inputs)
        client.log_artifact(run, str(directory.environment))
        client.log_artifact(run, str(directory.result))
        matrix = {key: result[key] for key in ("tasks", "stages", "matrix")}
        client.log_dict(run, matrix, "matrix.json")
        scored = zip(result["tasks"], result["matrix"], strict=True)
        rows = [[task, *scores] for task, scores in scored]
        client.log_text(run, as_csv(["task", *result["stages"]], rows), "matrix.csv")
        try:
            self._draw()
        except Exception as error:  # numbers matter more than pictures of them
            print(f"{directory.path}: no figures in MLflow: {first_line(error)}", file=sys.stderr)
        client.set_terminated(run, "FINISHED", int(directory.result.stat().st_mtime * 1000))
        self.complete = True

    def _draw(self) -> None:
        from forever.report.figures import png_of
        from forever.report.study import plain_run

        run = plain_run(self.directory.path)
        run.variant, run.order = self.variant or run.variant, self.order or run.order
        with TemporaryDirectory() as folder:
            for figure in ("matrix", "timeline"):
                path = Path(folder, f"{figure}.png")
                path.write_bytes(png_of(figure, run))
                self.store.client.log_artifact(self.run, str(path))


def points_of(
    directory: RunDirectory, lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None
) -> Iterator[Point]:
    """Yield the points of some updates, of the start of each replay, of each stage, of the run."""
    replay = None
    for number, line in enumerate(lines, 1):
        if line["kind"] == "task" and keeps(line["step"]):
            yield "train/loss", line["loss"], number
            yield "clock/tau_days", line.get("days"), number
        if (line["kind"], line["beta"]) != replay:
            yield "replay/beta", line["beta"], number
        replay = line["kind"], line["beta"]
    for stage, scores in enumerate(stage_scores(directory), 1):
        yield from ((key, value, stage) for key, value in scores.items())
    if result is not None:
        for key in ("op", "bwt", "fwt", "forgetting"):
            yield f"final/{key}", result[key], len(result["stages"])
        day_7 = day_seven([result])
        if day_7 and isfinite(day_7.update):
            yield "final/day_7", day_7.update, len(result["stages"])


def end_of(directory: RunDirectory) -> str:
    """How a run is over that nobody trains: finished, failed, stopped early, or interrupted."""
    if directory.finished() is not None:
        return "finished"
    return (directory.end_without_result() or {"state": "interrupted"})["state"]


def keeps(step: int) -> bool:
    """Whether update `step` of a task is shown: all up to 64, then 32 each time they double."""
    return step % 2 ** max(0, (step - 1).bit_length() - 6) == 0


def first_line(error: Exception) -> str:
    """What failed and why, without credentials."""
    # Credentials go first: the cut could leave a password without the @ that gives it away.
    lines = without_credentials(str(error)).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
