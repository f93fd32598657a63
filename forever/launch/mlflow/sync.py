"""`forever sync`: what MLflow lacks of runs on disk."""

from pathlib import Path

from forever.errors import InputError
from forever.launch.mlflow.mirror import push_run
from forever.launch.mlflow.store import Store, first_line, tracking_uri
from forever.launch.mlflow.sweep import end_parent, push_overview, runs_in
from forever.launch.mlflow.tracker import within
from forever.runs.lock import in_progress
from forever.runs.progress import is_run
from forever.sweeps.sweep import MANIFEST
from forever.text import complain, without_credentials

_SYNC_S = 120.0  # the longest that it waits for one run


def sync(folder: Path, uri: str | None = None) -> int:
    """Send what MLflow lacks of a run or a sweep; returns how many runs were sent.

    A run that is in progress is left out, and so is one that cannot be read or that the server
    refuses; they are named.

    Raises:
        InputError: there is no run, one of them could not be sent, or the server fails.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    folder, uri = folder.absolute(), tracking_uri(uri)
    runs = [folder] if is_run(folder) else runs_in(folder)
    if not runs:
        raise InputError(f"{folder} holds no run: it has no config.yaml, nor has a folder in it")
    sent, unsent = 0, 0
    try:
        # Does the server answer at all?
        within(_SYNC_S, lambda: Store(uri).client.search_experiments(max_results=1))
        for run in runs:
            if in_progress(run):
                complain(f"{run} is in progress and left out: it sends itself, or sync again later")
                continue
            try:
                within(_SYNC_S, lambda run=run: push_run(run, uri, over=True))
                sent += 1
            except (InputError, MlflowException) as error:
                if len(runs) == 1:
                    raise
                reason = error if isinstance(error, InputError) else first_line(error)
                complain(f"{run} is left out: {reason}")
                unsent += 1
        if (folder / MANIFEST).is_file():
            if sent == len(runs):
                within(_SYNC_S, lambda: end_parent(Store(uri), folder))
            if sent:
                within(_SYNC_S, lambda: push_overview(folder, uri))
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
        raise InputError(
            f"MLflow at {without_credentials(uri)} fails ({first_line(error)}); "
            "give another --mlflow, or try again when it answers"
        ) from None
    if unsent:
        raise InputError(f"{unsent} of {len(runs)} runs in {folder} could not be sent, see above")
    return sent
