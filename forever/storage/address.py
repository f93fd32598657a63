"""Where runs and data lie: a folder of this machine, or an address such as s3://bucket/runs.

What lies at an address is worked with in a scratch folder of this machine. Its path says the
address, so any process here finds the same one: <scratch>/storage/s3/bucket/runs.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from forever.errors import InputError
from forever.text import holds_secret

SCRATCH = "FOREVER_SCRATCH"  # in the environment: where scratch folders are made
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^?#]*)(?:\?([^#]*))?")
_NO_FOLDER = ("", ".", "..")


@dataclass(frozen=True)
class Address:
    """A folder in storage; `options` are those of pyarrow's filesystem, such as `region=...`."""

    scheme: str
    parts: tuple[str, ...]  # the bucket or host, and the folders below it
    options: str = ""

    def __str__(self) -> str:
        options = f"?{self.options}" if self.options else ""
        return f"{self.scheme}://{'/'.join(self.parts)}{options}"


def is_address(text: str) -> bool:
    """Whether a text names a folder in storage, and not one of this machine."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and found[1].lower() != "file"


def parse_address(text: str) -> Address:
    """Read an address.

    Raises:
        InputError: it holds a password or a key, names no bucket, or leads out of it.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is no address of a folder; expected is e.g. s3://bucket/runs")
    scheme, place, options = found[1].lower(), found[2].rstrip("/"), found[3] or ""
    user = place.partition("/")[0].rpartition("@")[0]
    if ":" in user or (user and scheme == "s3") or holds_secret(f"?{options}"):
        raise InputError(
            f"an address of {scheme} storage holds a password or a key, which messages and files "
            "would keep; give it by the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS)"
        )
    parts = tuple(place.split("/"))
    if any(part in _NO_FOLDER for part in parts):
        raise InputError(f"{text!r} names no bucket, or leads out of it; e.g. {scheme}://bucket/x")
    return Address(scheme, parts, options)


def local_folder(text: str) -> Path:
    """The folder of this machine for what a user wrote: itself, or the scratch of an address.

    Raises:
        InputError: see `parse_address`.
    """
    if text.lower().startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    if not is_address(text):
        return Path(text)
    address = parse_address(text)
    options = f"?{address.options}" if address.options else ""
    return _scratch() / quote(f"{address.scheme}{options}", safe="") / Path(*address.parts)


def address_of(folder: Path) -> Address | None:
    """The address that a scratch folder stands for; None for any other folder."""
    try:
        first, *parts = folder.absolute().relative_to(_scratch()).parts
    except ValueError:
        return None
    scheme, _, options = unquote(first).partition("?")
    return Address(scheme, tuple(parts), options) if parts else None


def portable(folder: Path) -> str:
    """What another machine knows a folder by: `local_folder` finds it there."""
    address = address_of(folder)
    return str(folder) if address is None else str(address)


def _scratch() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(SCRATCH) or Path(cache, "forever")).absolute() / "storage"
