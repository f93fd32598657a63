"""An MLflow store: its address, its experiments, and the run that shows a run directory.

Runs are found again by a tag with the identity of their folder (mlflow.json in it), so a folder can
be copied from a cluster and sent from elsewhere, and two runs of one configuration in two folders
stay two runs. The directory is the truth; what the server lacks of it is sent, each point once.

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
import logging
import os
import re
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from forever.config.overrides import flatten
from forever.errors import InputError
from forever.format import as_csv
from forever.runs.directory import RunDirectory, read_json, read_lines, write_text
from forever.runs.environment import without_credentials
from forever.runs.progress import stage_scores
from forever.sweeps.sweep import MANIFEST, read_manifest

Point = tuple[str, float | None, int]
"""Key, value and step of a metric; no value is no point."""

SINGLE_RUNS = "forever"
SQLITE = "sqlite:///"
_AT_ONCE = 1000  # metrics in one request: the server refuses more


class Store:
    """A client of the store at `uri` that gives up after seconds.

    MLflow's own default lets a dead server hold up each call for minutes.

    User and password leave the address, since MLflow prints it and puts it into its errors; it
    finds them in the environment.
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
            # Files go beside a local database, for which MLflow would use the working folder; a
            # server knows its own place.
            files: str | None = None
            if self.uri.startswith(SQLITE):
                database = Path(self.uri.removeprefix(SQLITE)).absolute()
                files = (database.parent / "mlartifacts" / name).as_uri()
            try:
                return self.client.create_experiment(name, artifact_location=files)
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
            key = re.sub(r"[^\w./: -]", "_", name)  # what MLflow takes
            if value is not None and step > sent.get(key, 0):
                fresh.append(Metric(key, value, now, step))
        for start in range(0, len(fresh), _AT_ONCE):
            self.client.log_batch(run, metrics=fresh[start : start + _AT_ONCE])
        for metric in fresh:
            sent[metric.key] = max(metric.step, sent.get(metric.key, 0))


class Mirror:
    """The run directory `folder` and the MLflow run that shows it in the store at `uri`."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.directory = RunDirectory(folder)
        self.uri = uri
        self._store: Store | None = None
        self._run = ""
        self._sent: dict[str, int] = {}

    def push(self, unfinished: str = "RUNNING") -> None:
        """Send what the server does not have yet.

        Args:
            unfinished: the status to show if the run is not over.

        Raises:
            InputError, MlflowException: nothing is known of how much arrived; the next call asks
                the server.
        """
        try:
            self._store = store = self._store or Store(self.uri)
            self._run = run = self._run or self._open(store)
            status = store.client.get_run(run).info.status
            result = self.directory.finished()
            if status == "FINISHED" and result is not None:
                return  # this status is set when everything has arrived
            lines = read_lines(self.directory.steps)
            store.send(run, points_of(self.directory, lines, result), self._sent)
            if result is not None:
                self._finish(store, result, lines)
            elif status != unfinished:
                store.client.update_run(run, unfinished)
        except BaseException:
            self._run = ""
            raise

    def _open(self, store: Store) -> str:
        """Find or create the run, and describe it where it is not described yet."""
        folder, config = self.directory.path, self.directory.read_config()
        experiment, tags = "", {"method": config.method.name, "seed": str(config.seed)}
        order = config.data.order
        tags["order"] = order if isinstance(order, str) else "custom"
        params = flatten(config.identity())
        listed = None
        if (folder.parent / MANIFEST).is_file():
            trials = {trial["key"]: trial for trial in read_manifest(folder.parent)["trials"]}
            listed = trials.get(folder.name)
        # A fork is not the run of its configuration.
        named_by_folder = listed is not None or self.directory.fork.is_file()
        name = folder.name if named_by_folder else config.key()
        if listed is None:
            experiment = store.experiment(SINGLE_RUNS)
        else:
            experiment, parent = sweep_run(store, folder.parent)
            tags |= {"mlflow.parentRunId": parent}
            tags |= {"variant": listed["variant"], "order": listed["order"]}
            params["variant"] = listed["variant"]
        if self.directory.environment.is_file():
            revision = read_json(self.directory.environment).get("revision")
            if revision:
                tags |= {"revision": revision, "mlflow.source.git.commit": revision}
        run = store.run(experiment, folder, name, {"forever.run_key": name, **tags})
        if store.describe(run, params):
            store.client.log_artifact(run, str(self.directory.config))
        self._sent = store.last_steps(run)
        return run

    def _finish(self, store: Store, result: Mapping[str, Any], lines: list[dict[str, Any]]) -> None:
        """Send what a finished run shows, in files whose names are fixed, so that they replace."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        directory, run, client = self.directory, self._run, store.client
        source = json.dumps({"benchmark": result["benchmark"], "order": result["order"]})
        context = InputTag("mlflow.data.context", "train and test")
        inputs: list[DatasetInput] = []
        for task, digest in result["data"].items():
            profile = json.dumps(result["rows"][task])
            dataset = Dataset(task, digest, "local", source, profile=profile)
            inputs.append(DatasetInput(dataset, [context]))
        # The store knows a dataset by name and digest, so repeating it does not add up.
        client.log_inputs(run, inputs)
        for path in (directory.config, directory.environment, directory.result):
            client.log_artifact(run, str(path))
        matrix = {key: result[key] for key in ("tasks", "stages", "matrix")}
        client.log_dict(run, matrix, "matrix.json")
        header = ["task", *result["stages"]]
        scores = zip(result["tasks"], result["matrix"], strict=True)
        client.log_text(run, as_csv(header, ([task, *row] for task, row in scores)), "matrix.csv")
        try:
            self._draw(store, result, lines)
        except Exception as error:  # numbers matter more than pictures of them
            why = first_line(error)
            if isinstance(error, ImportError):
                why += "; pip install 'forever-cl[report]'"
            print(f"{directory.path}: no figures in MLflow: {why}", file=sys.stderr)
        ended = int(directory.result.stat().st_mtime * 1000)
        client.set_terminated(run, "FINISHED", ended)

    def _draw(self, store: Store, result: Mapping[str, Any], lines: list[dict[str, Any]]) -> None:
        from forever.report.figures import matrix_figure, timeline_figure

        title = f"{result['method']}, seed {result['seed']}"
        timeline = timeline_figure(lines, read_lines(self.directory.events), title)
        store.client.log_figure(self._run, matrix_figure(result, title), "matrix.png")
        store.client.log_figure(self._run, timeline, "timeline.png")


def sweep_run(store: Store, folder: Path) -> tuple[str, str]:
    """The experiment and the parent run of the sweep in `folder`.

    Raises:
        InputError: there is no sweep in it.
    """
    name = read_manifest(folder)["name"]
    experiment = store.experiment(name)
    return experiment, store.run(experiment, folder, name, {"forever.sweep": name})


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
    for key in ("op", "bwt", "fwt", "forgetting"):
        if result is not None:
            yield f"final/{key}", result[key], len(result["stages"])


def keeps(step: int) -> bool:
    """Whether update `step` of a task is shown.

    It is 64 of them up to step 64, then 32 each time the steps double: 199 of 1250, the updates of
    a task in the paper. A run that goes on elsewhere shows the same ones.
    """
    return step % 2 ** max(0, (step - 1).bit_length() - 6) == 0


def first_line(error: Exception) -> str:
    """What failed and why, without credentials."""
    # Credentials go first: the cut could leave a password without the @ that gives it away.
    lines = without_credentials(str(error)).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
