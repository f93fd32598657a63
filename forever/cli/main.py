"""The command line: a few verbs, each a thin layer over the library.

Exit codes: 0 done, 1 failed, 2 bad input.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from forever.cli import commands
from forever.cli.commands import console
from forever.cli.options import (
    NAMED_RUN,
    SWEEP,
    Assignments,
    Launch,
    Selection,
    parse_seeds,
    with_options,
)
from forever.cli.output import shield_output
from forever.config.overrides import parse_assignments
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.fleet import Fleet
from forever.launch.local import Placement, check
from forever.runs.console import matrix_table
from forever.runs.directory import RunDirectory
from forever.runs.environment import without_credentials
from forever.sweeps.files import load_sweep, sweep_or_none
from forever.sweeps.lists import sweeps_table
from forever.sweeps.named_runs import load_run
from forever.sweeps.search import find_search

app = typer.Typer(
    help="Continual learning of language models around FOREVER: run, sweep, compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Look at benchmark data.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@app.command()
@with_options
def run(
    config: Annotated[
        str | None,
        typer.Argument(
            help=f"A YAML file, or {NAMED_RUN} such as mini/forever; a fork has its run's own."
        ),
    ] = None,
    changes: Assignments = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    fork: Annotated[
        str | None,
        typer.Option(
            metavar="RUN@TASK",
            help="Begin after a task, by name or number, of a folder's run with --keep-stages.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
    *,
    launch: Launch,
) -> None:
    """Train one run, task after task, and print its performance matrix."""
    from forever.runs.fork import find_origin, plant

    origin = find_origin(fork) if fork else None
    settings = _settings(config, changes or [], origin.config if origin else None)
    directory = RunDirectory(launch.out / (origin.key(settings) if origin else settings.key()))
    benchmark = check(settings, directory, resume)
    if directory.finished() is not None:
        console.print(f"{directory.path} is finished; nothing to do", soft_wrap=True)
    elif origin is not None:
        differences = plant(origin, settings, benchmark, directory)
        if not quiet:
            commands.print_lines(differences)
    result = commands.train(settings, directory.path, benchmark, launch, resume, quiet)
    console.print(matrix_table(result))


@app.command()
@with_options
def sweep(
    name: Annotated[str | None, typer.Argument(help=f"{SWEEP}.")] = None,
    changes: Assignments = None,
    show_all: Annotated[
        bool, typer.Option("--list", help="Show all sweeps with their question, and end.")
    ] = False,
    *,
    selection: Selection,
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
    fleet = commands.make_fleet(selection, launch)
    if file.is_search:
        search = find_search(file, base.override(asked), seeds)
        succeeded = commands.search(search, selection.trials, launch.out, fleet)
    else:
        runs = file.expand(base, seeds, asked, selection.only or ())
        succeeded = commands.sweep(runs, launch.out, fleet)
    if not succeeded:
        raise typer.Exit(1)


@app.command()
def demo(
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for run directories.")] = Path("runs"),
    concurrent: Annotated[int | None, typer.Option(min=1, help="Runs at a time.")] = None,
    mlflow: Annotated[str, typer.Option(help="As for `forever sweep`.")] = "auto",
) -> None:
    """The component ablation of FOREVER on the embedded benchmark: minutes on two CPU cores."""
    runs = load_sweep("demo").expand(load_run("mini/forever"), parse_seeds(seeds))
    fleet = Fleet(concurrent, 0, Placement("cpu"), commands.mlflow_uri(mlflow))
    if not commands.sweep(runs, out, fleet):
        raise typer.Exit(1)


@app.command()
@with_options
def plan(
    name: Annotated[str, typer.Argument(help=f"A YAML file, {NAMED_RUN}, or a sweep.")],
    changes: Assignments = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine for 20 seconds.")
    ] = False,
    tokens_per_second: Annotated[
        float | None, typer.Option(min=1, help="Training throughput, instead.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Of a GPU, or of a run's CPUs.")
    ] = None,
    *,
    selection: Selection,
    launch: Launch,
) -> None:
    """What a run or a sweep will cost: runs, updates, tokens, hours; nothing is started."""
    from forever.sweeps.asked import asked_runs, without_failed

    file = sweep_or_none(name)
    selection.check(name, file)
    runs = asked_runs(
        name,
        selection.on or (file.base_run(selection.scale) if file else ""),
        parse_assignments(changes or []),
        parse_seeds(selection.seeds),
        launch.out,
        selection.only or (),
        selection.trials,
    )
    # Torch is loaded when the runs are known to be possible.
    from forever.planning.table import Terms, plan_table

    terms = Terms(
        calibrate=calibrate,
        tokens_per_second=tokens_per_second,
        price_per_hour=price_per_hour,
        device=launch.device,
        concurrent=selection.concurrent,
        workers=launch.workers,
        micro_batch=launch.micro_batch,
    )
    planned = runs if selection.retry_failed else without_failed(runs)
    console.print(plan_table(name, planned, terms))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A sweep, a run, or a folder of runs.")],
) -> None:
    """Write report.html, .md, .tex and .json, tables and figures, from run directories alone."""
    commands.show_report(folder)


@app.command()
def sync(
    folder: Annotated[Path, typer.Argument(help="A run or a sweep.")],
    mlflow: Annotated[str, typer.Option(help="As for `forever sweep`.")] = "auto",
) -> None:
    """Send to MLflow what it does not have yet, once each."""
    uri = commands.mlflow_uri(mlflow)
    if uri is None:
        raise InputError(
            "MLflow is off or not installed; pip install 'forever-cl[mlflow]' and give --mlflow URI"
        )
    from forever.launch import mlflow_tracker

    mlflow_tracker.sync(folder, uri)


@app.command()
def doctor() -> None:
    """Check what is installed and what this machine offers."""
    from forever.cli.doctor import examine

    table, sound = examine()
    console.print(table)
    if not sound:
        raise typer.Exit(1)


@data_app.command("check")
def data_check(
    root: Annotated[
        Path | None,
        typer.Argument(help="Folder with benchmark folders, or a run's YAML; none: the demo's."),
    ] = None,
) -> None:
    """Read every task that is found, and show sizes, metric, labels and length.

    An error names the file and the line.
    """
    from forever.data.check import data_table

    if root is None or root.is_file():
        console.print(data_table(load_run(str(root or "mini/forever")).data))
    else:
        console.print(data_table(root))


def _settings(config: str | None, changes: list[str], forked: RunConfig | None) -> RunConfig:
    """The run that CONFIG and KEY=VALUE mean; without CONFIG it is the run that is forked."""
    if config is not None and not ("=" in config and forked is not None):
        return load_run(config).override(parse_assignments(changes))
    if forked is None:
        raise InputError("run needs a configuration: a YAML file, or a name such as mini/forever")
    first = [] if config is None else [config]
    return forked.override(parse_assignments([*first, *changes]))


def main() -> None:
    """Run the command that the console script was given."""
    shield_output()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130:  # Ctrl-C, as typer passes it on
            resume = " with --resume" if sys.argv[1:2] == ["run"] else ""
            print(
                f"interrupted; the same command{resume} goes on from the last checkpoint",
                file=sys.stderr,
            )
        raise
    except Exception:  # a bug; what went wrong may name a server with its password
        print(without_credentials(traceback.format_exc()), file=sys.stderr, end="")
        sys.exit(1)


if __name__ == "__main__":
    main()
