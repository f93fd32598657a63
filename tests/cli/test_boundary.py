"""What a user or the world can cause is one line; a bug is a traceback."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from commands import Call

from forever.cli import boundary
from forever.cli.boundary import CAUSES, explained
from forever.errors import InputError, reading
from scripts.error_table import PAGE, page


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("no such file\nx"), 2, "no such file\nx"),
        (OSError(errno.ENOSPC, "x", "a/b"), 1, "a/b: No space left on device; make room"),
        (OSError(errno.EROFS, "x", "a/b"), 2, "a/b: Read-only file system; give another one"),
        (PermissionError(errno.EACCES, "x", b"a/b"), 2, "a/b: Permission denied; give another one"),
        (NotADirectoryError(errno.ENOTDIR, "x", "a/b"), 2, "a/b: Not a directory; give another"),
        (OSError(errno.EMFILE, "x"), 1, "Too many open files; raise the limit"),
        (MemoryError(), 1, "MemoryError; give --micro-batch 1"),
        (
            torch.OutOfMemoryError("CUDA out of memory.\n Tried"),
            1,
            "CUDA out of memory. Tried; give",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_line_and_a_remedy(error: Exception, code: int, line: str) -> None:
    told = explained(error)
    assert told is not None
    assert told[0].startswith(line)
    assert told[1] == code


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), FileNotFoundError(errno.ENOENT, "x", "a/b"), OSError("odd"), TypeError()],
)
def test_everything_else_is_a_bug(error: Exception) -> None:
    assert explained(error) is None


def test_no_cause_is_listed_twice() -> None:
    kinds = [kind for cause in CAUSES for kind in cause.kinds]
    assert len(set(kinds)) == len(kinds)
    numbers = [kind for kind in kinds if kind.isupper()]
    assert all(hasattr(errno, number) for number in numbers)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_shows_where_an_error_arose(
    place: int, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """Wherever it stands among the words of a command."""
    words = ["report", "nowhere"]
    words.insert(place, "--debug")
    monkeypatch.setenv(boundary.DEBUG, "")
    code, _, shown = call(*words)
    assert code == 2
    assert shown.startswith("Traceback")
    assert shown.splitlines()[-1].startswith("error: ")
    assert os.environ[boundary.DEBUG] == "1"


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("http://me:secret@host is away"), 2), (KeyError("http://me:secret@host"), 1)],
)
def test_without_debug_a_bug_alone_has_a_traceback_and_nothing_has_a_password(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.delenv(boundary.DEBUG, raising=False)
    monkeypatch.setattr("forever.cli.commands.show_report", Mock(side_effect=error))
    ended, _, shown = call("report", "nowhere")
    assert ended == code
    assert ("Traceback" in shown) == (code == 1)
    assert "secret" not in shown
    assert "host" in shown


def test_page_is_what_the_code_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.error_table"


def test_what_made_a_file_strange_is_kept_for_debugging() -> None:
    content: dict[str, int] = {}
    message = r"run holds a file with missing .* \('op'\)"
    with pytest.raises(InputError, match=message) as refused, reading(Path("run")):
        _ = content["op"]
    assert isinstance(refused.value.__cause__, KeyError)
