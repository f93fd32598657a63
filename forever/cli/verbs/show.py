"""`forever show` and `forever diff`: finished and unfinished runs in the terminal."""

import os
from pathlib import Path
from typing import Any

from typer import Argument

from forever.cli.options import FOLDER
from forever.cli.shown import console, show

_RUN: Any = Argument(help="A run's folder.", **FOLDER)
_FIRST: Any = Argument(metavar="A", help="A run's folder.", **FOLDER)
_SECOND: Any = Argument(metavar="B", help="Another run's folder.", **FOLDER)


def show_run(run: Path = _RUN) -> None:
    """Show a run: its matrix, timeline, events, budget, and answers that are wrong.

    Examples:
        forever show runs/mini-1-forever-s0-5aee8c00
        forever show runs/components/base-o1-s0-5aee8c00 --json
    """
    from forever.cli.view.run import read_run, run_page

    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # questions are shown if their data are here
    show(run_page(read_run(run), console.width))


def diff(first: Path = _FIRST, second: Path = _SECOND) -> None:
    """Show how two runs differ: configuration, scores, matrix, events, environment.

    Examples:
        forever diff runs/mini-1-forever-s0-5aee8c00 runs/mini-1-ewc-s0-e08e569b
        forever diff runs/mini-1-forever-s0-5aee8c00 runs/mine --json
    """
    from forever.cli.view.difference import difference_page
    from forever.cli.view.run import read_run

    show(difference_page(read_run(first), read_run(second)))
