"""Where a folder was sent: MLflow's store, and the addresses of pages there.

The file mlflow.json of a run's or a sweep's folder says it, beside the folder's identity. Nobody
need reach the store to know an address.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from forever.errors import InputError
from forever.files import Shape, read_sealed, shaped
from forever.sweeps.sweep import MANIFEST
from forever.text import complain, without_credentials

PLACE = "mlflow.json"
LOCAL = "http://127.0.0.1"  # where `forever ui` shows the pages of a store without a server
PORT = 5000
_MODE = "workflowType=machine_learning"  # pages of training; MLflow's usual ones are of chats


class Sent(Shape):
    """Fields of mlflow.json; earlier releases did not write where the folder was sent."""

    id: str = Field(pattern="^[0-9a-f]{1,64}$")
    store: str = ""
    experiment: str = ""
    run: str = ""


@dataclass(frozen=True)
class Place:
    """A run in a store.

    Attributes:
        store: the store's address, without user and password.
        experiment: the experiment's number.
        run: the identity that MLflow gave to the run.
    """

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

    def comparison(self, server: str) -> str:
        """The address of the page that compares the trials of a sweep (see comparison.py)."""
        choice = f"compareRunsMode=CHART&viewStateShareKey={self.run}"
        return f"{server}/#/experiments/{self.experiment}/runs?{_MODE}&{choice}"

    def artifact(self, server: str, name: str) -> str:
        """The address of the page that shows a file of the run."""
        path = f"experiments/{self.experiment}/runs/{self.run}/artifacts/{name}"
        return f"{server}/#/{path}?{_MODE}"


def read_sent(folder: Path) -> dict[str, Any]:
    """The identity of a run's or a sweep's folder and where it was sent; InputError if damaged."""
    return shaped(folder / PLACE, read_sealed(folder / PLACE), Sent)


def place_of(folder: Path) -> Place | None:
    """Where a run's or a sweep's folder was sent last; None if it never was."""
    if not (folder / PLACE).is_file():
        return None
    known = read_sent(folder)
    if not all(known.get(key) for key in ("store", "experiment", "run")):  # of an earlier release
        return None
    return Place(known["store"], known["experiment"], known["run"])


def best_page(folder: Path, place: Place, server: str) -> str:
    """The page that shows a folder best: a sweep's comparison, or a run's own."""
    if (folder / MANIFEST).is_file():
        return place.comparison(server)
    return place.page(server)


def sent_below(folder: Path) -> Iterator[Place]:
    """Where the folders in `folder` were sent, those that were sent last first."""
    notes = sorted(folder.glob(f"*/{PLACE}"), key=lambda note: -note.stat().st_mtime)
    for note in notes:
        try:
            place = place_of(note.parent)
        except InputError as error:
            complain(f"{note.parent} is left out: {error}")
            continue
        if place is not None:
            yield place


def without_user(uri: str) -> str:
    """An address of a store without user, password and other secrets."""
    return without_credentials(uri).replace("://***@", "://")


def local_address() -> str:
    """Where `forever ui` shows a store's pages unless it is told otherwise."""
    return f"{LOCAL}:{PORT}"
