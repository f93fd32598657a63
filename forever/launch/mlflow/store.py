"""MLflow's store: a client of it, and where in it the folder of a run or a sweep was sent.

The file mlflow.json in such a folder holds an identity, by which MLflow's run is found again (as
the tag `forever.id`), and the store to which it was sent last. So a folder can be copied from a
cluster and sent from elsewhere, and one configuration in two folders is two runs.
"""

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from filelock import FileLock, Timeout

from forever.errors import InputError, one_line
from forever.files import read_json, write_text, writing
from forever.sweeps.sweep import MANIFEST, read_manifest
from forever.text import visible, without_credentials

PLACE = "mlflow.json"
SQLITE = "sqlite:///"
PORT = 5000  # of the pages that `forever ui` shows
_MODE = "workflowType=machine_learning"  # pages of training; MLflow's usual ones are of chats
_LONGEST_NAME = 250  # of a run, as Postgres takes it
# By this tag the pages of an experiment are those of training, and not those of chats and agents.
_KIND = {"mlflow.experimentKind": "custom_model_development"}
_OTHERS_S = 60.0  # how long another process may send a folder before this one gives up

# MLflow is loaded after this. By default a dead server would hold up each call for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
# A sweep ends with an address of its own.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")


@dataclass(frozen=True)
class Place:
    """A run in a store: the store's address without a password, and MLflow's numbers."""

    store: str
    experiment: str
    run: str

    @property
    def served(self) -> str | None:
        """The address of the server that shows the pages, if the store is one."""
        return self.store.rstrip("/") if self.store.startswith(("http://", "https://")) else None

    def page(self, server: str) -> str:
        """The address of the run's own page."""
        return f"{server}/#/experiments/{self.experiment}/runs/{self.run}?{_MODE}"

    def all_runs(self, server: str) -> str:
        """The address of the page that lists all runs of the experiment."""
        return f"{server}/#/experiments/{self.experiment}/runs?{_MODE}"

    def comparison(self, server: str) -> str:
        """The address of the page that compares the trials of a sweep (see pages.py)."""
        return f"{self.all_runs(server)}&compareRunsMode=CHART&viewStateShareKey={self.run}"

    def artifact(self, server: str, name: str) -> str:
        """The address of the page that shows a file of the run."""
        run = f"{server}/#/experiments/{self.experiment}/runs/{self.run}"
        return f"{run}/artifacts/{name}?{_MODE}"


def place_of(folder: Path) -> Place | None:
    """Where a run's or a sweep's folder was sent last; None if it never was."""
    known = read_json(folder / PLACE) if (folder / PLACE).is_file() else {}
    values = [known.get(key) for key in ("store", "experiment", "run")]
    return Place(*map(str, values)) if all(values) else None


def best_page(folder: Path, place: Place, server: str) -> str:
    """The page that shows a folder best: a sweep's comparison, or a run's own."""
    return place.comparison(server) if (folder / MANIFEST).is_file() else place.page(server)


def local_address(port: int = PORT) -> str:
    """Where `forever ui` shows a store that is not a server."""
    return f"http://127.0.0.1:{port}"


def without_user(uri: str) -> str:
    """An address of a store without user, password and other secrets."""
    return without_credentials(uri).replace("://***@", "://")


def tracking_uri(choice: str | None = None) -> str:
    """Return `choice`, or MLFLOW_TRACKING_URI, or a database in the working folder.

    A database gets an absolute path, since Ray's processes work elsewhere.

    Raises:
        InputError: no store has such an address.
    """
    uri = choice or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}mlflow.db"
    if uri.startswith(SQLITE) and uri != SQLITE:
        return SQLITE + str(Path(uri.removeprefix(SQLITE)).absolute())
    fault = ""
    try:
        parts = urlsplit(uri)
        if parts.scheme.startswith("sqlite") and parts.path in ("", "/"):
            fault = "it names no file"
    except ValueError as error:
        fault = one_line(error)
    if fault:
        raise InputError(
            f"--mlflow or MLFLOW_TRACKING_URI: {without_credentials(uri)} is not the address of a "
            f"store ({fault}); give one such as {SQLITE}mlflow.db or http://localhost:5000"
        )
    return uri


def store_of(folder: Path | None, choice: str) -> tuple[str, Place | None]:
    """Return the address of the store that has a folder, and where in it, if that is known.

    Args:
        choice: an address, or `auto`: where the folder, or else a folder in it, was sent last, or
            else where runs are sent by default.

    Raises:
        InputError: nothing was sent to that database.
    """
    uri, place = tracking_uri(None if choice == "auto" else choice), None
    if folder is not None:
        place = place_of(folder)
        sent = sorted(folder.glob(f"*/{PLACE}"), key=lambda file: file.stat().st_mtime)
        last = place or (place_of(sent[-1].parent) if sent else None)
        # A folder keeps no password, so that of the default store is needed where it is the same.
        if choice == "auto" and last and last.store.rstrip("/") != without_user(uri).rstrip("/"):
            uri = last.store
        if place and place.store.rstrip("/") != without_user(uri).rstrip("/"):
            place = None  # another store numbers it in another way
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).is_file():
        raise InputError(
            f"{uri.removeprefix(SQLITE)} does not exist: nothing was sent to it; `forever sync "
            f"{folder or 'FOLDER'}` sends runs, --mlflow names another store"
        )
    return uri, place


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from sending `folder` during the block.

    Raises:
        InputError: another process has been sending it for a minute, or it cannot be locked.
    """
    lock = FileLock(folder / ".mlflow.lock", timeout=_OTHERS_S, fallback_to_soft=False)
    with writing(folder):
        try:
            lock.acquire()
        except Timeout:
            raise InputError(
                f"another process has been sending {folder} to MLflow for {_OTHERS_S:g} s; "
                "try again when it has ended"
            ) from None
    try:
        yield
    finally:
        lock.release()


def make_database(database: Path) -> None:
    """Create MLflow's database if there is none; others see it with all its tables, or not at all.

    By itself MLflow fails if two processes create one, and tries for minutes if it cannot write.
    """
    from mlflow import MlflowClient

    with writing(database):
        if database.exists():
            database.open("r+b").close()
            return
        database.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(database.with_name(f".{database.name}.lock")):
            if not database.exists():
                unfinished = database.with_name(f".{database.name}.unfinished")
                unfinished.unlink(missing_ok=True)  # of a process that was killed
                MlflowClient(f"{SQLITE}{unfinished}").search_experiments(max_results=1)
                unfinished.replace(database)


class Store:
    """A client of the store at `uri`.

    User and password leave the address, since MLflow prints it; it finds them in the environment.
    """

    def __init__(self, uri: str | None) -> None:
        from mlflow import MlflowClient

        uri = tracking_uri(uri)
        parts = urlsplit(uri)
        if uri.startswith(SQLITE):
            make_database(Path(uri.removeprefix(SQLITE)))
        elif parts.scheme in ("http", "https") and parts.username and parts.password:
            os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
            os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password)
            uri = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self.uri = uri
        self.client = MlflowClient(uri)

    def experiment(self, name: str) -> str:
        """Return the id of the experiment `name`, created if need be.

        Raises:
            InputError: it was deleted.
        """
        from mlflow.exceptions import MlflowException

        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            files: str | None = None  # a server knows where to keep them
            if self.uri.startswith(SQLITE):  # by default MLflow takes the working folder
                database = Path(self.uri.removeprefix(SQLITE))
                files = (database.parent / "mlartifacts" / name).as_uri()
            try:
                return self.client.create_experiment(name, artifact_location=files, tags=_KIND)
            except MlflowException:
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:  # else another process was faster
                    raise
        if experiment.lifecycle_stage == "deleted":
            raise InputError(
                f"the MLflow experiment {name!r} was deleted; restore it by "
                f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
            )
        return experiment.experiment_id

    def run(self, experiment: str, folder: Path, tags: Mapping[str, str], name: str) -> Any:
        """Return MLflow's run of `folder`, created if need be; the caller is `alone`."""
        path = folder / PLACE
        known = read_json(path) if path.is_file() else {}
        if "id" not in known:
            known = {"id": uuid.uuid4().hex}
            write_text(path, json.dumps(known))
        wanted = f"tags.`forever.id` = '{known['id']}'"
        runs = self.client.search_runs([experiment], wanted, max_results=1)
        if runs:
            run = runs[0]
        else:
            name = visible(without_credentials(name))[:_LONGEST_NAME]
            tags = {"forever.id": known["id"], **tags}
            run = self.client.create_run(experiment, begun_ms(folder), tags, run_name=name)
        place = {"id": known["id"], **asdict(self.place(run))}
        if known != place:
            write_text(path, json.dumps(place))
        return run

    def place(self, run: Any) -> Place:
        """Where a run of this store is."""
        return Place(without_user(self.uri), run.info.experiment_id, run.info.run_id)

    def sweep(self, folder: Path) -> Any:
        """Return the parent run of the sweep in `folder`."""
        name = read_manifest(folder)["name"]
        experiment = self.experiment(name)
        with alone(folder):
            return self.run(experiment, folder, {"forever.sweep": name}, name)


def begun_ms(folder: Path) -> int:
    """When a run, or the first run of a sweep, wrote its configuration."""
    configs = [*folder.glob("config.yaml"), *folder.glob("*/config.yaml")]
    return int(1000 * min((file.stat().st_mtime for file in configs), default=time.time()))


def first_line(error: Exception) -> str:
    """What failed and why, without credentials."""
    # Credentials go first: the cut could leave a password without the @ that gives it away.
    lines = without_credentials(str(error)).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
