"""`forever export`: what a run trained, as a folder for others."""

from pathlib import Path

from typer import Argument, Option

from forever.cli.options import FOLDER
from forever.cli.shown import print_lines
from forever.errors import InputError
from forever.storage.address import portable


def export(
    run: Path = Argument(help="A finished run's folder.", **FOLDER),
    to: Path = Option(..., "--to", help="A new folder."),
    merged: bool = Option(
        False, "--merged", help="Also the base model with the adapter merged into it."
    ),
) -> None:
    """Write a run's adapter with a model card that says how it was made and how to load it.

    Examples:
        forever export runs/mini-1-forever-s0-5aee8c00 --to my-adapter
        forever export runs/mini-1-forever-s0-5aee8c00 --to my-model --merged
    """
    from forever.launch.copies import download
    from forever.runs.directory import RunDirectory

    download(run)
    if RunDirectory(run).finished() is None:  # which is said before NumPy is loaded
        raise InputError(f"{portable(run)} is not finished; only a finished run is exported")
    from forever.cli.export import export_run

    print_lines(export_run(run, to, merged))
