"""What a verb shows: on a console for people, or with `--json` as one JSON document for programs.

A verb shows tables and pages, which know their own data. With `--json` nothing but the document is
on stdout; progress goes to stderr.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, Protocol

import typer
from rich.console import Console

from forever.text import terminal

# A pipe has no width of its own, unless COLUMNS gives it one; 80 columns would fold every table.
_HAS_WIDTH = "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty())
console = Console() if _HAS_WIDTH else Console(width=120)
_document: dict[str, Any] | None = None  # of the verb that runs, with --json


class Data(Protocol):
    """What can be shown: the console prints it, and a program gets its data."""

    def data(self) -> Mapping[str, Any]:
        """Return its content as JSON values."""
        ...


def show(part: Data, name: str = "") -> None:
    """Print a table or a page, or put its data into the document, perhaps under a name."""
    if _document is None:
        console.print(part)
    else:
        note(**({name: part.data()} if name else part.data()))


def note(**values: Any) -> None:
    """Add values to the document that people read elsewhere."""
    if _document is not None:
        _document.update(values)


def print_lines(lines: Sequence[str]) -> None:
    """Print lines as they are, without markup and without folding them."""
    for line in lines:
        console.print(terminal(line), soft_wrap=True)


@contextmanager
def document() -> Iterator[None]:
    """Print what the block shows as one JSON document, also if it ends with a bad exit code."""
    global _document
    content = _document = dict[str, Any]()
    ended: typer.Exit | None = None
    try:
        with redirect_stdout(sys.stderr):
            yield
    except typer.Exit as error:
        ended = error
    finally:
        _document = None
    from pydantic_core import to_jsonable_python

    # JSON has no nan and inf; what pydantic does not know are numbers of NumPy.
    plain = to_jsonable_python(content, inf_nan_mode="null", fallback=lambda number: number.item())
    sys.stdout.write(f"{json.dumps(plain, indent=1)}\n")
    sys.stdout.flush()
    if ended:
        raise ended
