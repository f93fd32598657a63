"""Finding things in an MLflow store: the client, experiments, and the run that stands for a folder.

Runs are found again by a tag with the identity of their folder (mlflow.json in it), so a folder can
be copied from a cluster and sent from elsewhere, and two runs of one configuration in two folders
stay two runs.
"""

import json
import logging
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from forever.errors import InputError
from forever.runs.directory import write_text
from forever.sweeps.sweep import read_manifest

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def connect(uri: str) -> "MlflowClient":
    """A client that gives up after seconds. MLflow's own default lets a dead server hold up each
    call for minutes.

    User and password leave the address, since MLflow prints it and puts it into its errors.

    Raises:
        InputError: MLflow is not installed.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for chatty in ("alembic", "mlflow.store.db.utils", "mlflow.tracking.fluent"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise InputError("MLflow is not installed; pip install 'forever-cl[mlflow]'") from None
    return MlflowClient(_into_environment(uri))


def _into_environment(uri: str) -> str:
    """The address of a server without user and password; MLflow finds them in the environment."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.username or not parts.password:
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def identity(folder: Path) -> str:
    """What tells this folder's run from all others, made when first asked for."""
    path = folder / "mlflow.json"
    if not path.is_file():
        write_text(path, json.dumps({"id": uuid.uuid4().hex}) + "\n")
    return json.loads(path.read_text(encoding="utf-8"))["id"]


def experiment(client: "MlflowClient", name: str) -> str:
    """The id of the experiment `name`, created if need be.

    Raises:
        InputError: it was deleted, which leaves its name taken.
    """
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(
                name, artifact_location=_artifacts(client.tracking_uri, name)
            )
        except Exception:  # another process may have been faster; if not, this is a real error
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise InputError(
            f"the MLflow experiment {name!r} was deleted; bring it back by `mlflow experiments restore --experiment-id "
            f"{found.experiment_id}`, or remove it for good by `mlflow gc`"
        )
    return found.experiment_id


def _artifacts(uri: str, name: str) -> str | None:
    """Files go beside a local database; a server knows better, and otherwise MLflow would use the
    working folder."""
    if not uri.startswith("sqlite:///"):
        return None
    return (Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts" / name).absolute().as_uri()


def find_or_create(
    client: "MlflowClient", experiment_id: str, folder: Path, name: str, tags: Mapping[str, str]
) -> "Run":
    """The run that stands for `folder`."""
    mark = identity(folder)
    found = client.search_runs([experiment_id], f"tags.`forever.id` = '{mark}'", max_results=1)
    if found:
        return found[0]
    begun = folder.stat().st_ctime
    all_tags = {"forever.id": mark, **tags}
    return client.create_run(
        experiment_id, start_time=int(begun * 1000), tags=all_tags, run_name=name
    )


def sweep_run(client: "MlflowClient", folder: Path) -> "Run":
    """The parent run of the sweep in `folder`.

    Raises:
        InputError: there is no sweep in it.
    """
    name = read_manifest(folder)["name"]
    return find_or_create(client, experiment(client, name), folder, name, {"forever.sweep": name})
