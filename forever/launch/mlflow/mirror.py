"""A run directory in MLflow: the directory is the truth; what the server lacks is sent, once.

| MLflow                    | comes from                                                          |
|---------------------------|---------------------------------------------------------------------|
| experiment                | the sweep's name; "forever" for a run of its own                    |
| parent run                | the sweep's folder                                                  |
| params                    | every dotted key of the configuration, `variant`                    |
| `acc/<task>`, `op`, `bwt` | predictions/, step = task from 1; 0 in joint training               |
| `train/loss`, `clock/tau_days`, `replay/beta` | steps.jsonl, step = line from 1, thinned        |
| `final/...`, dataset inputs, notes, artifacts | result.json                                     |
| logged model              | adapter/                                                            |

MLflow draws a metric as a curve if its last step is 1 or more, and as a bar if it is 0. So what is
known once only, at the end, has step 0: a curve of it would be a single dot.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forever.config.overrides import flatten
from forever.config.run import RunConfig
from forever.errors import InputError, reading
from forever.format import as_csv
from forever.launch.mlflow.adapter import send_adapter
from forever.launch.mlflow.notes import (
    NOTE,
    OVERVIEW,
    compared_with,
    run_name,
    run_note,
    trial_name,
)
from forever.launch.mlflow.store import Store, alone, first_line
from forever.replay.times import day_seven
from forever.runs.directory import RunDirectory
from forever.runs.progress import stage_scores
from forever.sweeps.sweep import MANIFEST, read_manifest
from forever.text import complain, without_credentials

Point = tuple[str, float | None, int]  # key, value and step of a metric; no value is no point
_LONGEST_KEY = 250  # of a metric
_OVERVIEW_WIDTH = 560  # of a picture in a note, in points
_STATUS = {"failed": "FAILED", "stopped": "KILLED", "interrupted": "KILLED"}


def push_run(folder: Path, uri: str | None, over: bool = False) -> None:
    """Send what the store at `uri` lacks of the run in `folder`.

    The server is asked each time what it has, so nothing is sent twice whoever sent the rest.
    `over`: nobody trains the run.

    Raises:
        InputError: a file of the run is damaged.
    """
    with reading(folder):
        RunDirectory(folder).verify()
        with alone(folder):
            Mirror(folder, uri, over).push()


class Mirror:
    """The run directory `folder` and the MLflow run that shows it; for one `push`."""

    def __init__(self, folder: Path, uri: str | None, over: bool = False) -> None:
        from mlflow.entities import Param

        self.directory, self.store = RunDirectory(folder), Store(uri)
        self._compared: RunDirectory | None = None
        client = self.store.client
        config = self.directory.read_config()
        run = self._find(config)
        self.run, self.begun = run.info.run_id, run.info.start_time
        # This status is set when everything has arrived.
        self.complete = self.directory.result.is_file() and run.info.status == "FINISHED"
        if self.complete:
            return
        end = end_of(self.directory) if over else "running"
        status = _STATUS.get(end, "RUNNING")
        if run.info.status != status:
            client.update_run(self.run, status)
        # A key may hold the name of a task, as in data.metrics.
        identity = flatten(config.identity())
        params = {metric_key(key): value for key, value in identity.items()}
        self.variant = run.data.tags.get("variant")  # in a sweep
        self.order = run.data.tags.get("order")
        if self.variant is not None:
            params["variant"] = self.variant
        missing = params.keys() - run.data.params.keys()  # the others are immutable
        if missing:
            client.log_artifact(self.run, str(self.directory.config))
            values = {key: without_credentials(str(params[key])) for key in missing}
            client.log_batch(self.run, params=[Param(*pair) for pair in values.items()])
        # The last step of each metric.
        self.sent: dict[str, int] = {last.key: last.step for last in run.data.to_proto().metrics}

    def _find(self, config: RunConfig) -> Any:
        """MLflow's run of the directory, below that of its sweep if it has one."""
        folder, store, order = self.directory.path, self.store, config.data.order
        tags = {"forever.run_key": folder.name, "method": config.method.name}
        tags |= {"seed": str(config.seed), "order": order if isinstance(order, str) else "custom"}
        revision = self.directory.read_environment().get("revision")
        if revision:
            tags["mlflow.source.git.commit"] = revision
        if (folder.parent / MANIFEST).is_file():
            manifest = read_manifest(folder.parent)
            for trial in manifest["trials"]:
                if trial["key"] == folder.name:
                    parent = store.sweep(folder.parent).info
                    tags |= {"variant": trial["variant"], "order": trial["order"]}
                    tags["mlflow.parentRunId"] = parent.run_id
                    self._compared = compared_with(manifest, trial, folder.parent)
                    return store.run(parent.experiment_id, folder, tags, trial_name(trial))
        name = run_name(config, self.directory.read_fork())
        return store.run(store.experiment("forever"), folder, tags, name)

    def push(self) -> None:
        """Send what the server does not have yet."""
        from mlflow.entities import Metric

        if self.complete:
            return
        lines, result = self.directory.read_steps(), self.directory.finished()
        now = int(time.time() * 1000)
        fresh: list[Metric] = []
        for name, value, step in points_of(self.directory, lines, result):
            key = metric_key(name)
            if value is not None and step > self.sent.get(key, -1):
                fresh.append(Metric(key, value, now, step))
        self.store.client.log_batch(self.run, metrics=fresh)
        if result is not None:
            self._finish(result)

    def _finish(self, result: Mapping[str, Any]) -> None:
        """Send what a finished run shows, in files whose names are fixed, so that they replace."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        directory, run, client = self.directory, self.run, self.store.client
        source = json.dumps({"benchmark": result["benchmark"], "order": result["order"]})
        context = InputTag("mlflow.data.context", "train and test")
        inputs: list[DatasetInput] = []
        for task, digest in result.get("data", {}).items():
            profile = json.dumps(result["rows"][task])
            dataset = Dataset(task, digest, "local", source, profile=profile)
            inputs.append(DatasetInput(dataset, [context]))
        self._note_data(inputs)
        client.log_artifact(run, str(directory.environment))
        client.log_artifact(run, str(directory.result))
        matrix = {key: result[key] for key in ("tasks", "stages", "matrix")}
        client.log_dict(run, matrix, "matrix.json")
        scored = zip(result["tasks"], result["matrix"], strict=True)
        rows = [[task, *scores] for task, scores in scored]
        client.log_text(run, as_csv(["task", *result["stages"]], rows), "matrix.csv")
        try:
            self._draw()
        except InputError:
            raise  # a damaged file, of which more than the pictures is missing
        except Exception as error:  # numbers matter more than pictures of them
            complain(f"{directory.path}: no figures in MLflow: {first_line(error)}")
        send_adapter(self.store, run, directory.path)
        client.set_tag(run, NOTE, run_note(result, run, self._compared))
        client.set_terminated(run, "FINISHED", ended_ms(directory, self.begun))
        self.complete = True

    def _note_data(self, inputs: Sequence[Any]) -> None:
        """Send the datasets of the run. The store knows each by name and digest, so repeating it
        does not add up; but it fails if another process adds the same one in the same moment."""
        from mlflow.exceptions import MlflowException

        for left in reversed(range(len(inputs) + 1)):
            try:
                self.store.client.log_inputs(self.run, inputs)
                break
            except MlflowException as error:
                if not left or "unique" not in str(error).lower():
                    raise

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
            small = Path(folder, OVERVIEW)
            write_small(Path(folder, "matrix.png"), small)
            self.store.client.log_artifact(self.run, str(small))


def write_small(picture: Path, path: Path) -> None:
    """Write a picture again, no wider than an overview: MLflow shows each in its own size."""
    from PIL import Image  # which comes with Matplotlib

    with Image.open(picture) as image:
        image.thumbnail((_OVERVIEW_WIDTH, _OVERVIEW_WIDTH))
        image.save(path)


def load_figures() -> None:
    """Load what draws figures, if it is installed."""
    with suppress(ImportError):
        import forever.report.figures
        import forever.report.study  # noqa: F401


def points_of(
    directory: RunDirectory, lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None
) -> Iterator[Point]:
    """Yield the points of some updates, of the start of each replay, of each stage, of the run."""
    replay = None
    for number, line in enumerate(lines, 1):
        kind, beta = line.get("kind"), line.get("beta")
        if kind == "task" and keeps(line.get("step", 0)):
            yield "train/loss", line.get("loss"), number
            yield "clock/tau_days", line.get("days"), number
        if (kind, beta) != replay:
            yield "replay/beta", beta, number
        replay = kind, beta
    first = 0 if directory.read_config().method.joint else 1
    for stage, scores in enumerate(stage_scores(directory), first):
        yield from ((key, value, stage) for key, value in scores.items())
    if result is not None:
        for key in ("op", "bwt", "fwt", "forgetting"):
            yield f"final/{key}", result.get(key), 0
        day_7 = day_seven([result]) if "notes" in result else None
        if day_7 and isfinite(day_7.update):
            yield "final/day_7", day_7.update, 0


def ended_ms(directory: RunDirectory, begun: int) -> int:
    """When a run wrote its result; a copy of its folder may tell times in any order."""
    return max(begun, int(directory.result.stat().st_mtime * 1000))


def end_of(directory: RunDirectory) -> str:
    """How a run is over that nobody trains: finished, failed, stopped early, or interrupted."""
    if directory.finished() is not None:
        return "finished"
    return (directory.end_without_result() or {"state": "interrupted"})["state"]


def keeps(step: int) -> bool:
    """Whether update `step` of a task is shown: all up to 64, then 32 each time they double."""
    return step % 2 ** max(0, (step - 1).bit_length() - 6) == 0


def metric_key(name: str) -> str:
    """The key of a metric or parameter as MLflow takes it; different names keep different keys."""
    key = re.sub(r"[^\w./: -]", lambda found: f"_{ord(found[0]):x}_", name)
    if len(key) <= _LONGEST_KEY:
        return key
    return f"{key[: _LONGEST_KEY - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
