"""`forever sync`: what MLflow lacks of runs that are there."""

from pathlib import Path

from forever.errors import InputError
from forever.launch.mlflow.mirror import push_run
from forever.launch.mlflow.overview import push_overview
from forever.launch.mlflow.store import Store, first_line, tracking_uri
from forever.launch.mlflow.tracker import end_parent, runs_in
from forever.launch.mlflow.waiting import within
from forever.reading import check_within
from forever.runs.lock import in_progress
from forever.runs.progress import is_run
from forever.sweeps.sweep import MANIFEST
from forever.text import complain, without_credentials

_SYNC_S = 120.0  # the longest that it waits for one run


def sync(folder: Path, uri: str | None = None) -> int:
    """Send what MLflow lacks of a run or a sweep; returns how many runs were sent.

    A run that is in progress is left out, and so is one that cannot be read or that a server which
    answers refuses; they are named.

    Raises:
        InputError: there is no run, one of them could not be sent, or the server fails.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    folder, uri = folder.absolute(), tracking_uri(uri)
    runs = [folder] if is_run(folder) else runs_in(folder)
    if not runs:
        raise InputError(f"{folder} holds no run: there is no config.yaml in it or below")
    sent, unsent = 0, 0
    try:
        within(_SYNC_S, lambda: Store(uri))
        for run in runs:
            if in_progress(run):
                left_out = "is in progress and left out: it sends itself, or sync again after it"
                complain(f"{run} {left_out}")
                continue
            try:
                check_within(folder, run)
                within(_SYNC_S, lambda run=run: push_run(run, uri, over=True))
                sent += 1
            except (InputError, MlflowException) as error:
                if len(runs) == 1:
                    raise
                reason = str(error)
                if isinstance(error, MlflowException):
                    # Does it answer at all?
                    within(_SYNC_S, lambda: Store(uri).client.search_experiments())
                    reason = first_line(error)
                complain(f"{run} is left out: {reason}")
                unsent += 1
        if sent == len(runs) and (folder / MANIFEST).is_file():
            within(_SYNC_S, lambda: end_parent(Store(uri), folder))
        if sent and (folder / MANIFEST).is_file():
            within(_SYNC_S, lambda: push_overview(folder, uri))
    except (MlflowException, SQLAlchemyError, TimeoutError) as error:
        raise InputError(
            f"MLflow at {without_credentials(uri)} fails ({first_line(error)}); "
            "give another --mlflow, or try again when it answers"
        ) from None
    if unsent:
        raise InputError(f"{unsent} of {len(runs)} runs in {folder} could not be sent, see above")
    return sent
