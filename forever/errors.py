"""Errors that a user can mend: each names the value, the rule and the nearest valid name."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class InputError(ValueError):
    """Something the user gave is wrong: the command line prints one line and exits with code 2.

    A reader that knows them gives the configuration's dotted key, and the file and line.
    """

    def __init__(
        self, message: str, *, key: str = "", path: Path | None = None, line: int | None = None
    ) -> None:
        super().__init__(message)
        self.key, self.path, self.line = key, path, line


class Missing(InputError):
    """A file, or a part of a dataset, does not exist. What is malformed is another error."""


def shown(value: object) -> str:
    """Return a value as Python writes it, as much of it as a message has room for."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def unknown(what: str, name: str, valid: Iterable[str], key: str = "") -> InputError:
    """Make the error for an unknown name: it suggests the nearest valid one, or lists them all."""
    valid = sorted(valid)
    near = [each for each in valid if each.endswith(f".{name}")]  # optim.lr for lr
    near = near or get_close_matches(name[:100], valid, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(valid)}"
    return InputError(f"unknown {what} {shown(name)}; {hint}", key=key)


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn missing or unexpected fields in a folder's files into an InputError of one line."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder} holds a file with missing or unexpected fields ({error})", path=folder
        ) from error  # which --debug shows


def one_line(error: BaseException) -> str:
    """Return the message of an error, or of its innermost cause, as one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[:300] or type(error).__name__
