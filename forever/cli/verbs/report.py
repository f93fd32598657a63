"""`forever report`: tables and figures of finished runs."""

from pathlib import Path
from typing import Any

from typer import Argument, Option

from forever.cli.shown import note, print_lines, show
from forever.errors import InputError
from forever.storage.address import local_folder, portable


def report(
    folders: list[str] = Argument(help="Sweeps, runs, or folders of runs; several are compared."),
    to: Path | None = Option(
        None,
        "--to",
        help="Folder to write into; default: the folder itself, of several reports/NAMES.",
    ),
    runs: bool = Option(False, "--runs", help="Draw the matrix and timeline of single runs, too."),
    table: Path | None = Option(
        None, "--table", help="Write the tables into this file, too: .md, .tex or .csv."
    ),
) -> None:
    """Write report.html, report.json and figures/ from run directories alone.

    Examples:
        forever report runs/components
        forever report runs/components --runs --table components.tex
        forever report runs/components /mnt/other/components --to reports/two
        forever report runs --json
    """
    from forever.launch.copies import download

    for place in () if to is None else (to, *to.parents):
        if place.exists() and not place.is_dir():
            raise InputError(f"--to {to}: {place} is a file; give a folder to write into")
    places = [local_folder(folder) for folder in folders]
    for place in places:
        download(place)
        if not place.is_dir():  # which is said before pandas is loaded
            raise InputError(f"{place} does not exist; give a run, a sweep or a folder of runs")
    show_report(*places, to=to, runs=runs, table=table)


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
        from forever.launch.copies import upload_report

        upload_report(page)
    shown = portable(page)
    print_lines([f"report  {shown}"])
    note(report=shown)
    return study
