"""What of a folder is copied to its mirror and back, and in which order.

A run can resume from a mirror at any moment. So what others count on comes first: answers and the
journal before the checkpoint that has their digests, a checkpoint's manifest after its files, the
configuration, without which a run has not begun, after all these, and the result last. Whoever
reads a mirror that is being written takes them the other way round.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from forever.files import writing
from forever.storage.remote import Remote, Stamp

CONFIG, RESULT = "config.yaml", "result.json"  # of a run: see `runs.directory`
MANIFEST = "sweep.json"  # of a sweep
HIDDEN = ".mirror"  # what a folder keeps about its mirror
_JOURNAL = ("steps.jsonl", "events.jsonl")
_MANIFEST = "manifest.json"
_CHECKPOINTS = "checkpoints/"
_WEIGHTS = (_CHECKPOINTS, "stages/")
_LARGE = (*_WEIGHTS, "adapter/", "model/")  # these are not read into memory
_CHECKPOINT = re.compile(r"(checkpoints/[^/]+)/")
_KEPT = 2  # checkpoints in a mirror
Chosen = Callable[[str], bool]


def visible(name: str) -> bool:
    """Whether a file is not hidden."""
    return not any(part.startswith(".") for part in name.split("/"))


def of_run(name: str) -> bool:
    """Whether a file belongs to a run."""
    return visible(name)


def of_sweep(name: str) -> bool:
    """Whether a file belongs to a sweep itself, and not to one of its runs."""
    return of_run(name) and ("/" not in name or name.startswith("figures/"))


def readable(name: str) -> bool:
    """Whether a file of a run is needed by those who look at it and do not go on with it."""
    return of_run(name) and not name.startswith(_WEIGHTS)


def turn(name: str) -> int:
    """The place of a file in the order in which files are sent."""
    if name in _JOURNAL:
        return 2
    if name.startswith(_WEIGHTS):
        return 4 if name.endswith(_MANIFEST) else 3
    if name.startswith(_LARGE):
        return 5
    return {CONFIG: 6, RESULT: 7}.get(name, 1)


def local_files(folder: Path, chosen: Chosen) -> dict[str, Stamp]:
    """The files of a folder that are chosen; of links there are none."""
    stamps: dict[str, Stamp] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            relative = path.relative_to(folder).as_posix()
            if not chosen(relative) or path.is_symlink():
                continue
            try:
                stamps[relative] = _stamp(path)
            except FileNotFoundError:  # it went away meanwhile
                continue
    return stamps


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return Stamp(status.st_size, status.st_mtime_ns)


# ---- there


def push(folder: Path, remote: Remote, chosen: Chosen, sent: dict[str, Stamp]) -> None:
    """Send what is new in a folder, and remove what is gone there.

    Args:
        sent: what the mirror has, by the stamps of the files here; it is brought up to date.
    """
    # What is written last is looked for first: then all that it counts on is here, too.
    early = {name for name in (CONFIG, RESULT) if not (folder / name).is_file()}
    with _held(folder, sent) as checkpoint:
        stamps = local_files(folder, lambda name: chosen(name) and name not in early)
        new = [name for name, stamp in stamps.items() if sent.get(name) != stamp]
        small, large = dict[str, bytes](), dict(checkpoint)
        for name in new:
            if not name.startswith(_LARGE):
                _read(folder, name, small)
            elif not name.startswith(_CHECKPOINTS):
                large[name] = folder / name
        for name in sorted([*small, *large], key=turn):
            if name in small:
                remote.write(name, small[name])
            elif not _upload(remote, name, large[name]):
                continue
            # The checkpoint's files are those that are held, whatever has taken their place.
            sent[name] = _stamp(checkpoint[name]) if name in checkpoint else stamps[name]
    for name in sorted(_gone(stamps, sent), key=turn, reverse=True):  # a manifest before its files
        remote.delete(name)
        sent.pop(name)


@contextmanager
def _held(folder: Path, sent: Mapping[str, Stamp]) -> Iterator[dict[str, Path]]:
    """Hold the files of the newest checkpoint against being replaced, if the mirror lacks it."""
    place = folder / HIDDEN / "checkpoint"
    shutil.rmtree(place, ignore_errors=True)
    manifests = sorted((folder / "checkpoints").glob(f"[!.]*/{_MANIFEST}"))
    files: dict[str, Path] = {}
    try:
        if manifests and _is_new(manifests[-1], sent):
            place.mkdir(parents=True)
            for path in manifests[-1].parent.iterdir():
                _link(path, place / path.name)
                files[f"checkpoints/{path.parent.name}/{path.name}"] = place / path.name
    except FileNotFoundError:  # replaced by one that the next look finds
        files = {}
    try:
        yield files
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _link(path: Path, other: Path) -> None:
    """Give a file another name; where the file system has no such thing, copy it."""
    try:
        os.link(path, other)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(path, other)


def _is_new(manifest: Path, sent: Mapping[str, Stamp]) -> bool:
    return sent.get(f"checkpoints/{manifest.parent.name}/{_MANIFEST}") != _stamp(manifest)


def _read(folder: Path, name: str, contents: dict[str, bytes]) -> None:
    with suppress(FileNotFoundError):  # it went away meanwhile
        contents[name] = (folder / name).read_bytes()


def _upload(remote: Remote, name: str, path: Path) -> bool:
    if name.startswith(_WEIGHTS) and not name.endswith(_MANIFEST):
        # What is replaced is no checkpoint any more until its own manifest comes.
        remote.delete(f"{name.rpartition('/')[0]}/{_MANIFEST}")
    if not path.is_file():
        return False
    remote.upload(name, path)
    return True


def _gone(here: Mapping[str, Stamp], sent: Mapping[str, Stamp]) -> list[str]:
    """What the mirror has and the folder has not, but for the last checkpoints to go on from."""
    there = sorted({found[1] for name in sent if (found := _CHECKPOINT.match(name))})
    newest = max((found[1] for name in here if (found := _CHECKPOINT.match(name))), default="~")
    complete = [name for name in there if f"{name}/{_MANIFEST}" in sent and name <= newest]
    kept = complete[-_KEPT:]
    gone: list[str] = []
    for name in sent:
        found = _CHECKPOINT.match(name)
        if name not in here if found is None else found[1] not in kept:
            gone.append(name)
    return gone


# ---- back


def pull(
    remote: Remote, folder: Path, chosen: Chosen, taken: dict[str, tuple[Stamp, Stamp]]
) -> None:
    """Make the chosen files of a folder those of its mirror.

    Args:
        taken: what was taken before, as stamps there and here; it is brought up to date.

    Raises:
        OSError: the mirror fails; FileNotFoundError if a file went away meanwhile.
        WriteError: the folder cannot take it.
    """
    there = _whole(remote.list(), chosen)
    for name in sorted(there, key=turn, reverse=True):
        path = folder / name
        if name in taken and taken[name] == (there[name], _stamp_or_none(path)):
            continue
        remote.download(name, path)
        taken[name] = there[name], _stamp(path)
    for name in local_files(folder, chosen):
        if name not in there:
            with writing(folder / name):
                (folder / name).unlink(missing_ok=True)
    for name in taken.keys() - there.keys():
        if chosen(name):
            del taken[name]
    _drop_empty(folder / "checkpoints")


def _whole(there: Mapping[str, Stamp], chosen: Chosen) -> dict[str, Stamp]:
    """The chosen files, without those of checkpoints that did not come to their end."""
    whole: dict[str, Stamp] = {}
    for name, stamp in there.items():
        found = _CHECKPOINT.match(name)
        if chosen(name) and (found is None or f"{found[1]}/{_MANIFEST}" in there):
            whole[name] = stamp
    return whole


def _stamp_or_none(path: Path) -> Stamp | None:
    return _stamp(path) if path.is_file() else None


def _drop_empty(folder: Path) -> None:
    """Remove folders of checkpoints that are gone."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def thin(folder: Path) -> None:
    """Leave of a finished run, whose mirror has everything, what readers need."""
    for name in _WEIGHTS:
        shutil.rmtree(folder / name, ignore_errors=True)
