"""What a verb shows: on a console for people, or with `--json` as one JSON document for programs.

A verb shows tables and pages, which know their own data. With `--json` nothing but the document is
on stdout; progress goes to stderr.
"""

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from inspect import Parameter
from typing import Any, Protocol

import typer
from rich.console import Console
from typer import Option

from forever.text import terminal

# A pipe has no width of its own, unless COLUMNS gives it one; 80 columns would fold every table.
_HAS_WIDTH = "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty())
console = Console() if _HAS_WIDTH else Console(width=120)
_AS_JSON: Any = Option(False, "--json", help="Print one JSON document, and nothing else on stdout.")
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


def with_json(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the option `--json`."""
    signature = inspect.signature(verb)
    option = Parameter("as_json", Parameter.KEYWORD_ONLY, default=_AS_JSON, annotation=bool)

    @functools.wraps(verb)
    def shown(*, as_json: bool, **values: Any) -> None:
        if as_json:
            _print_document(lambda: verb(**values))
        else:
            verb(**values)

    parameters = [*signature.parameters.values(), option]
    setattr(shown, "__signature__", signature.replace(parameters=parameters))  # noqa: B010 - no declared field
    return shown


def _print_document(verb: Callable[[], None]) -> None:
    """Run a verb and print its document, also if it ends with a bad exit code of its own."""
    global _document
    content = _document = dict[str, Any]()
    exit_code = 0
    try:
        with redirect_stdout(sys.stderr):
            verb()
    except typer.Exit as ended:
        exit_code = ended.exit_code
    finally:
        _document = None
    from pydantic_core import to_jsonable_python

    # JSON has no nan and inf; what pydantic does not know are numbers of NumPy.
    plain = to_jsonable_python(content, inf_nan_mode="null", fallback=lambda number: number.item())
    sys.stdout.write(f"{json.dumps(plain, indent=1)}\n")
    sys.stdout.flush()
    if exit_code:
        raise typer.Exit(exit_code)
