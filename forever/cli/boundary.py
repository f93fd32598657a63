"""Where errors become one line for the user: what somebody or the world can cause is listed here.

Everything else is a bug, of which the traceback is shown. With `--debug` all errors have one.
"""

import errno
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from forever.errors import InputError, one_line
from forever.text import complain, without_credentials

DEBUG = "FOREVER_DEBUG"  # in the environment, which processes that are started here inherit
FAILED, BAD_INPUT = 1, 2


@dataclass(frozen=True)
class Cause:
    """A kind of error that is no bug: what caused it, what it is in Python, and what helps."""

    what: str
    kinds: tuple[str, ...]  # names of classes, one of which the error is, or of numbers of OSError
    code: int
    remedy: str = ""

    def fits(self, error: BaseException) -> bool:
        """Whether an error is of this kind."""
        if isinstance(error, OSError) and error.errno is not None:
            return errno.errorcode.get(error.errno) in self.kinds
        # By name, since torch and Ray may not be loaded, and need not be for this.
        return any(kind.__name__ in self.kinds for kind in type(error).__mro__)


CAUSES = (
    Cause("a file of a run, a sweep or a report cannot be written", ("WriteError",), FAILED),
    Cause("a value, a file or a folder that was given is wrong", (InputError.__name__,), BAD_INPUT),
    Cause(
        "the disk, or a quota, is full, or a file may not be as large",
        ("ENOSPC", "EDQUOT", "EFBIG"),
        FAILED,
        "make room; the same command goes on (a run: with --resume)",
    ),
    Cause(
        "a file or folder may not be read or written",
        ("EACCES", "EPERM", "EROFS"),
        BAD_INPUT,
        "give another one, or its rights to this user",
    ),
    Cause(
        "a path leads through a file, or is none",
        ("ENOTDIR", "EISDIR", "ENAMETOOLONG", "ELOOP"),
        BAD_INPUT,
        "give another one",
    ),
    Cause(
        "a disk or a network file system failed",
        ("EIO", "ESTALE", "ETIMEDOUT", "EREMOTEIO"),
        FAILED,
        "look at that disk; the same command goes on (a run: with --resume)",
    ),
    Cause(
        "too many files are open",
        ("EMFILE", "ENFILE"),
        FAILED,
        "raise the limit (ulimit -n), or run less at a time",
    ),
    Cause(
        "a run diverged: a loss, a gradient or a weight is no finite number",
        ("FloatingPointError",),
        FAILED,
    ),
    Cause(
        "memory is used up, of this machine or of the accelerator",
        ("ENOMEM", "MemoryError", "OutOfMemoryError"),
        FAILED,
        "give --micro-batch 1, run less at a time (--concurrent), or a smaller model.max_length",
    ),
)


def explained(error: BaseException) -> tuple[str, int] | None:
    """The line that tells of an error, and the exit code; None for a bug."""
    for cause in CAUSES:
        if cause.fits(error):
            line = f"{_words(error)}; {cause.remedy}" if cause.remedy else _words(error)
            return without_credentials(line), cause.code
    return None


def end(error: Exception) -> int:
    """Tell of an error that ended a command on stderr, and return the exit code."""
    told = explained(error)
    if told is None or os.environ.get(DEBUG):
        for line in traceback.format_exc().splitlines():
            complain(line)
    if told is None:
        return FAILED
    line, code = told
    complain(f"error: {line}")
    return code


def without_debug(words: Sequence[str]) -> list[str]:
    """The words of a command without `--debug`, which holds wherever it stands."""
    if "--debug" in words:
        os.environ[DEBUG] = "1"
    return [word for word in words if word != "--debug"]


def _words(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    if not isinstance(error, OSError):
        return one_line(error)
    path = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    return path + os.strerror(error.errno or 0)
