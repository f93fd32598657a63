"""Where errors become one line for the user and an exit code.

What is not explained here is a bug, and its traceback is shown. With `--debug` every error has one.
"""

import errno
import os
import traceback
from collections.abc import Sequence

from forever.errors import InputError, one_line
from forever.text import complain, without_credentials

DEBUG = "FOREVER_DEBUG"  # in the environment, which processes that are started here inherit
FAILED, BAD_INPUT = 1, 2

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BAD_PATH = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
_BAD_PATH |= {errno.ENAMETOOLONG, errno.ELOOP}
_MORE_ROOM = "free some space; the same command resumes (a run: with --resume)"
_LESS_MEMORY = "give --micro-batch 1, fewer runs at a time (--concurrent), or a smaller model"


def explained(error: BaseException) -> tuple[str, int] | None:
    """One line that explains an error, and the exit code; None for a bug."""
    # Classes are compared by name, since torch need not be loaded.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    code = FAILED
    if isinstance(error, InputError):
        line = str(error)
        code = FAILED if "WriteError" in kinds else BAD_INPUT
    elif isinstance(error, OSError) and error.errno is not None:
        path = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        line = path + os.strerror(error.errno)
        if error.errno in _FULL:
            line = f"{line}; {_MORE_ROOM}"
        elif error.errno in _BAD_PATH:
            line, code = f"{line}; give another path", BAD_INPUT
    elif "FloatingPointError" in kinds:  # a run diverged
        line = one_line(error)
    elif kinds & {"MemoryError", "OutOfMemoryError"}:
        line = f"{one_line(error)}; {_LESS_MEMORY}"
    else:
        return None
    return without_credentials(line), code


def end(error: Exception) -> int:
    """Report an error that ended a command on stderr, and return the exit code."""
    explanation = explained(error)
    if explanation is None or os.environ.get(DEBUG):
        for line in traceback.format_exc().splitlines():
            complain(line)
    if explanation is None:
        return FAILED
    line, code = explanation
    complain(f"error: {line}")
    return code


def without_debug(words: Sequence[str]) -> list[str]:
    """Return the words of a command without `--debug`, which is valid anywhere among them."""
    if "--debug" in words:
        os.environ[DEBUG] = "1"
    return [word for word in words if word != "--debug"]
