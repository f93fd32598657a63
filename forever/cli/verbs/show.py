"""`forever show` and `forever diff`: runs that are there, in the terminal."""

import os
from pathlib import Path
from typing import Any

from typer import Argument

from forever.cli.completion import complete_folder
from forever.cli.options import FOLDER
from forever.cli.shown import console, show

_RUN: Any = Argument(help="A run's folder.", autocompletion=complete_folder, **FOLDER)
_FIRST: Any = Argument(
    metavar="A", help="A run's folder.", autocompletion=complete_folder, **FOLDER
)
_SECOND: Any = Argument(
    metavar="B", help="Another run's folder.", autocompletion=complete_folder, **FOLDER
)


def show_run(run: Path = _RUN) -> None:
    """Show a run: its matrix, timeline, events, budget, and answers that are wrong.

    Examples:
        forever show runs/mini-1-forever-s0-5aee8c00
        forever show runs/components/base-o1-s0-5aee8c00 --json
    """
    from forever.cli.view.run import run_page
    from forever.cli.view.seen import look
    from forever.errors import reading

    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a look fetches no data
    with reading(run):
        page = run_page(look(run), console.width)
    show(page)


def diff(first: Path = _FIRST, second: Path = _SECOND) -> None:
    """Show in what two runs differ: configuration, scores, matrix, events, environment.

    Examples:
        forever diff runs/mini-1-forever-s0-5aee8c00 runs/mini-1-ewc-s0-e08e569b
        forever diff runs/mini-1-forever-s0-5aee8c00 runs/mine --json
    """
    from forever.cli.view.difference import difference_page
    from forever.cli.view.seen import look
    from forever.errors import reading

    with reading(Path(f"{first} or {second}")):
        page = difference_page(look(first), look(second))
    show(page)
