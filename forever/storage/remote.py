"""A folder in storage, by any filesystem that pyarrow has. Objects are replaced as a whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from forever.errors import InputError, one_line
from forever.files import make_folder, writing
from forever.storage.address import CREDENTIALS, Address

_PIECE = 2**23  # bytes that are in memory at once
_CONNECT_S, _ANSWER_S = 5, 10  # three times; S3 would be asked for hours by default
_REGIONS = {"AWS_REGION", "AWS_DEFAULT_REGION"}
_OBJECTS = ("s3", "gs", "gcs", "abfs", "abfss")  # these have no folders that must be made
_REFUSED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE", "UNRECOGNIZED_CLIENT", "TOKEN")


class Stamp(NamedTuple):
    """What tells one content of an object from the next."""

    size: int
    time_ns: int


class Remote:
    """The folder at an address; names of its files are relative to it, with slashes.

    What fails raises OSError; see `reaching`.
    """

    def __init__(self, address: Address) -> None:
        self.address = address

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """Pyarrow's filesystem, and the folder in its words."""
        from pyarrow import fs  # half a second, for those who need it

        address, options = self.address, self.address.options
        if address.scheme in ("gs", "gcs"):  # a storage that is away is known to be in seconds
            options = f"{options}&retry_limit_seconds=10" if options else "?retry_limit_seconds=10"
        try:
            if address.scheme == "s3":
                system, base = _s3(address), address.parts[0]
            else:
                root = f"{address.scheme}://{address.parts[0]}"
                system, base = fs.FileSystem.from_uri(f"{root}{options}")
        except (ValueError, TypeError) as error:  # a scheme or an option that it does not know
            raise InputError(f"{address}: {one_line(error)}; e.g. s3://bucket/runs") from None
        return system, "/".join((base.rstrip("/"), *address.parts[1:]))

    def _path(self, name: str) -> str:
        return f"{self._place[1]}/{name}"

    def list(self) -> dict[str, Stamp]:
        """All files in the folder and below."""
        from pyarrow import fs

        system, base = self._place
        found = system.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        stamps: dict[str, Stamp] = {}
        for info in found:
            if info.type == fs.FileType.File:
                name = info.path.removeprefix(base).lstrip("/")
                stamps[name] = Stamp(info.size, info.mtime_ns or 0)
        return stamps

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if there is none."""
        try:
            with self._place[0].open_input_stream(self._path(name)) as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Put a content in the place of a file."""
        with self._replacing(name) as stream:
            stream.write(content)

    def upload(self, name: str, path: Path) -> None:
        """Put a file of this machine in the place of one."""
        with path.open("rb") as file, self._replacing(name) as stream:
            while piece := file.read(_PIECE):
                stream.write(piece)

    def _replacing(self, name: str) -> Any:
        system, path = self._place[0], self._path(name)
        if self.address.scheme not in _OBJECTS:
            system.create_dir(path.rpartition("/")[0])
        return system.open_output_stream(path)

    def download(self, name: str, path: Path) -> None:
        """Put a file in the place of one of this machine; FileNotFoundError if it is gone.

        Raises:
            WriteError: this machine cannot take it.
        """
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with self._place[0].open_input_stream(self._path(name)) as stream:
            piece = stream.read(_PIECE)
            with writing(path):
                make_folder(path.parent)
                file = temporary.open("wb")
            try:
                while piece:
                    with writing(path):
                        file.write(piece)
                    piece = stream.read(_PIECE)
                with writing(path):
                    file.close()
                    temporary.replace(path)
            finally:
                with suppress(OSError):  # of a full disk
                    file.close()
                temporary.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self._place[0].delete_file(self._path(name))


def _s3(address: Address) -> Any:
    from pyarrow import fs

    options: dict[str, Any] = dict(parse_qsl(address.options.removeprefix("?")))
    server = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if server and "endpoint_override" not in options:
        scheme, _, options["endpoint_override"] = server.rpartition("://")
        options["scheme"] = scheme or "https"
    if not {"region", "endpoint_override"} & options.keys() and not _REGIONS & os.environ.keys():
        options["region"] = fs.resolve_s3_region(address.parts[0])
    return fs.S3FileSystem(
        **options,
        connect_timeout=_CONNECT_S,
        request_timeout=_ANSWER_S,
        allow_delayed_open=True,  # a small object is one request
    )


@contextmanager
def reaching(address: Address) -> Iterator[Remote]:
    """Use a folder in storage that is needed now; what is wrong with it is an InputError."""
    try:
        yield Remote(address)
    except OSError as error:
        raise InputError(f"{address} cannot be used ({reason(error)}); {_remedy(error)}") from None


def reason(error: BaseException) -> str:
    """What a filesystem says of a failure, shortened."""
    text = one_line(error).partition(" (Request ID")[0].partition("; Details")[0]
    return text[max(text.find("AWS Error"), 0) :][:200]


def _remedy(error: OSError) -> str:
    text = str(error).upper()
    if "NO_SUCH_BUCKET" in text or "BUCKET DOES NOT EXIST" in text:
        return "make that bucket, or give another address"
    if any(word in text for word in _REFUSED):
        return f"give credentials that may read and write there {CREDENTIALS}"
    return "try again when it answers; the same command goes on"
