"""Errors that a user can mend: each names the value, the rule and the nearest valid name."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class InputError(ValueError):
    """Something the user gave is wrong: the command line prints one line and exits with code 2."""


def shown(value: object) -> str:
    """A value as Python writes it, as much of it as a message has room for."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def unknown(what: str, name: str, valid: Iterable[str]) -> InputError:
    """The error for a name that does not exist: says the nearest that does, or lists all."""
    valid = sorted(valid)
    near = get_close_matches(name[:100], valid, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(valid)}"
    return InputError(f"unknown {what} {shown(name)}; {hint}")


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Say in one line, by an InputError, that a folder's files lack fields or have strange ones."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder} holds a file with missing or strange fields ({error})"
        ) from error  # which --debug shows


def one_line(error: BaseException) -> str:
    """What a library says in many lines, or its innermost cause says, as one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[:300] or type(error).__name__
