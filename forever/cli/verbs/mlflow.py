"""`forever sync`: what MLflow lacks of runs that are there."""

from pathlib import Path

from typer import Argument

from forever.cli import commands, options
from forever.errors import InputError


def sync(folder: Path = Argument(help="A run or a sweep."), mlflow: str = options.MLFLOW) -> None:
    """Send to MLflow what it does not have yet, once each.

    Examples:
        forever sync runs/components
        forever sync runs/components --mlflow http://server:5000
    """
    uri = commands.mlflow_uri(mlflow)
    if uri is None:
        raise InputError(
            "MLflow is off or not installed; pip install 'forever-cl[mlflow]' and give --mlflow URI"
        )
    from forever.launch.mlflow import tracker as mlflow_tracker

    mlflow_tracker.sync(folder, uri)
