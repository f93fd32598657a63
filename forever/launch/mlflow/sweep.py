"""A sweep in MLflow: its runs, the state of its parent run, and what the page of that run shows.

All of it is made of the sweep's folder and replaces what was there, so it may be sent at any time.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from forever.errors import InputError
from forever.launch.copies import upload_report
from forever.launch.mlflow.mirror import end_of, ended_ms, push_run, slugged
from forever.launch.mlflow.pages import NOTE, VIEW, differing, sweep_note, view_of
from forever.launch.mlflow.store import Store, first_line
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress
from forever.sweeps.sweep import MANIFEST, MOST_RUNS, read_manifest
from forever.text import complain

Mark = tuple[Path, int]  # a run, and when it ended; 0 if it has not
RELEASE_S = 2.0  # a killed worker releases its folder some seconds later
_WIDE = ["runs", "forgetting", "at equal"]  # columns for which a description has no room


def runs_in(folder: Path) -> list[Path]:
    """The runs of a folder that have begun."""
    return sorted(config.parent for config in folder.glob("*/config.yaml"))


def push_sweep(folder: Path, uri: str, sent: set[Mark]) -> None:
    """Send what is new of the runs of a sweep that are in progress or ended.

    `sent` are the ends of runs of which there is no more to send; it grows.
    """
    if not (folder / MANIFEST).is_file():
        return  # it is written after a search began
    store = Store(uri)
    parent = store.sweep(folder).info
    if parent.status != "RUNNING":
        store.client.update_run(parent.run_id, "RUNNING")
    for run in runs_in(folder):
        mark = _mark(run)
        if mark[1] or in_progress(run):  # else it was interrupted and waits for its turn
            _push(mark, uri, sent, over=bool(mark[1]))


def close_sweep(folder: Path, uri: str, sent: set[Mark], failed: Collection[str] = ()) -> None:
    """Send what MLflow lacks of a sweep, and end its parent run and the runs that nobody trains."""
    for run in runs_in(folder):
        _push(_mark(run), uri, sent, over=not in_progress(run, RELEASE_S))
    end_parent(Store(uri), folder, failed)


def _mark(run: Path) -> Mark:
    directory = RunDirectory(run)
    ends = [file for file in (directory.result, directory.ended) if file.is_file()]
    return run, max((file.stat().st_mtime_ns for file in ends), default=0)


def _push(mark: Mark, uri: str, sent: set[Mark], over: bool) -> None:
    """Send what is new of a run; one that cannot be read is named once."""
    if mark in sent:
        return
    try:
        push_run(mark[0], uri, over)
    except InputError as error:
        complain(f"{mark[0]} is not shown in MLflow: {error}")
        sent.add(mark)
    if mark[1]:
        sent.add(mark)


def end_parent(store: Store, folder: Path, failed: Collection[str] = ()) -> None:
    """End the parent run of a sweep: it failed with one of its trials, or was stopped early.

    Args:
        failed: keys of trials that failed, some of which may have no folder.
    """
    ends: set[str] = set()
    info = store.sweep(folder).info
    time_ms = info.start_time
    for trial in read_manifest(folder)["trials"]:
        directory, end = RunDirectory(folder / trial["key"]), "failed"
        with suppress(InputError):  # a run that cannot be read has failed
            end = end_of(directory)
        ends.add(end)
        if directory.result.is_file():
            time_ms = ended_ms(directory, time_ms)
    status = "KILLED" if "interrupted" in ends else "FINISHED"
    if failed or "failed" in ends:
        status = "FAILED"
    store.client.log_artifact(info.run_id, str(folder / MANIFEST))
    store.client.set_terminated(info.run_id, status, time_ms)


# ---- the page of the parent run


def push_overview(folder: Path, uri: str | None, study: Any = None) -> None:
    """Send the comparison of a sweep's trials, the table and metrics of its variants, its report.

    Args:
        folder: the sweep's, of which some runs may be unfinished.
        study: what was read of it (forever/report/study.py), if it was.
    """
    from mlflow.exceptions import MlflowException

    store = Store(uri)
    parent = store.sweep(folder).info
    children = f"tags.`mlflow.parentRunId` = '{parent.run_id}'"
    runs = store.client.search_runs([parent.experiment_id], children, max_results=MOST_RUNS)
    metrics = {key for run in runs for key in run.data.metrics}
    parameters = differing([run.data.params for run in runs])
    view = view_of(parent.run_id, sorted(metrics), parameters)
    with suppress(MlflowException):  # too many charts for a tag of the store
        store.client.set_experiment_tag(parent.experiment_id, f"{VIEW}{parent.run_id}", view)
    study = study or _study(folder)
    if study is None:
        return
    show_variants(store, store.sweep(folder), study)
    # The report is written again if it is missing or older than a result.
    from forever.report.report import write_report

    try:
        report = [folder / "report.html", folder / "report.json"]
        read = [folder / MANIFEST, *(run.directory.result for run in study.finished)]
        newest = max(path.stat().st_mtime for path in read)
        if not all(path.is_file() and path.stat().st_mtime >= newest for path in report):
            upload_report(write_report(study))
        for path in report:
            store.client.log_artifact(parent.run_id, str(path))
        if (folder / "figures").is_dir():
            store.client.log_artifacts(parent.run_id, str(folder / "figures"), "figures")
    except InputError as error:  # as in a folder that is read-only
        complain(f"{folder}: no report in MLflow: {first_line(error)}")


def push_variants(folder: Path, uri: str | None) -> None:
    """Send the table and the metrics of the variants of a sweep that is in progress."""
    store, study = Store(uri), _study(folder)
    if study is not None:
        show_variants(store, store.sweep(folder), study)


def _study(folder: Path) -> Any:
    """What the report reads of a folder; None without a finished run, or without its packages."""
    try:
        import forever.report.report  # noqa: F401 - whether it can be loaded
        from forever.report.study import read_study

        return read_study(folder)
    except (ImportError, InputError):
        return None


def show_variants(store: Store, parent: Any, study: Any) -> None:
    """Show a sweep's variants in its parent run: as a description, a file and metrics.

    The metrics are OP and BWT with the ends of their intervals: `op/fir`, `op_low/fir`,
    `op_high/fir`; on several benchmarks `op/mini/fir`.
    """
    import pandas as pd
    from mlflow.entities import Metric

    from forever.report.facts import subject
    from forever.report.frame import frame_of, text_table
    from forever.report.tables import csv_of

    run = parent.info.run_id
    tables: dict[str, pd.DataFrame] = {}
    frames: list[pd.DataFrame] = []
    scores: dict[str, dict[str, float]] = {}
    for part in study.parts:
        if not part.measured:
            continue
        frame = frame_of(part.rows)
        tables[part.benchmark] = text_table(frame, "scores").drop(columns=_WIDE, errors="ignore")
        frames.append(text_table(frame, "scores", "costs"))
        if part.several:
            frames[-1].insert(0, "benchmark", part.benchmark)
        for row in part.measured:
            name = f"{part.benchmark}/{row.variant}" if part.several else row.variant
            scores[name] = {}
            for key in ("op", "bwt"):
                estimate = row.compared(key)
                if estimate is not None:
                    ends = {"": estimate.value, "_low": estimate.low, "_high": estimate.high}
                    scores[name] |= {f"{key}{end}": value for end, value in ends.items()}
    question = f"{study.file.question} " if study.file and study.file.question else ""
    about = f"{question}{subject(study)}, {len(study.finished)} of {len(study.runs)} runs."
    store.client.set_tag(run, NOTE, sweep_note(tables, about, store.place(parent)))
    store.client.log_text(run, csv_of(pd.concat(frames)), "variants.csv")
    # All metrics have step 0, for which MLflow draws bars. Only what has changed is sent.
    now, metrics = int(time.time() * 1000), list[Metric]()
    for name, slug in slugged(scores, lower=True).items():
        for key, value in scores[name].items():
            if parent.data.metrics.get(f"{key}/{slug}") != value:
                metrics.append(Metric(f"{key}/{slug}", value, now, 0))
    store.client.log_batch(run, metrics=metrics)
