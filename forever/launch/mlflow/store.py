"""MLflow's store: a client of it, and what several processes must not do at the same time.

A run is found again by a tag with the identity of its folder (mlflow.json in it, which also says
where it was sent last). So a folder can be copied from a cluster and sent from elsewhere, and one
configuration in two folders is two runs.
"""

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from filelock import FileLock, Timeout

from forever.errors import InputError, one_line
from forever.files import WriteError, write_sealed
from forever.launch.mlflow.place import PLACE, Place, read_sent, without_user
from forever.sweeps.sweep import read_manifest
from forever.text import complain, visible, without_credentials

_SQLITE = "sqlite:///"
_LONGEST_NAME = 250  # of a run, as Postgres takes it
# By it the pages of an experiment are those of training, and not those of chats and agents.
_KIND = {"mlflow.experimentKind": "custom_model_development"}
_OTHERS_S = 60.0  # how long another process may send a folder before this one gives up

# MLflow is loaded after this. By default a dead server would hold up each call for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
# A sweep ends with an address of its own.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")


def tracking_uri(choice: str | None = None) -> str:
    """Return `choice`, or MLFLOW_TRACKING_URI, or a database in the working folder.

    A database gets an absolute path, since Ray's processes work elsewhere.

    Raises:
        InputError: no store has such an address.
    """
    uri = choice or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}mlflow.db"
    if uri.startswith(_SQLITE) and uri != _SQLITE:
        return _SQLITE + str(Path(uri.removeprefix(_SQLITE)).absolute())
    fault = ""
    try:
        parts = urlsplit(uri)
        if parts.scheme.startswith("sqlite") and parts.path in ("", "/"):
            fault = "it names no file"
    except ValueError as error:
        fault = one_line(error)
    if fault:
        raise InputError(
            f"--mlflow or MLFLOW_TRACKING_URI: {without_credentials(uri)} is no address of a store "
            f"({fault}); give one such as {_SQLITE}mlflow.db or http://localhost:5000"
        )
    return uri


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from sending `folder` during the block, on all file systems with locks.

    Raises:
        InputError: another process has been sending it for a minute.
    """
    lock = FileLock(folder / ".mlflow.lock", timeout=_OTHERS_S, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"another process has been sending {folder} to MLflow for {_OTHERS_S:g} s; "
            "try again when it has ended"
        ) from None
    except OSError as error:  # a file system without locks, or a folder that only may be read
        _say_unlocked(folder, str(error))
    try:
        yield
    finally:
        lock.release()


@cache
def _say_unlocked(folder: Path, problem: str) -> None:
    complain(f"{folder} cannot be locked ({problem}); send it from one process at a time")


def make_database(database: Path) -> None:
    """Make MLflow's database if there is none; others see it with all its tables, or not at all.

    MLflow itself would make one table after the other, and fail if another process did so, too, or
    had been killed meanwhile. On a file that cannot be written it would try for minutes.

    Raises:
        InputError: it cannot be written.
    """
    from mlflow import MlflowClient

    try:
        if database.exists():
            database.open("r+b").close()
            return
        database.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(database.with_name(f".{database.name}.lock")):
            if not database.exists():
                unfinished = database.with_name(f".{database.name}.unfinished")
                unfinished.unlink(missing_ok=True)  # of a process that was killed
                MlflowClient(f"{_SQLITE}{unfinished}").search_experiments(max_results=1)
                unfinished.replace(database)
    except OSError as error:
        raise InputError(
            f"MLflow's database {database} cannot be written ({error.strerror}); "
            "give another --mlflow, or --mlflow off"
        ) from None


class Store:
    """A client of the store at `uri`.

    User and password leave the address, since MLflow prints it; it finds them in the environment.

    Raises:
        InputError: a database that cannot be written, or for which no driver is installed.
    """

    def __init__(self, uri: str | None) -> None:
        from mlflow import MlflowClient

        uri = tracking_uri(uri)
        parts = urlsplit(uri)
        if uri.startswith(_SQLITE):
            make_database(Path(uri.removeprefix(_SQLITE)))
        elif parts.scheme in ("http", "https") and parts.username and parts.password:
            os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
            os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password)
            uri = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self.uri = uri
        try:
            self.client = MlflowClient(uri)
        except ImportError as error:  # a database's driver, which does not come with MLflow
            raise InputError(
                f"MLflow at {without_credentials(uri)} needs the package {error.name}, which is "
                "not here; install it, or give another --mlflow"
            ) from None

    def experiment(self, name: str) -> str:
        """The id of the experiment `name`, created if need be; InputError if it was deleted."""
        from mlflow.exceptions import MlflowException

        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            files: str | None = None  # a server knows its own place
            if self.uri.startswith(_SQLITE):  # MLflow would take the working folder
                database = Path(self.uri.removeprefix(_SQLITE))
                files = (database.parent / "mlartifacts" / name).as_uri()
            try:
                return self.client.create_experiment(name, artifact_location=files, tags=_KIND)
            except MlflowException:
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:  # else another process was faster
                    raise
        if experiment.lifecycle_stage == "deleted":
            raise InputError(
                f"the MLflow experiment {name!r} was deleted; bring it back by "
                f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
            )
        return experiment.experiment_id

    def run(self, experiment: str, folder: Path, tags: Mapping[str, str], name: str) -> Any:
        """MLflow's run that stands for `folder`, created if need be; the caller is `alone`."""
        path = folder / PLACE
        if not path.is_file():
            write_sealed(path, {"id": uuid.uuid4().hex})
        known = read_sent(folder)
        runs = self.client.search_runs(
            [experiment], f"tags.`forever.id` = '{known['id']}'", max_results=1
        )
        name = visible(without_credentials(name))[:_LONGEST_NAME]
        if not runs:
            tags = {"forever.id": known["id"], **tags}
            run = self.client.create_run(experiment, begun_ms(folder), tags, run_name=name)
        else:
            run = runs[0]
            if run.info.run_name == folder.name != name:  # as earlier releases called it
                self.client.update_run(run.info.run_id, name=name)
        place = Place(without_user(self.uri), experiment, run.info.run_id)
        if vars(place).items() - known.items():
            with suppress(WriteError):  # a folder that only may be read was sent from elsewhere
                write_sealed(path, {"id": known["id"], **vars(place)})
        return run

    def sweep(self, folder: Path) -> Any:
        """The parent run of the sweep in `folder`."""
        name = read_manifest(folder)["name"]
        experiment = self.experiment(name)
        with alone(folder):
            return self.run(experiment, folder, {"forever.sweep": name}, name)


def begun_ms(folder: Path) -> int:
    """When a run, or the first run of a sweep, wrote its configuration."""
    times: list[float] = []
    for config in (*folder.glob("config.yaml"), *folder.glob("*/config.yaml")):
        times.append(config.stat().st_mtime)
    return int(1000 * min(times, default=time.time()))


def first_line(error: Exception) -> str:
    """What failed and why, without credentials."""
    # Credentials go first: the cut could leave a password without the @ that gives it away.
    lines = without_credentials(str(error)).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
