"""`forever report`: tables and figures of finished runs."""

from pathlib import Path

from typer import Argument, Option

from forever.cli import commands
from forever.errors import InputError
from forever.storage.address import local_folder


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
    from forever.launch.copies import bring

    for place in () if to is None else (to, *to.parents):
        if place.exists() and not place.is_dir():
            raise InputError(f"--to {to}: {place} is a file; give a folder to write into")
    places = [local_folder(folder) for folder in folders]
    for place in places:
        bring(place)
        if not place.is_dir():  # which is said before pandas is loaded
            raise InputError(f"there is no folder {place}; give a run, a sweep or a folder of runs")
    commands.show_report(*places, to=to, runs=runs, table=table)
