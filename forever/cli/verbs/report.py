"""`forever report`: tables and figures of runs that are there."""

from pathlib import Path

from typer import Argument

from forever.cli import commands


def report(folder: Path = Argument(help="A sweep, a run, or a folder of runs.")) -> None:
    """Write report.html, .md, .tex and .json, tables and figures, from run directories alone.

    Examples:
        forever report runs/components
        forever report runs --json
    """
    commands.show_report(folder)
