"""`forever sync` sends runs to MLflow, `forever ui` shows its pages of them."""

import os
import shlex
import sys
import webbrowser
from pathlib import Path

from typer import Argument, Option

from forever.cli import commands, options
from forever.errors import InputError
from forever.format import plural
from forever.storage.address import portable
from forever.text import complain

_MISSING = "MLflow is off or not installed; pip install 'forever-cl[mlflow]' and give --mlflow URI"


def sync(
    folder: Path = Argument(help="A run or a sweep.", **options.FOLDER),
    mlflow: str = options.MLFLOW,
) -> None:
    """Send to MLflow what it does not have yet, once each.

    Examples:
        forever sync runs/components
        forever sync runs/components --mlflow http://server:5000
    """
    uri = commands.mlflow_uri(mlflow)
    if uri is None:
        raise InputError(_MISSING)
    from forever.launch.copies import bring
    from forever.launch.mlflow import sync as mlflow_sync

    bring(folder)
    sent = mlflow_sync.sync(folder, uri)
    look = shlex.join(["forever", "ui", portable(folder)])
    commands.print_lines([f"sent {plural(sent, 'run')}", f"next  {look}"])


def ui(
    folder: Path | None = Argument(
        None, help="A run, a sweep, or a folder of those.", **options.FOLDER
    ),
    mlflow: str = Option("auto", help="MLflow store; default: where FOLDER was sent last."),
    port: int | None = Option(None, min=1, max=65535, help="Default: 5000, or another free one."),
    no_browser: bool = Option(False, "--no-browser", help="Print the address only."),
) -> None:
    """Open MLflow's pages of a folder on this machine; Ctrl-C ends it.

    Examples:
        forever ui runs/components
        forever ui --port 5001
    """
    if commands.mlflow_uri(mlflow) is None:
        raise InputError(_MISSING)
    from forever.launch.mlflow.pages import free_port, served, store_of
    from forever.launch.mlflow.place import best_page, without_user

    uri, place = store_of(folder, mlflow)

    def show(server: str) -> None:
        page = best_page(folder, place, server) if folder and place else f"{server}/#/experiments"
        commands.print_lines([f"MLflow  {page}"])
        if not no_browser and _has_windows():
            webbrowser.open(page)

    if uri.startswith("http"):  # a server shows its pages itself
        show(without_user(uri).rstrip("/"))
        return
    complain("starting MLflow's server ...")
    with served(uri, free_port(port)) as (address, server):
        show(address)
        server.wait()


def _has_windows() -> bool:
    """Whether a browser has a screen; one in the terminal would take its place."""
    return sys.platform != "linux" or not {"DISPLAY", "WAYLAND_DISPLAY"}.isdisjoint(os.environ)
