"""What a job takes along: the working directory and this program, as one archive.

The same files make the same bytes, so a cluster that has the archive is not sent it again.
"""

import os
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from forever.errors import InputError
from forever.sweeps.files import shipped_folders
from forever.text import complain

LIMIT = 100 * 2**20  # bytes; the dashboard, through which jobs come, takes less than that
_COMPILED = ["__pycache__/", "*.pyc"]
# What runs leave behind and installations bring, whatever .gitignore says.
_NEVER = [".git/", ".venv/", "venv/", "/runs/", "/mlartifacts/", "/mlruns/", "/mlflow.db"]
_NEVER += ["/.mlflow.db.*", *_COMPILED]
_LARGEST = 5  # files that an error names
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the first moment that an archive can name
_PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class _Ignored:
    """What a .gitignore names, in its own folder and below."""

    folder: Path
    spec: GitIgnoreSpec

    @classmethod
    def of(cls, folder: Path, lines: Iterable[str]) -> "_Ignored":
        """Such a file, by its lines."""
        return cls(folder, GitIgnoreSpec.from_lines(lines))

    def names(self, path: Path) -> bool:
        """Whether it names a file, or a folder and all that is in it."""
        relative = path.relative_to(self.folder).as_posix()
        return self.spec.match_file(f"{relative}/" if path.is_dir() else relative)


def pack(folder: Path, archive: Path, limit: int = LIMIT) -> None:
    """Write into `archive` what a job needs of a working directory, and this program's own code.

    What a .gitignore names is left out, and `.git`, `.venv`, `runs` and `mlartifacts`. So are links
    to folders, which may lead anywhere; they are named on stderr. A checkout of this program has
    the code in it already.

    Raises:
        InputError: the archive has `limit` bytes or more; the largest files are named.
    """
    files = travelling(folder)
    if folder.resolve() != _PACKAGE.parent:
        files |= _program()
    linked = [name for name in sorted(files) if files[name].is_dir()]
    if linked:
        for name in linked:
            del files[name]
        remedy = "put copies in their place, or name them in .gitignore"
        complain(f"linked folders do not travel with the job: {', '.join(linked)}; {remedy}")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            target.writestr(entry, files[name].read_bytes())
    if archive.stat().st_size >= limit:
        raise too_large(folder, archive, f"a cluster takes {_mib(limit)}")


def travelling(folder: Path) -> dict[str, Path]:
    """The files of a working directory that a job takes along, and links to folders, by name."""
    paths = _files(folder, [_Ignored.of(folder, _NEVER)])
    return {path.relative_to(folder).as_posix(): path for path in paths}


def too_large(folder: Path, archive: Path, rule: str) -> InputError:
    """The error where a folder's archive is larger than the rule allows."""
    size = _mib(archive.stat().st_size)
    return InputError(
        f"{folder} makes an archive of {size}, and {rule}; name in .gitignore what runs do not "
        f"need; the largest files: {_largest(archive)}"
    )


def _files(folder: Path, above: list[_Ignored]) -> Iterator[Path]:
    """The files of a folder and its folders that nothing leaves out, and links to folders."""
    ignored, own = above, folder / ".gitignore"
    if own.is_file():
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
        ignored = [*above, _Ignored.of(folder, lines)]
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if any(each.names(path) for each in ignored):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(path, ignored)
        elif entry.is_file() or entry.is_dir():
            yield path


def _program() -> dict[str, Path]:
    """The files of this program and its sweeps, by where an installed copy has them."""
    files = _files(_PACKAGE, [_Ignored.of(_PACKAGE, _COMPILED)])
    package = {path.relative_to(_PACKAGE.parent).as_posix(): path for path in files}
    for sweeps in shipped_folders():
        for path in sweeps.glob("*.yaml"):
            package[f"{_PACKAGE.name}/sweeps/shipped/{sweeps.name}/{path.name}"] = path
    return package


def _largest(archive: Path) -> str:
    """The largest files of an archive with their sizes, in one line."""
    with zipfile.ZipFile(archive) as content:
        sizes = {entry.filename: entry.file_size for entry in content.infolist()}
    names = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_LARGEST]
    return ", ".join(f"{name} ({_mib(sizes[name])})" for name in names)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
