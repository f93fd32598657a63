"""MLflow as a window on runs: a tracker for a run that trains, parent runs for sweeps, `sync` for
what was missed.

All of it sends what run directories hold and the server lacks, so a server that is away costs a few
seconds and no data.

| MLflow                    | comes from                                                          |
|---------------------------|---------------------------------------------------------------------|
| experiment                | the sweep's name; "forever" for a run of its own                    |
| parent run                | the sweep's folder                                                  |
| params                    | every dotted key of the configuration, `variant`                    |
| `acc/<task>`, `op`, `bwt` | predictions/, step = stage from 1                                   |
| `train/loss`, `clock/tau_days`, `replay/beta` | steps.jsonl, step = line from 1, thinned        |
| `final/...`, dataset inputs, artifacts | result.json                                            |
"""

import csv
import io
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from forever.config.overrides import flatten
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.mlflow_store import Point, Store, tracking_uri
from forever.runs.directory import RunDirectory, read_json, read_lines
from forever.runs.environment import without_credentials
from forever.runs.lock import in_progress
from forever.runs.progress import is_run, read_config, stage_scores
from forever.runs.tracking import Tracker
from forever.sweeps.sweep import MANIFEST, read_manifest, slug

SINGLE_RUNS = "forever"
_EVERY_S = 30.0
_PATIENCE_S = 5.0
_FIGURES = "pip install 'forever-cl[report]'"


class MlflowTracker(Tracker):
    """Keeps the MLflow run of a run up to date while it trains.

    A server that fails is named once. It is tried again at the end, and before that so rarely that
    waiting for it takes less than a twentieth of the time.

    Args:
        uri: of the store; see `tracking_uri`.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.uri = tracking_uri(uri)
        self._mirror: Mirror | None = None
        self._next = 0.0
        self._failed = False

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        self._mirror = Mirror(directory.path, self.uri)
        self._push()

    def step(self, line: Mapping[str, Any]) -> None:
        if time.monotonic() >= self._next:
            self._push()

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        if not self._failed or time.monotonic() >= self._next:
            self._push()

    def finished(self, result: Mapping[str, Any]) -> None:
        self._push()

    def _push(self) -> None:
        assert self._mirror is not None
        begun = time.monotonic()
        try:
            self._mirror.push()
            wait, self._failed = _EVERY_S, False
        except Exception as error:  # whatever a server or a client library comes up with
            if not self._failed:
                later = f"`forever sync {self._mirror.directory.path}` sends it later"
                print(f"MLflow does not answer, {later} ({_first_line(error)})", file=sys.stderr)
            wait, self._failed = max(60.0, 20 * (time.monotonic() - begun)), True
        self._next = time.monotonic() + wait


class Mirror:
    """A run directory and the MLflow run that shows it.

    Args:
        folder: of the run; config.yaml is in it.
        uri: of the store.
    """

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
            status, result = store.status(run), self.directory.finished()
            if status == "FINISHED" and result is not None:
                return  # this status is set when everything has arrived
            lines = read_lines(self.directory.steps)
            store.send(run, _points(self.directory, lines, result), self._sent)
            if result is not None:
                self._finish(store, result, lines)
            elif status != unfinished:
                store.client.update_run(run, unfinished)
        except BaseException:
            self._run = ""
            raise

    def _open(self, store: Store) -> str:
        """Find or create the run, and describe it where it is not described yet."""
        folder, config = self.directory.path, read_config(self.directory)
        experiment, tags = "", {"method": config.method.name, "seed": str(config.seed)}
        tags["order"] = config.data.order if isinstance(config.data.order, str) else "custom"
        params = flatten(config.identity())
        listed = _listed(folder)
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
        """Send what a finished run shows, each file under a fixed name, so that sending again
        replaces it."""
        directory, run, client = self.directory, self._run, store.client
        source = json.dumps({"benchmark": result["benchmark"], "order": result["order"]})
        store.send_datasets(run, source, result["data"], result["rows"])
        for path in (directory.config, directory.environment, directory.result):
            client.log_artifact(run, str(path))
        matrix = {key: result[key] for key in ("tasks", "stages", "matrix")}
        client.log_dict(run, matrix, "matrix.json")
        header = ["task", *result["stages"]]
        scores = zip(result["tasks"], result["matrix"], strict=True)
        client.log_text(run, _csv(header, ([task, *row] for task, row in scores)), "matrix.csv")
        try:
            from forever.report.figures import matrix_figure, timeline_figure

            title = f"{result['method']}, seed {result['seed']}"
            timeline = timeline_figure(lines, read_lines(directory.events), title)
            client.log_figure(run, matrix_figure(result), "matrix.png")
            client.log_figure(run, timeline, "timeline.png")
        except Exception as error:  # numbers matter more than pictures of them
            remedy = f"; {_FIGURES}" if isinstance(error, ImportError) else ""
            why = f"{_first_line(error)}{remedy}"
            print(f"{directory.path}: no figures in MLflow: {why}", file=sys.stderr)
        ended = int(directory.result.stat().st_mtime * 1000)
        client.set_terminated(run, "FINISHED", ended)


def sync(folder: Path, uri: str | None = None, patience_s: float = 0.0) -> int:
    """Send what MLflow lacks of a run directory, a sweep, or a folder of sweeps; not of runs that
    are training now.

    Args:
        patience_s: how long to wait for the end of a run that is training.

    Returns:
        How many runs were sent.

    Raises:
        InputError: there is no run, or the server fails.
    """
    from mlflow.exceptions import MlflowException

    folder, uri = folder.absolute(), tracking_uri(uri)
    # A sweep's runs, or those of all sweeps of an --out; no deeper, where copies of config.yaml are
    # MLflow's artifacts.
    below = [*folder.glob("*/config.yaml"), *folder.glob("*/*/config.yaml")]
    runs = [folder] if is_run(folder) else sorted(path.parent for path in below)
    if not runs:
        raise InputError(f"{folder} holds no run: there is no config.yaml in it or below")
    training = [run for run in runs if in_progress(run, patience_s)]
    for run in training:
        left_out = "is in progress and left out: it sends itself, or sync again after it"
        print(f"{run} {left_out}", file=sys.stderr)
    try:
        for run in runs:
            if run not in training:
                Mirror(run, uri).push(unfinished="KILLED")
        for sweep in {run.parent for run in runs} - {run.parent for run in training}:
            if sweep != folder.parent and (sweep / MANIFEST).is_file():
                _end_parent(Store(uri), sweep, None)
    except MlflowException as error:
        raise InputError(
            f"MLflow at {without_credentials(uri)} fails ({_first_line(error)}); "
            "give another --mlflow, or try again when it answers"
        ) from None
    return len(runs) - len(training)


# ---- sweeps


def sweep_run(store: Store, folder: Path) -> tuple[str, str]:
    """The experiment and the parent run of the sweep in `folder`.

    Raises:
        InputError: there is no sweep in it.
    """
    name = read_manifest(folder)["name"]
    experiment = store.experiment(name)
    return experiment, store.run(experiment, folder, name, {"forever.sweep": name})


def open_sweep(folder: Path, uri: str) -> None:
    """Make the parent run of a sweep, and with it the database: processes that all make it at once
    would fail."""
    store = Store(tracking_uri(uri))
    store.client.update_run(sweep_run(store, folder)[1], "RUNNING")


def close_sweep(folder: Path, uri: str, status: str) -> None:
    """Bring all runs of a sweep up to date, end those left open that nobody trains, and end the
    parent run.

    Trials that are killed end without a word, so their runs would show as running for ever.

    Args:
        status: of the parent: FINISHED, FAILED, or KILLED if the sweep was stopped, and then in
            seconds: only what is open gets closed.
    """
    store = Store(tracking_uri(uri))
    keys = store.open_children(*sweep_run(store, folder))
    if status != "KILLED":
        keys += [trial["key"] for trial in read_manifest(folder)["trials"]]
    # A killed worker lets go of its folder some seconds later.
    deadline = time.monotonic() + _PATIENCE_S
    for key in dict.fromkeys(keys):
        left_s = max(deadline - time.monotonic(), 0.0)
        # If it is in progress, another process trains it.
        if is_run(folder / key) and not in_progress(folder / key, left_s):
            killed = status == "KILLED" or _stopped(folder / key)
            Mirror(folder / key, uri).push(unfinished="KILLED" if killed else "FAILED")
    _end_parent(store, folder, status)


def _stopped(run: Path) -> bool:
    """Whether a search gave the run up early, which is no failure."""
    return (RunDirectory(run).end_without_result() or {}).get("state") == "stopped"


def _end_parent(store: Store, folder: Path, status: str | None) -> None:
    """Give the parent run of a sweep what is known of its trials, and end it.

    Args:
        status: None is what it ended with, FINISHED if all trials have a result by now, KILLED if
            it never ended.
    """
    parent, trials = sweep_run(store, folder)[1], read_manifest(folder)["trials"]
    rows: list[list[Any]] = []
    scores: defaultdict[str, list[float]] = defaultdict(list)
    done = 0
    for trial in trials:
        result = RunDirectory(folder / trial["key"]).finished()
        done += result is not None
        values = [(result or {}).get(score) for score in ("op", "bwt", "forgetting")]
        rows.append([trial["variant"], trial["order"], trial["seed"], trial["key"], *values])
        for score, value in zip(("op", "bwt"), values, strict=False):
            if value is not None:
                scores[f"{score}/{slug(trial['variant'])}"].append(value)
    stopped = sum(_stopped(folder / trial["key"]) for trial in trials)
    if status is None:
        ended = store.status(parent)
        status = "KILLED" if ended == "RUNNING" else ended
        status = "FINISHED" if done + stopped == len(trials) else status
    metrics = {key: fmean(values) for key, values in scores.items()} | {"trials/done": done}
    if status != "KILLED":  # otherwise some of those without a result have not been tried
        metrics["trials/failed"] = len(trials) - done - stopped
    if status != "KILLED" and stopped:
        metrics["trials/stopped"] = stopped
    present = store.client.get_run(parent).data.metrics
    fresh = [(key, value, done) for key, value in metrics.items() if present.get(key) != value]
    store.send(parent, fresh, dict.fromkeys(metrics, -1))
    header = ["variant", "order", "seed", "key", "op", "bwt", "forgetting"]
    store.client.log_text(parent, _csv(header, rows), "summary.csv")
    store.client.log_artifact(parent, str(folder / MANIFEST))
    store.client.set_terminated(parent, status)


# ---- what is sent


def _listed(folder: Path) -> dict[str, str] | None:
    """What the manifest of the sweep says of this run; None for a run of its own."""
    with suppress(InputError):
        for trial in read_manifest(folder.parent)["trials"]:
            if trial["key"] == folder.name:
                return trial
    return None


def _points(
    directory: RunDirectory, lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None
) -> Iterator[Point]:
    """Loss and days at some updates of a task, beta at the first update of each replay, the scores
    of each stage, and those of the run."""
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
    """Whether update `step` of a task is shown: 64 in all up to step 64, then 32 each time the
    steps double.

    It depends on the step alone, so that a run that goes on elsewhere keeps the same ones. 1250
    updates, as many as a task has in the paper, leave 199 points.
    """
    return step % 2 ** max(0, (step - 1).bit_length() - 6) == 0


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _first_line(error: Exception) -> str:
    # Credentials go first: the cut could leave a password without the @ that gives it away.
    lines = without_credentials(str(error)).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
