"""A run directory in MLflow: the directory is the truth; what the server lacks is sent, once.

| MLflow                    | comes from                                                          |
|---------------------------|---------------------------------------------------------------------|
| experiment                | the sweep's name; "forever" for a run of its own                    |
| parent run                | the sweep's folder                                                  |
| params                    | every dotted key of the configuration, `variant`                    |
| `acc/<task>`, `op`, `bwt` | predictions/, step = task from 1; 0 in joint training               |
| `train/loss`, `clock/tau_days`, `replay/beta` | steps.jsonl, step = line from 1, thinned        |
| `final/...`, dataset inputs, description, artifacts | result.json                               |

MLflow draws a metric as a curve if its last step is 1 or more, and as a bar if it is 0. So what is
known once only, at the end, has step 0: a curve of it would be a single dot.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forever.config.overrides import flatten
from forever.config.run import RunConfig
from forever.errors import InputError, reading
from forever.format import as_csv
from forever.launch.mlflow.pages import NOTE, run_note
from forever.launch.mlflow.store import Store, alone, first_line
from forever.replay.times import day_seven
from forever.runs.directory import RunDirectory
from forever.runs.progress import stage_scores
from forever.sweeps.sweep import MANIFEST, read_manifest
from forever.text import complain, spreadsheet, without_credentials

Point = tuple[str, float | None, int]  # name, value and step of a metric; no value is no point
_LONGEST_KEY = 240  # of a metric; MLflow takes 250
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "interrupted": "KILLED"}


def push_run(folder: Path, uri: str | None, over: bool = False) -> None:
    """Send what the store at `uri` lacks of the run in `folder`.

    The server is asked each time what it has, so nothing is sent twice whoever sent the rest.

    Args:
        over: whether no process trains the run.

    Raises:
        InputError: a file of the run is damaged.
    """
    with reading(folder):
        directory = RunDirectory(folder)
        directory.verify()
        with alone(folder):
            _push(directory, Store(uri), over)


def _push(directory: RunDirectory, store: Store, over: bool) -> None:
    from mlflow.entities import Metric, Param

    client, config, result = store.client, directory.read_config(), directory.finished()
    known = _run_of(directory, config, store)
    run = known.info.run_id
    # MLflow's run gets this status when everything has arrived.
    if result is not None and known.info.status == "FINISHED":
        return
    status = "RUNNING"
    if over and result is None:
        status = _STATUS[end_of(directory)]
    if known.info.status != status:
        client.update_run(run, status)
    # Parameters cannot be changed, so those that are missing are sent. A key may hold the name of
    # a task, as in data.metrics.
    identity = flatten(config.identity())
    keys = slugged(identity)
    params = {keys[name]: str(value) for name, value in identity.items()}
    if "variant" in known.data.tags:
        params["variant"] = known.data.tags["variant"]
    missing = [key for key in params if key not in known.data.params]
    if missing:
        client.log_artifact(run, str(directory.config))
        values = [Param(key, without_credentials(params[key])) for key in missing]
        client.log_batch(run, params=values)
    # Of each metric the points after the last step that was sent.
    last = {metric.key: metric.step for metric in known.data.to_proto().metrics}
    points = list(points_of(directory, directory.read_steps(), result))
    keys, now = slugged(name for name, _, _ in points), int(time.time() * 1000)
    fresh: list[Metric] = []
    for name, value, step in points:
        if value is not None and step > last.get(keys[name], -1):
            fresh.append(Metric(keys[name], value, now, step))
    client.log_batch(run, metrics=fresh)
    if result is not None:
        _finish(directory, store, known, result)


def _run_of(directory: RunDirectory, config: RunConfig, store: Store) -> Any:
    """Return MLflow's run of the directory, below that of its sweep if it has one."""
    folder = directory.path
    order = config.data.order if isinstance(config.data.order, str) else "custom"
    tags = {"forever.run_key": folder.name, "method": config.method.name}
    tags |= {"seed": str(config.seed), "order": order}
    revision = directory.read_environment().get("revision")
    if revision:
        tags["mlflow.source.git.commit"] = revision
    # A trial of a sweep is named "+IAR&PIR, order 1, seed 0".
    if (folder.parent / MANIFEST).is_file():
        for trial in read_manifest(folder.parent)["trials"]:
            if trial["key"] == folder.name:
                parent = store.sweep(folder.parent).info
                tags |= {"variant": trial["variant"], "order": trial["order"]}
                tags["mlflow.parentRunId"] = parent.run_id
                name = f"{trial['variant']}, order {trial['order']}, seed {trial['seed']}"
                return store.run(parent.experiment_id, folder, tags, name)
    # Another run is named "forever on mini, order 2, seed 0".
    method, origin = config.method.name, directory.read_fork()
    if origin:
        method += f" from {origin['run']}@{origin['stage']}"
    elsewhere = f", order {order}" if order not in ("", "1", "custom") else ""
    name = f"{method} on {config.data.benchmark}{elsewhere}, seed {config.seed}"
    return store.run(store.experiment("forever"), folder, tags, name)


def _finish(directory: RunDirectory, store: Store, known: Any, result: Mapping[str, Any]) -> None:
    """Send what a finished run shows, in files whose names are fixed, so that they replace."""
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.exceptions import MlflowException

    client, run, folder = store.client, known.info.run_id, directory.path
    directory.check_weights()
    # Datasets: the tasks, with the digests of their data.
    source = json.dumps({"benchmark": result["benchmark"], "order": result["order"]})
    context = InputTag("mlflow.data.context", "train and test")
    inputs: list[DatasetInput] = []
    for task, digest in result.get("data", {}).items():
        profile = json.dumps(result["rows"][task])
        inputs.append(
            DatasetInput(Dataset(task, digest, "local", source, None, profile), [context])
        )
    try:
        client.log_inputs(run, inputs)
    except MlflowException:  # as when another run adds the same dataset at the same moment
        client.log_inputs(run, inputs)
    # Artifacts: files of the run, its adapter, its matrix, and pictures if they can be drawn.
    for file in (directory.environment, directory.result):
        client.log_artifact(run, str(file))
    if (folder / "adapter").is_dir():
        client.log_artifacts(run, str(folder / "adapter"), "adapter")
    client.log_dict(run, {key: result[key] for key in ("tasks", "stages", "matrix")}, "matrix.json")
    scored = zip(result["tasks"], result["matrix"], strict=True)
    rows = [[spreadsheet(task), *scores] for task, scores in scored]
    heads = ["task", *map(spreadsheet, result["stages"])]
    client.log_text(run, as_csv(heads, rows), "matrix.csv")
    try:
        _draw(directory, store, known)
    except InputError:
        raise  # a damaged file, of which more than the pictures is missing
    except Exception as error:  # numbers matter more than pictures of them
        complain(f"{folder}: no figures in MLflow: {first_line(error)}")
    client.set_tag(run, NOTE, run_note(result, run))
    client.set_terminated(run, "FINISHED", ended_ms(directory, known.info.start_time))


def _draw(directory: RunDirectory, store: Store, known: Any) -> None:
    from forever.report.figures import png_of
    from forever.report.study import plain_run

    run = plain_run(directory.path)
    run.variant = known.data.tags.get("variant", run.variant)
    run.order = known.data.tags.get("order", run.order)
    with TemporaryDirectory() as folder:
        for figure in ("matrix", "timeline"):
            path = Path(folder, f"{figure}.png")
            path.write_bytes(png_of(figure, run))
            store.client.log_artifact(known.info.run_id, str(path))


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
    """When a run wrote its result; in a copy of its folder, times may be in any order."""
    return max(begun, int(directory.result.stat().st_mtime * 1000))


def end_of(directory: RunDirectory) -> str:
    """How a run ended that nobody trains: finished, failed, stopped early, or interrupted."""
    if directory.finished() is not None:
        return "finished"
    return (directory.end_without_result() or {"state": "interrupted"})["state"]


def keeps(step: int) -> bool:
    """Whether update `step` of a task is shown: all up to 64, then 32 each time they double."""
    return step % 2 ** max(0, (step - 1).bit_length() - 6) == 0


def slugged(names: Iterable[str], lower: bool = False) -> dict[str, str]:
    """Give each name a key that MLflow takes for a metric or a parameter.

    Other characters than letters, digits and `_ - . : /` become hyphens. Names that would have the
    same key are numbered in their order: `a`, `a-2`.
    """
    keys: dict[str, str] = {}
    for name in names:
        if name in keys:
            continue
        slug = re.sub(r"[^\w./: -]+", "-", name.lower() if lower else name)
        slug = re.sub(r"/[-./: ]*", "/", slug).strip("-./: ")[:_LONGEST_KEY] or "unnamed"
        key, number = slug, 1
        while key in keys.values():
            number += 1
            key = f"{slug}-{number}"
        keys[name] = key
    return keys
