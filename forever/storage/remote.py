"""A folder in storage, by any filesystem that pyarrow has, and what is downloaded from it.

Objects are replaced as a whole. A file that is downloaded keeps the time at which it was stored:
as long as size and time are the same, it is not downloaded again.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any, NamedTuple
from urllib.parse import parse_qsl

from filelock import FileLock

from forever.errors import InputError, one_line
from forever.files import make_folder, writing
from forever.storage.address import CREDENTIALS, Address, address_of

HIDDEN = ".storage"  # what a folder keeps about its address
_AT_ONCE = 8  # downloads
_PIECE = 2**23  # bytes that are in memory at once
_CONNECT_S, _ANSWER_S = 5, 10  # three times; S3 would be retried for hours by default
_REGIONS = {"AWS_REGION", "AWS_DEFAULT_REGION"}
_OBJECTS = ("s3", "gs", "gcs", "abfs", "abfss")  # these have no folders that must be made
_REFUSED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE", "UNRECOGNIZED_CLIENT", "TOKEN")


class Stamp(NamedTuple):
    """What tells one content of a file from the next."""

    size: int
    time_ns: int

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        """Return the stamp of a file of this machine."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns)


class Remote:
    """The folder at an address; names of its files are relative to it, with slashes.

    What fails raises OSError; see `reaching`.
    """

    def __init__(self, address: Address) -> None:
        self.address = address

    def _path(self, name: str = "") -> tuple[Any, str]:
        """Return pyarrow's filesystem, and what a file, or the folder, is called there."""
        server = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        scheme, parts, options = self.address.scheme, self.address.parts, self.address.options
        system, base = _filesystem(Address(scheme, parts[:1], options), server)
        return system, "/".join(filter(None, (base.rstrip("/"), *parts[1:], name)))

    def list(self) -> dict[str, Stamp]:
        """List all files in the folder and below that are not hidden."""
        from pyarrow import fs

        system, base = self._path()
        stamps: dict[str, Stamp] = {}
        selector = fs.FileSelector(base, recursive=True, allow_not_found=True)
        for info in system.get_file_info(selector):
            name = info.path.removeprefix(base).lstrip("/")
            if info.type == fs.FileType.File and _visible(name):
                stamps[name] = Stamp(info.size, info.mtime_ns or 0)
        return stamps

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        system, path = self._path(name)
        try:
            with system.open_input_stream(path) as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def upload(self, name: str, file: IO[bytes]) -> None:
        """Replace a file by what is left of an open one."""
        system, path = self._path(name)
        if self.address.scheme not in _OBJECTS:
            system.create_dir(path.rpartition("/")[0])
        with system.open_output_stream(path) as stream:
            copyfileobj(file, stream, _PIECE)

    def download(self, name: str, stamp: Stamp, path: Path) -> None:
        """Replace a file of this machine by one with this stamp.

        Raises:
            WriteError: this machine cannot take it.
        """
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        system, source = self._path(name)
        try:
            with system.open_input_stream(source) as stream:
                with writing(path):
                    make_folder(path.parent)
                    file = temporary.open("wb")
                with file:
                    while piece := stream.read(_PIECE):
                        with writing(path):
                            file.write(piece)
                            file.flush()
            with writing(path):
                os.utime(temporary, ns=(stamp.time_ns, stamp.time_ns))
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        system, path = self._path(name)
        with suppress(FileNotFoundError):
            system.delete_file(path)


@cache
def _filesystem(root: Address, server: str | None) -> tuple[Any, str]:
    """Return pyarrow's filesystem, and what it calls a bucket."""
    from pyarrow import fs  # half a second, for those who need it

    options = root.options
    if root.scheme in ("gs", "gcs"):  # a storage that is away is known to be in seconds
        options = f"{options}&retry_limit_seconds=10" if options else "?retry_limit_seconds=10"
    try:
        if root.scheme != "s3":
            return fs.FileSystem.from_uri(f"{root.scheme}://{root.parts[0]}{options}")
        return _s3(root, server), root.parts[0]
    except (ValueError, TypeError) as error:  # a scheme or an option that it does not know
        raise InputError(f"{root}: {one_line(error)}; e.g. s3://bucket/runs") from None


def _s3(root: Address, server: str | None) -> Any:
    from pyarrow import fs

    options: dict[str, Any] = dict(parse_qsl(root.options.removeprefix("?")))
    if server and "endpoint_override" not in options:
        scheme, _, options["endpoint_override"] = server.rpartition("://")
        options["scheme"] = scheme or "https"
    if not {"region", "endpoint_override"} & options.keys() and not _REGIONS & os.environ.keys():
        options["region"] = fs.resolve_s3_region(root.parts[0])
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
    """Return what a filesystem says of a failure, shortened."""
    text = one_line(error).partition(" (Request ID")[0].partition("; Details")[0]
    return text[max(text.find("AWS Error"), 0) :][:200]


def _remedy(error: OSError) -> str:
    text = str(error).upper()
    if "NO_SUCH_BUCKET" in text or "BUCKET DOES NOT EXIST" in text:
        return "make that bucket, or give another address"
    if any(word in text for word in _REFUSED):
        return f"give credentials that may read and write there {CREDENTIALS}"
    return "try again when it answers; the same command resumes"


# ---- folders


def local_files(folder: Path, chosen: Callable[[str], bool]) -> dict[str, Path]:
    """List the chosen files in a folder that are neither hidden nor links."""
    files: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            name = path.relative_to(folder).as_posix()
            if chosen(name) and not path.is_symlink():
                files[name] = path
    return files


def download_all(
    remote: Remote, folder: Path, there: Mapping[str, Stamp], chosen: Callable[[str], bool]
) -> None:
    """Make the chosen files of a folder those that are `there`.

    Raises:
        OSError: the storage fails.
        WriteError: this machine has no room for it.
    """
    here: dict[str, Stamp] = {}
    for name, path in local_files(folder, chosen).items():
        here[name] = Stamp.of(path)
        if name not in there:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # the folder has other files
                path.parent.rmdir()

    def download(name: str) -> None:
        with suppress(FileNotFoundError):  # the run has removed it meanwhile
            remote.download(name, there[name], folder / name)

    new = [name for name in there if chosen(name) and here.get(name) != there[name]]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(download, new))


def fetch(folder: Path, endings: tuple[str, ...] = ("",)) -> bool:
    """Download the data at a scratch folder's address; return whether there are any files.

    Only files with one of these endings are downloaded. For another folder nothing is done.

    Raises:
        InputError: the storage cannot be used, or this machine has no room for the data.
    """
    address = address_of(folder)
    if address is None:
        return folder.is_dir()
    with reaching(address) as remote:
        there = {name: stamp for name, stamp in remote.list().items() if name.endswith(endings)}
        if there or folder.is_dir():
            with writing(folder):
                make_folder(folder / HIDDEN)
            with FileLock(folder / HIDDEN / "lock", fallback_to_soft=False):
                download_all(remote, folder, there, lambda name: name.endswith(endings))
    return bool(there)


def _visible(name: str) -> bool:
    return not any(part.startswith(".") for part in name.split("/"))
