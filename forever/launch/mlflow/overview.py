"""What the page of a sweep in MLflow shows: the table of its variants, its report, its comparison.

All of it is made of the sweep's folder and replaces what was there, so it may be sent at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from forever.config.overrides import flatten
from forever.errors import InputError
from forever.launch.copies import publish_report
from forever.launch.mlflow.comparison import VIEW, differing, view_of
from forever.launch.mlflow.notes import NOTE, compared_with, run_note, sweep_note
from forever.launch.mlflow.place import Place
from forever.launch.mlflow.store import Store, first_line
from forever.runs.directory import RunDirectory
from forever.sweeps.sweep import MANIFEST, MOST_RUNS, read_manifest
from forever.text import complain

_WIDE = ["runs", "forgetting", "at equal"]  # columns for which an overview has no room
_REPORT = ("report.html", "report.json")


def push_overview(folder: Path, uri: str | None, study: Any = None) -> None:
    """Send the table and the report of a sweep, the notes of its trials, and its comparison.

    Args:
        folder: the sweep's, of which some runs may be unfinished.
        study: what was read of it (forever/report/study.py), if it was.
    """
    store = Store(uri)
    parent = store.sweep(folder)
    place = Place("", parent.info.experiment_id, parent.info.run_id)
    children = f"tags.`mlflow.parentRunId` = '{place.run}'"
    runs = store.client.search_runs([place.experiment], children, max_results=MOST_RUNS)
    _compare(store, place, folder, runs)
    _annotate(store, folder, runs)
    study = study or _study(folder)
    if study is None:
        return
    show_table(store, place, study)
    try:
        for path in _reported(study):
            store.client.log_artifact(place.run, str(path))
        if (folder / "figures").is_dir():
            store.client.log_artifacts(place.run, str(folder / "figures"), "figures")
    except InputError as error:  # the folder may be one that only may be read
        complain(f"{folder}: no report in MLflow: {first_line(error)}")


def push_table(folder: Path, uri: str | None) -> None:
    """Send the table of the variants of a sweep that goes on."""
    store, study = Store(uri), _study(folder)
    if study is not None:
        info = store.sweep(folder).info
        show_table(store, Place("", info.experiment_id, info.run_id), study)


def _study(folder: Path) -> Any:
    """What the report reads of a folder; None without a finished run, or without its packages."""
    try:
        from forever.report.study import read_study
        from forever.report.tables import markdown  # noqa: F401 - whether it can be loaded

        return read_study(folder)
    except (ImportError, InputError):
        return None


def _compare(store: Store, place: Place, folder: Path, runs: list[Any]) -> None:
    """Keep what the page that compares the trials shows."""
    metrics: set[str] = set()
    for run in runs:
        metrics |= run.data.metrics.keys()
    settings: list[Mapping[str, Any]] = []
    for trial in read_manifest(folder)["trials"]:
        directory = RunDirectory(folder / trial["key"])
        if directory.config.is_file():
            with suppress(InputError):  # it is damaged, which is said where that run is sent
                settings.append(flatten(directory.read_config().identity()))
    view = view_of(place.run, sorted(metrics), differing(settings))
    store.client.set_experiment_tag(place.experiment, f"{VIEW}{place.run}", view)


def _annotate(store: Store, folder: Path, runs: list[Any]) -> None:
    """Write the notes of trials anew whose reference has finished since."""
    manifest = read_manifest(folder)
    by_key = {run.data.tags.get("forever.run_key"): run for run in runs}
    for trial in manifest["trials"]:
        run = by_key.get(trial["key"])
        if run is None or run.info.status != "FINISHED":
            continue
        result = None
        with suppress(InputError):  # as above
            result = RunDirectory(folder / trial["key"]).finished()
        if result is not None:
            other = compared_with(manifest, trial, folder)
            note = run_note(result, run.info.run_id, other)
            if run.data.tags.get(NOTE) != note:
                store.client.set_tag(run.info.run_id, NOTE, note)


def show_table(store: Store, place: Place, study: Any) -> None:
    """Show a sweep's variants with their intervals, as a note and as a file."""
    import pandas as pd

    from forever.report.facts import subject
    from forever.report.frame import frame_of, text_table
    from forever.report.tables import markdown

    tables: dict[str, str] = {}
    frames: list[pd.DataFrame] = []
    for part in study.parts:
        if part.measured:
            scores = text_table(frame_of(part.rows), "scores")
            tables[part.benchmark] = markdown(scores.drop(columns=_WIDE, errors="ignore"))
            frame = text_table(frame_of(part.rows), "scores", "costs")
            if part.several:
                frame.insert(0, "benchmark", part.benchmark)
            frames.append(frame)
    question = f"{study.file.question} " if study.file and study.file.question else ""
    about = f"{question}{subject(study)}, {len(study.finished)} of {len(study.runs)} runs."
    store.client.set_tag(place.run, NOTE, sweep_note(tables, about, place))
    store.client.log_text(place.run, pd.concat(frames).to_csv(index=False), "variants.csv")


def _reported(study: Any) -> Iterator[Path]:
    """The files of the report, which is made anew if there is none or something is newer."""
    from forever.report.report import write_report

    folder: Path = study.folder
    made = [folder / name for name in _REPORT]
    read = [folder / MANIFEST, *(run.directory.result for run in study.finished)]
    newest = max(path.stat().st_mtime for path in read)
    if not all(path.is_file() and path.stat().st_mtime >= newest for path in made):
        publish_report(write_report(study))
    yield from made
