"""`forever sweep` and `forever demo`: many variants with Ray Tune."""

from pathlib import Path

from typer import Argument, Option

from forever.cli import commands, options
from forever.cli.commands import console
from forever.cli.options import Launch, Selection, Stopping, parse_seeds, with_options
from forever.config.overrides import parse_assignments
from forever.launch.fleet import Fleet
from forever.launch.local import Placement
from forever.sweeps.files import load_sweep
from forever.sweeps.lists import sweeps_table
from forever.sweeps.named_runs import load_run
from forever.sweeps.search import find_search


@with_options
def sweep(
    name: str | None = Argument(
        None, help="A sweep's name (`forever sweep --list`), or its YAML file."
    ),
    changes: list[str] | None = options.CHANGES,
    show_all: bool = Option(False, "--list", help="Show all sweeps with their question, and end."),
    *,
    selection: Selection,
    stopping: Stopping,
    launch: Launch,
) -> None:
    """Run many variants with Ray Tune, then print the table and write the report.

    The same command goes on where it was interrupted. The sweep `search` finds its variants while
    it runs, with Optuna, and stops those that fall behind.
    """
    if show_all or name is None:
        console.print(sweeps_table())
        return
    file = load_sweep(name)
    base = load_run(selection.on or file.base_run(selection.scale))
    asked = parse_assignments(changes or [])
    seeds = parse_seeds(selection.seeds)
    selection.check(name, file)
    limits = stopping.limits(name, file)
    fleet = Fleet(
        selection.concurrent,
        launch.workers,
        launch.placement,
        commands.mlflow_uri(launch.mlflow),
        retry_failed=selection.retry_failed,
    )
    if file.is_search:
        search = find_search(file, base.override(asked), seeds)
        commands.search(search, selection.trials, launch.out, fleet)
    else:
        runs = file.expand(base, seeds, asked, selection.only or ())
        commands.sweep(runs, launch.out, fleet, limits)


def demo(
    seeds: str | None = options.SEEDS,
    out: Path = options.OUT,
    concurrent: int | None = options.CONCURRENT,
    mlflow: str = options.MLFLOW,
) -> None:
    """The component ablation of FOREVER on the embedded benchmark: minutes on two CPU cores."""
    runs = load_sweep("demo").expand(load_run("mini/forever"), parse_seeds(seeds))
    fleet = Fleet(concurrent, 0, Placement("cpu"), commands.mlflow_uri(mlflow))
    commands.sweep(runs, out, fleet)
