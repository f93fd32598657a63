"""What an error of Ray says, without its wrapping."""

import re
from pathlib import Path

from forever.errors import InputError
from forever.text import without_credentials

_RAISED = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b.*", re.MULTILINE)


def one_line(error: BaseException) -> str:
    """The first cause of an error, without Ray's wrapping, tracebacks and credentials."""
    cause = first_cause(error)
    text = without_credentials(str(cause)).strip().partition("\n")[0]
    return text if isinstance(cause, InputError) else f"{type(cause).__name__}: {text}"


def first_cause(error: BaseException) -> BaseException:
    """What was raised in the beginning: in a worker, an actor, or here."""
    # Ray Train keeps a worker's exception under a private name; its text is the traceback.
    names = ("controller_failure", "cause", "_base_exc", "__cause__")
    inner = [*(getattr(error, "worker_failures", None) or {}).values()]
    inner += [getattr(error, name, None) for name in names]
    for candidate in inner:
        if isinstance(candidate, BaseException):
            return first_cause(candidate)
    return error


def last_error(file: str | None) -> str:
    """The last exception in the tracebacks that Tune keeps of a trial, in one line."""
    try:
        text = without_credentials(Path(file or "").read_text(encoding="utf-8"))
    except OSError:
        text = ""
    lines = _RAISED.findall(text) or text.strip().splitlines() or ["ended by an error"]
    return lines[-1].strip()
