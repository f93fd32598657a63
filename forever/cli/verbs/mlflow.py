"""`forever sync` sends runs to MLflow, `forever ui` shows its pages of them."""

import os
import shlex
import socket
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

from typer import Argument, Option

from forever.cli import options
from forever.cli.shown import print_lines
from forever.errors import InputError
from forever.format import plural
from forever.storage.address import portable

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
    from forever.launch.start import mlflow_uri

    uri = mlflow_uri(mlflow)
    if uri is None:
        raise InputError(_MISSING)
    from forever.launch.copies import download
    from forever.launch.mlflow import sync as mlflow_sync

    download(folder)
    sent = mlflow_sync.sync(folder, uri)
    show = shlex.join(["forever", "ui", portable(folder)])
    print_lines([f"sent {plural(sent, 'run')}", f"next  {show}"])


def ui(
    folder: Path | None = Argument(
        None, help="A run, a sweep, or a folder of those.", **options.FOLDER
    ),
    mlflow: str = Option("auto", help="MLflow store; default: where FOLDER was sent last."),
    port: int = Option(5000, min=1, max=65535, help="Where mlflow ui listens, on this machine."),
    no_browser: bool = Option(False, "--no-browser", help="Print the address only."),
) -> None:
    """Open MLflow's pages of a folder by `mlflow ui`; Ctrl-C ends it.

    Examples:
        forever ui runs/components
        forever ui --port 5001
    """
    from forever.launch.start import mlflow_uri

    if mlflow_uri(mlflow) is None:
        raise InputError(_MISSING)
    from forever.launch.mlflow.store import best_page, local_address, store_of, without_user

    if folder is not None and not folder.is_dir():
        raise InputError(
            f"{portable(folder)} does not exist on this machine; give the folder of a run, a sweep "
            "or several, or none and --mlflow STORE"
        )
    uri, place = store_of(folder, mlflow)
    served = uri.startswith("http")  # a server shows its pages itself
    server = without_user(uri).rstrip("/") if served else local_address(port)
    page = best_page(folder, place, server) if folder and place else f"{server}/#/experiments"

    def show() -> None:
        print_lines([f"MLflow  {page}"])
        # A browser in the terminal would take its place.
        windows = {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ} or sys.platform != "linux"
        if windows and not no_browser:
            webbrowser.open(page)

    if served:
        show()
        return
    if _listens(port):
        raise InputError(f"port {port} is taken by another program; give another --port")
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
    # Other users see the options of a command, and an address may hold a password.
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": uri, "MLFLOW_REGISTRY_STORE_URI": uri}
    environment |= {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    with subprocess.Popen(command, env=environment) as shown:
        try:
            while shown.poll() is None and not _listens(port):
                time.sleep(0.2)
            if shown.poll() is None:
                show()
            if shown.wait():
                raise InputError(f"mlflow ui ended with {shown.returncode}, see above")
        finally:
            shown.terminate()


def _listens(port: int) -> bool:
    """Whether a program of this machine listens to a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
