"""What several verbs do: run a sweep, show a report, find the MLflow store."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forever.cli.shown import note, print_lines, show
from forever.storage.address import portable

if TYPE_CHECKING:
    from forever.launch.resources import Resources
    from forever.launch.start import Request


def sweep(request: Request, out: Path, resources: Resources) -> None:
    """Run a sweep or a search in a folder of `out`, print its table, write its report, and say
    where MLflow compares it; exit with 1 if a run failed."""
    from forever.launch.start import run_file
    from forever.sweeps.study import front_table

    ended = run_file(request, out, resources, lambda line: print_lines([line]))
    folder, outcome = ended.folder, ended.outcome
    study = None
    if outcome.finished or outcome.skipped:
        study = show_report(folder)
        if ended.search is not None:
            show(front_table(ended.search, folder), "best")
    print_lines([f"failed  {key}: {error}" for key, error in outcome.failed.items()])
    note(folder=folder, failed=outcome.failed)
    if resources.mlflow is not None:
        _show_in_mlflow(folder, resources.mlflow, study)
    if outcome.failed:
        raise typer.Exit(1)


def _show_in_mlflow(folder: Path, uri: str, study: Any) -> None:
    """Send a sweep's report, and say at which address its variants are compared."""
    from forever.launch.mlflow.store import local_address, place_of
    from forever.launch.start import send_report

    send_report(folder, uri, study)
    place = place_of(folder)
    if place is None:
        return  # MLflow was away, which was said
    server = place.served
    if server is None:
        server = local_address()
        print_lines([f"MLflow  forever ui {shlex.quote(str(folder))}", "        shows:"])
    page = place.comparison(server)
    print_lines([f"compare  {page}"])
    note(compare=page)


def show_report(
    *folders: Path, to: Path | None = None, runs: bool = False, table: Path | None = None
) -> Any:
    """Print the comparison of folders' runs, and write their report if that can be drawn: into the
    folder, if it is one, or into `to`. Returns what was read of them (forever/report/study.py).

    `runs` draws single runs, too; `table` is a file that gets the tables.
    """
    try:
        from forever.report.joined import destination, read_studies
        from forever.report.report import console_tables, write_report
        from forever.report.study import read_study
        from forever.report.tables import write_tables
    except ModuleNotFoundError as error:
        print_lines([f"no report: {error.name} is missing; pip install 'forever-cl[report]'"])
        return None
    if len(folders) == 1:
        study = read_study(folders[0])
    else:
        to = destination(folders, to)
        study = read_studies(folders, to)
    if table is not None:
        write_tables(study, table)
    show(console_tables(study), "benchmarks")
    page = write_report(study, to, runs)
    if to is None:
        from forever.launch.copies import publish_report

        publish_report(page)
    shown = portable(page)
    print_lines([f"report  {shown}"])
    note(report=shown)
    return study


def mlflow_uri(choice: str) -> str | None:
    """The tracking URI to use; see `forever.launch.start`, which takes a while to load."""
    from forever.launch import start

    return start.mlflow_uri(choice)
