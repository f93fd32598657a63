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
CREDENTIALS = (
    "by the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, "
    "GOOGLE_APPLICATION_CREDENTIALS)"
)
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^?]*)(\?.*)?")


@dataclass(frozen=True)
class Address:
    """A folder in storage; `options` are those of pyarrow's filesystem, such as `?region=...`."""

    scheme: str
    parts: tuple[str, ...]  # the bucket or host, and the folders below it
    options: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join(self.parts)}{self.options}"


def is_address(text: str) -> bool:
    """Whether a text names a folder in storage, and not one of this machine."""
    return _ADDRESS.fullmatch(text) is not None and not _is_file(text)


def from_anywhere(text: str) -> str:
    """A folder or an address that a user wrote, so that it means the same in any folder."""
    return text if is_address(text) else str(local_folder(text).expanduser().absolute())


def local_folder(text: str) -> Path:
    """The folder of this machine for what a user wrote: itself, or the scratch of an address.

    Raises:
        InputError: the address holds a password or a key, names no bucket, or leads out of it.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return Path(text)
    if _is_file(text):
        return Path(unquote(urlsplit(text).path))
    try:
        text.encode()
        unquote(text, errors="strict").encode()
    except UnicodeError:
        raise InputError(f"{text!r} is not UTF-8; give an address that is") from None
    scheme, place, options = found[1].lower(), found[2].rstrip("/"), found[3] or ""
    user = place.partition("/")[0].rpartition("@")[0]
    if ":" in user or (user and scheme == "s3") or holds_secret(options):
        raise InputError(
            f"an address of {scheme} storage holds a password or a key, which messages and files "
            f"would keep; give it {CREDENTIALS}"
        )
    parts = place.split("/")
    if {"", ".", ".."} & {*parts}:
        raise InputError(f"{text!r} names no bucket, or leads out of it; e.g. {scheme}://bucket/x")
    return _scratch() / quote(f"{scheme}{options}", safe="") / Path(*parts)


def _is_file(text: str) -> bool:
    return text.lower().startswith("file://")


def address_of(folder: Path) -> Address | None:
    """The address that a scratch folder stands for; None for any other folder."""
    try:
        first, *parts = folder.absolute().relative_to(_scratch()).parts
    except ValueError:
        return None
    scheme, mark, options = unquote(first).partition("?")
    return Address(scheme, tuple(parts), f"{mark}{options}") if parts else None


def portable(folder: Path) -> str:
    """What another machine knows a folder by: `local_folder` finds it there."""
    address = address_of(folder)
    return str(folder) if address is None else str(address)


def _scratch() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(SCRATCH) or Path(cache, "forever")).absolute() / "storage"
