"""MLflow's pages of a store, shown by a server on this machine that nobody else reaches."""

import os
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from forever.errors import InputError
from forever.launch.mlflow.place import PORT, Place, place_of, sent_below, without_user
from forever.launch.mlflow.store import tracking_uri
from forever.storage.address import portable

_HOST = "127.0.0.1"
_START_S = 120.0  # a store in which many have worked takes a while to open
_SQLITE = "sqlite:///"


def store_of(folder: Path | None, choice: str) -> tuple[str, Place | None]:
    """The address of the store that has a folder, and where in it, if that is known.

    Args:
        choice: an address, or `auto`: what the folder, or a folder in it, says of itself, or else
            where runs go that say nothing.

    Raises:
        InputError: there is no such folder, or no such store.
    """
    place = None
    if folder is not None:
        if not folder.is_dir():
            raise InputError(
                f"{portable(folder)} is no folder of this machine; give that of a run, a sweep or "
                "several, or none and --mlflow STORE"
            )
        place = place_of(folder)
    uri = tracking_uri(None if choice == "auto" else choice)
    if choice == "auto" and folder is not None:
        known = place or next(sent_below(folder), None)
        if known and not _is_in(known, uri):
            uri = known.store
    if place is not None and not _is_in(place, uri):
        place = None  # there it has another number
    _check(uri, folder)
    return uri, place


def _is_in(place: Place, uri: str) -> bool:
    """Whether `uri` is the place's store, of which no folder keeps user and password."""
    return place.store.rstrip("/") == without_user(uri).rstrip("/")


def _check(uri: str, folder: Path | None) -> None:
    """Refuse, by an InputError, a file into which MLflow's server would put tables of its own."""
    if not uri.startswith("sqlite"):
        return
    if not uri.startswith(_SQLITE):  # with a driver's name or options
        raise InputError(f"{without_user(uri)} is not of the form {_SQLITE}PATH; give --mlflow so")
    database = Path(uri.removeprefix(_SQLITE))
    send = f"`forever sync {folder or 'FOLDER'}` sends runs, --mlflow names another store"
    if not database.is_file():
        raise InputError(f"no run was sent to {database}, which is not there; {send}")
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as store:
            store.execute("SELECT 1 FROM experiments LIMIT 1")
    except sqlite3.Error as error:
        if error.sqlite_errorname not in ("SQLITE_ERROR", "SQLITE_NOTADB"):
            return  # in use, or a process was killed: MLflow's server knows what to do
        raise InputError(f"{database} is no database of MLflow ({error}); {send}") from None


def free_port(wanted: int | None) -> int:
    """The port that is wanted, any for 0; without one MLflow's usual one, or any if that is taken.

    Raises:
        InputError: another program has the port that is wanted.
    """
    for port in (PORT if wanted is None else wanted, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HOST, port))
            return probe.getsockname()[1]
        if wanted is not None:
            break
    raise InputError(f"port {wanted} is taken by another program; give another --port")


@contextmanager
def served(uri: str, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Show the pages of a store during the block; yields their address and the server.

    Raises:
        InputError: the server ends, or does not answer.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--host", _HOST, "--port", str(port)]
    # Others see the options of a command, and an address may hold a password.
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    environment |= {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(
        [*command, "--workers", "1"], env=environment, stdout=quiet, stderr=quiet
    )
    try:
        address = f"http://{_HOST}:{port}"
        _await(address, server)
        yield address, server
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()


def _await(address: str, server: "subprocess.Popen[bytes]") -> None:
    give_up = time.monotonic() + _START_S
    while time.monotonic() < give_up:
        if server.poll() is not None:
            raise InputError(
                f"MLflow's server ended with {server.returncode}; `mlflow server "
                "--backend-store-uri STORE` says why"
            )
        with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=2):
            return
        time.sleep(0.2)
    raise InputError(f"MLflow's server did not answer at {address} within {_START_S:g} s")
