"""SHA256SUMS of a folder, by which damage is noticed.

It has a line for everything that a file of the folder was written with, in the format of
`sha256sum`. A line comes before its file, so that a file without one was never written, whenever
the process is killed. A file that is written again has several.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from forever.errors import InputError
from forever.files import DAMAGED, make_folder, read_bytes, sha256, sync, write_text, writing

SUMS = "SHA256SUMS"
# A line of it. No name leads out of the folder.
_SUM = re.compile(r"([0-9a-f]{64})  ((?:(?!\.\./)[\w.-]+/)*(?!\.\.?$)[\w.-]+)")
Sums = Mapping[str, set[str]]  # by name, relative to the folder: what a file may hold


def read_sums(folder: Path) -> Sums | None:
    """The lines of a folder's SHA256SUMS; None for a folder of a release that wrote none."""
    path = folder / SUMS
    if not path.is_file():
        return None
    sums: dict[str, set[str]] = {}
    for line in read_bytes(path).decode("utf-8", errors="replace").split("\n"):
        if parts := _SUM.fullmatch(line):  # a torn line is none
            sums.setdefault(parts[2], set()).add(parts[1])
    return sums


def note(folder: Path, contents: Mapping[str, bytes], durable: bool = True) -> None:
    """Write down what files of a folder hold, or are about to, by name: all of it or nothing."""
    path, sums = folder / SUMS, read_sums(folder) or {}
    lines = ""
    for name, content in contents.items():
        digest = sha256(content)
        if digest not in sums.get(name, ()):
            lines += f"{digest}  {name}\n"
    if not lines:
        return
    with writing(path):
        make_folder(folder)
        new = not path.is_file()
        torn = not new and not path.read_bytes().endswith(b"\n")
        with path.open("ab") as file:
            file.write(b"\n" * torn + lines.encode())
        if durable:
            sync(path)
        if new:
            sync(folder)


def write_noted(folder: Path, name: str, text: str, durable: bool = True) -> None:
    """Write a file of a folder, after its line in SHA256SUMS; `durable` as in `write_bytes`."""
    path = folder / name
    if path.is_file() and name not in (read_sums(folder) or {}):
        # Of a release that wrote no sums: it counts until it is replaced.
        note(folder, {name: read_bytes(path)})
    note(folder, {name: text.encode("utf-8")}, durable)
    write_text(path, text, durable)


def read_noted(folder: Path, name: str, sums: Sums | None) -> bytes:
    """The content of a file of a folder; InputError if it is not what was written there.

    Args:
        sums: of the folder; None if its files have none.
    """
    path, content = folder / name, read_bytes(folder / name)
    if sums is None or sha256(content) in sums.get(name, ()):
        return content
    sums = read_sums(folder) or {}  # somebody may have written since
    if sha256(content) in sums.get(name, ()):
        return content
    if name in sums:
        raise InputError(f"{path} is damaged: it is not what {SUMS} says; {DAMAGED}")
    raise InputError(f"{path} has no line in {SUMS}, which is damaged; {DAMAGED}")


def check_noted(folder: Path, complete: bool) -> None:
    """Refuse a folder with a file that is not what was written there, by an InputError; also one
    that lacks a file, if it is `complete`."""
    sums = read_sums(folder)
    for name in sums or ():
        if complete or (folder / name).is_file():
            read_noted(folder, name, sums)
