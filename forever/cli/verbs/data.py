"""`forever data`: look at benchmark data, and prepare it."""

from pathlib import Path

import typer
from typer import Argument, Option

from forever.cli import commands
from forever.cli.commands import console
from forever.sweeps.named_runs import load_run
from forever.text import complain


def check(
    root: Path | None = Argument(
        None, help="Folder with benchmark folders, or a run's YAML; none: the demo's."
    ),
) -> None:
    """Read every task that is found, and show sizes, metric, labels and length.

    An error names the file and the line; the other tasks are shown all the same.
    """
    from forever.data.check import data_table

    if root is None or root.is_file():
        table, problems = data_table(load_run(str(root or "mini/forever")))
    else:
        table, problems = data_table(root)
    console.print(table)
    for problem in problems:
        complain(f"error: {problem}")
    if problems:
        raise typer.Exit(2)


def prepare(
    source: Path = Argument(help="Folder with the data, such as a clone of a public repository."),
    to: Path = Option(
        ..., "--to", help="Folder that gets a folder a benchmark: a run's data.root."
    ),
) -> None:
    """Write Long Sequence and SuperNI in the paper's sizes, from what SOURCE has of them.

    1000 training examples a task, 500 a class for testing, or as many as there are; the same ones
    every time.
    """
    from forever.data.prepare import prepare as write_benchmarks

    for line in write_benchmarks(source, to):
        commands.print_lines([line])
