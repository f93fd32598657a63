"""One run directory as an MLflow run. The directory is the truth; what the server lacks of it is
sent, nothing twice.

| MLflow              | comes from                                                                                |
|---------------------|-------------------------------------------------------------------------------------------|
| experiment          | the sweep's name; "forever" for a run of its own                                          |
| parent run          | the sweep's folder                                                                        |
| params              | every dotted key of the configuration, `variant`                                          |
| `acc/<task>`, `op`, `bwt` | predictions/, step = stage from 1                                                   |
| `train/loss`, `clock/tau_days`, `replay/beta` | steps.jsonl, step = line from 1, thinned                        |
| `final/...`, dataset inputs, artifacts | result.json                                                            |
"""

import csv
import io
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forever.launch.mlflow_store import connect, experiment, find_or_create, sweep_run
from forever.runs.directory import RunDirectory, read_lines
from forever.runs.environment import without_credentials
from forever.runs.progress import read_config, stage_scores
from forever.sweeps.sweep import MANIFEST, read_manifest

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

SINGLE_RUNS = "forever"
_AT_ONCE = 1000  # metrics in one request: the server refuses more


class Mirror:
    """A run directory and the MLflow run that shows it.

    Args:
        folder: of the run; config.yaml is in it.
        uri: of the MLflow store.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        self.directory = RunDirectory(folder)
        self.uri = uri
        self._client: MlflowClient | None = None
        self._run: Run | None = None
        self._steps_sent: dict[str, int] = {}
        self._new = False

    def push(self, unfinished: str = "RUNNING") -> None:
        """Send what the server does not have yet.

        Args:
            unfinished: the status to show if the run is not over.

        Raises:
            InputError, MlflowException: nothing is known of how much arrived; the next call asks
            the server.
        """
        try:
            self._push(unfinished)
        except BaseException:
            self._run = None
            raise

    def _push(self, unfinished: str) -> None:
        client = self._client = self._client or connect(self.uri)
        if self._run is None:
            self._run = self._open(client)
        run, result = self._run, self.directory.finished()
        if run.info.status == "FINISHED" and result is not None:
            return  # this status is set when everything has arrived
        lines = read_lines(self.directory.steps)
        self._send(
            client, run.info.run_id, [*_curves(lines), *_scores(self.directory), *_final(result)]
        )
        if result is not None:
            _send_datasets(client, run.info.run_id, result)
            _send_artifacts(client, run.info.run_id, self.directory, result, lines)
            ended = int(self.directory.result.stat().st_mtime * 1000)
            client.set_terminated(run.info.run_id, "FINISHED", ended)
            self._run = client.get_run(run.info.run_id)
        elif run.info.status != unfinished:
            client.update_run(run.info.run_id, unfinished)
            self._run = client.get_run(run.info.run_id)

    def _open(self, client: "MlflowClient") -> "Run":
        """Find or create the run, and describe it where it is not described yet."""
        folder, config = self.directory.path, read_config(self.directory)
        listed = _listed(folder)
        tags = {
            # A fork is not the run of its configuration.
            "forever.run_key": folder.name
            if listed or self.directory.fork.is_file()
            else config.key(),
            "method": config.method.name,
            "seed": str(config.seed),
            "order": config.data.order if isinstance(config.data.order, str) else "custom",
        }
        params = _flat(config.identity())
        if listed:
            parent = sweep_run(client, folder.parent)
            tags |= {
                "mlflow.parentRunId": parent.info.run_id,
                "variant": listed["variant"],
                "order": listed["order"],
            }
            params["variant"] = listed["variant"]
            experiment_id = parent.info.experiment_id
        else:
            experiment_id = experiment(client, SINGLE_RUNS)
        if revision := _environment(self.directory).get("revision"):
            tags |= {"revision": revision, "mlflow.source.git.commit": revision}
        run = find_or_create(client, experiment_id, folder, tags["forever.run_key"], tags)
        self._steps_sent = {}
        self._new = not run.data.metrics
        # They are immutable.
        if missing := {key: value for key, value in params.items() if key not in run.data.params}:
            from mlflow.entities import Param

            client.log_batch(
                run.info.run_id, params=[Param(key, str(value)) for key, value in missing.items()]
            )
            client.log_artifact(run.info.run_id, str(self.directory.config))
        return run

    def _send(
        self, client: "MlflowClient", run_id: str, points: Iterable[tuple[str, float, int]]
    ) -> None:
        """Log the points (key, value, step) that lie behind the last step that the server has of
        their key."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        fresh = [
            Metric(key, value, now, step)
            for key, value, step in points
            if step > self._sent(client, run_id, key)
        ]
        for start in range(0, len(fresh), _AT_ONCE):
            client.log_batch(run_id, metrics=fresh[start : start + _AT_ONCE])
        for metric in fresh:
            self._steps_sent[metric.key] = max(metric.step, self._steps_sent[metric.key])
        self._new = False

    def _sent(self, client: "MlflowClient", run_id: str, key: str) -> int:
        if key not in self._steps_sent:
            history = [] if self._new else client.get_metric_history(run_id, key)
            self._steps_sent[key] = max((metric.step for metric in history), default=0)
        return self._steps_sent[key]


def _listed(folder: Path) -> dict[str, str] | None:
    """What the manifest of the sweep says of this run; None for a run of its own."""
    if not (folder.parent / MANIFEST).is_file():
        return None
    return next(
        (trial for trial in read_manifest(folder.parent)["trials"] if trial["key"] == folder.name),
        None,
    )


def _environment(directory: RunDirectory) -> dict[str, Any]:
    path = directory.environment
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under dotted keys; lists as JSON."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.dumps(value) if isinstance(value, list) else value
    return flat


# ---- metrics: (key, value, step)


def _curves(lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float, int]]:
    """Loss and days at some updates of a task, beta at the first update of each replay."""
    before: Mapping[str, Any] = {}
    for number, line in enumerate(lines, 1):
        if line["kind"] == "task" and keeps(line["step"]):
            yield "train/loss", line["loss"], number
            if line.get("days") is not None:
                yield "clock/tau_days", line["days"], number
        if line["beta"] is not None and (line["kind"], line["beta"]) != (
            before.get("kind"),
            before.get("beta"),
        ):
            yield "replay/beta", line["beta"], number
        before = line


def keeps(step: int) -> bool:
    """Whether update `step` of a task is shown: 64 in all up to step 64, then 32 each time the
    steps double.

    It depends on the step alone, so that a run that goes on elsewhere keeps the same ones. 1250
    updates, as many as a task has in the paper, leave 199 points.
    """
    return step % 2 ** max(0, (step - 1).bit_length() - 6) == 0


def _scores(directory: RunDirectory) -> Iterator[tuple[str, float, int]]:
    for stage, scores in enumerate(stage_scores(directory), 1):
        yield from (
            (_safe(key), value, stage) for key, value in scores.items() if value is not None
        )


def _final(result: Mapping[str, Any] | None) -> Iterator[tuple[str, float, int]]:
    for key in ("op", "bwt", "fwt", "forgetting") if result else ():
        if result and result[key] is not None:
            yield f"final/{key}", result[key], len(result["stages"])


def _safe(key: str) -> str:
    """MLflow allows letters, digits and `_-.:/ ` in names."""
    return "".join(c if c.isalnum() or c in "_-.:/ " else "_" for c in key)


# ---- what a finished run shows


def _send_datasets(client: "MlflowClient", run_id: str, result: Mapping[str, Any]) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"benchmark": result["benchmark"], "order": result["order"]})
    inputs = [
        DatasetInput(
            Dataset(task, digest, "local", source, profile=json.dumps(result["rows"][task])),
            [InputTag("mlflow.data.context", "train and test")],
        )
        for task, digest in result["data"].items()
    ]
    # The store knows a dataset by name and digest, so this does not add up.
    client.log_inputs(run_id, inputs)


def _send_artifacts(
    client: "MlflowClient",
    run_id: str,
    directory: RunDirectory,
    result: Mapping[str, Any],
    lines: list[dict[str, Any]],
) -> None:
    """Files, each under a fixed name, so that sending again replaces."""
    for path in (directory.config, directory.environment, directory.result):
        client.log_artifact(run_id, str(path))
    client.log_dict(
        run_id, {key: result[key] for key in ("tasks", "stages", "matrix")}, "matrix.json"
    )
    client.log_text(run_id, table([["task", *result["stages"]], *_rows(result)]), "matrix.csv")
    try:
        from forever.report.figures import matrix_figure, timeline_figure

        title = f"{result['method']}, seed {result['seed']}"
        client.log_figure(run_id, matrix_figure(result), "matrix.png")
        client.log_figure(
            run_id, timeline_figure(lines, read_lines(directory.events), title), "timeline.png"
        )
    except ImportError as error:
        print(
            f"{directory.path}: no figures in MLflow ({error}); pip install 'forever-cl[report]'",
            file=sys.stderr,
        )
    except Exception as error:  # numbers matter more than pictures of them
        reason = without_credentials(f"{type(error).__name__}: {error}")
        print(f"{directory.path}: no figures in MLflow: {reason}", file=sys.stderr)


def _rows(result: Mapping[str, Any]) -> list[list[Any]]:
    return [[task, *row] for task, row in zip(result["tasks"], result["matrix"], strict=True)]


def table(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
