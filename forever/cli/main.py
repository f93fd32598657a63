"""The command line: a few verbs, each a thin layer over the library.

Exit codes: 0 done, 1 failed, 2 bad input, 128 and the number of the signal that ended it
(docs/faults.md).
"""

import os
import sys
from pathlib import Path

import typer
from typer import Argument, Option

from forever.cli import commands, options
from forever.cli.boundary import end, without_debug
from forever.cli.commands import console
from forever.cli.options import NAMED_RUN, Launch, Selection, Stopping, parse_seeds, with_options
from forever.cli.output import shield_output
from forever.config.overrides import parse_assignments
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.fleet import Fleet
from forever.launch.local import Placement, check
from forever.runs.console import matrix_table
from forever.runs.directory import RunDirectory
from forever.stopping import asked
from forever.sweeps.files import load_sweep, sweep_or_none
from forever.sweeps.lists import sweeps_table
from forever.sweeps.named_runs import load_run
from forever.sweeps.search import find_search
from forever.text import complain

app = typer.Typer(
    help="Continual learning of language models around FOREVER: run, sweep, compare.",
    epilog="--debug, with any command, shows where an error arose.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Look at benchmark data, and prepare it.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@app.command()
@with_options
def run(
    config: str | None = Argument(
        None, help=f"A YAML file, or {NAMED_RUN} such as mini/forever; a fork has its run's own."
    ),
    changes: list[str] | None = options.CHANGES,
    resume: bool = Option(False, "--resume", help="Go on with an interrupted run."),
    fork: str | None = Option(
        None,
        metavar="RUN@TASK",
        help="Begin after a task, by name or number, of a folder's run with --keep-stages.",
    ),
    quiet: bool = Option(False, "--quiet", "-q", help="Print the result only."),
    profile: bool = Option(False, "--profile", help="Also write where the time went."),
    *,
    launch: Launch,
) -> None:
    """Train one run, task after task, and print its performance matrix."""
    from forever.runs.fork import find_origin, plant

    profilers = commands.profilers(launch, resume or bool(fork)) if profile else []
    origin = find_origin(fork) if fork else None
    settings = _settings(config, changes or [], origin.config if origin else None)
    directory = RunDirectory(launch.out / (origin.key(settings) if origin else settings.key()))
    benchmark = check(settings, directory, resume)
    if directory.finished() is not None:
        commands.print_lines([f"{directory.path} is finished; nothing to do"])
    elif origin is not None:
        differences = plant(origin, settings, benchmark, directory)
        if not quiet:
            commands.print_lines(differences)
    result = commands.train(settings, directory.path, benchmark, launch, resume, quiet, profilers)
    console.print(matrix_table(result))


def _settings(config: str | None, changes: list[str], forked: RunConfig | None) -> RunConfig:
    """The run that CONFIG and KEY=VALUE mean; without CONFIG it is the run that is forked."""
    if config is not None and forked is not None and "=" in config:
        config, changes = None, [config, *changes]
    base = forked if config is None else load_run(config)
    if base is None:
        raise InputError("run needs a configuration: a YAML file, or a name such as mini/forever")
    return base.override(parse_assignments(changes))


@app.command()
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


@app.command()
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


@app.command()
@with_options
def plan(
    name: str = Argument(help=f"A YAML file, {NAMED_RUN}, or a sweep."),
    changes: list[str] | None = options.CHANGES,
    calibrate: bool = Option(False, "--calibrate", help="Measure this machine for 20 seconds."),
    tokens_per_second: float | None = Option(None, min=1, help="Training throughput, instead."),
    price_per_hour: float | None = Option(None, min=0, help="Of a GPU, or of a run's CPUs."),
    detect: float | None = Option(
        None, metavar="POINTS", help="Seeds and hours that show such a difference in a sweep."
    ),
    *,
    selection: Selection,
    launch: Launch,
) -> None:
    """What a run or a sweep will cost: runs, updates, tokens, hours; nothing is started."""
    from forever.sweeps.asked import asked_runs, without_failed

    file = sweep_or_none(name)
    selection.check(name, file)
    base = selection.on or (file.base_run(selection.scale) if file else "")
    asked, seeds = parse_assignments(changes or []), parse_seeds(selection.seeds)
    if detect is not None:
        if file is None or file.is_search or detect <= 0:
            needs = "it needs points above 0 and a sweep with variants, e.g. components"
            raise InputError(f"--detect {detect:g}: {needs}")
        sweep = file.expand(load_run(base), seeds, asked, selection.only or ())
        console.print(commands.detection(sweep, launch.out, detect, name))
        return
    runs = asked_runs(name, base, asked, seeds, launch.out, selection.only or (), selection.trials)
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
def report(folder: Path = Argument(help="A sweep, a run, or a folder of runs.")) -> None:
    """Write report.html, .md, .tex and .json, tables and figures, from run directories alone."""
    commands.show_report(folder)


@app.command()
def sync(folder: Path = Argument(help="A run or a sweep."), mlflow: str = options.MLFLOW) -> None:
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


@data_app.command("prepare")
def data_prepare(
    source: Path = Argument(help="Folder with the data, such as a clone of a public repository."),
    to: Path = Option(
        ..., "--to", help="Folder that gets a folder a benchmark: a run's data.root."
    ),
) -> None:
    """Write Long Sequence and SuperNI in the paper's sizes, from what SOURCE has of them.

    1000 training examples a task, 500 a class for testing, or as many as there are; the same ones
    every time.
    """
    from forever.data.prepare import prepare

    for line in prepare(source, to):
        commands.print_lines([line])


def main() -> None:
    """Run the command that the console script was given."""
    shield_output()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.argv = without_debug(sys.argv)
    try:
        app()
    except Exception as error:
        # An import that Ctrl-C met says so in its own words.
        sys.exit(1 if asked() else end(error))


if __name__ == "__main__":
    from forever.cli import start

    start.main()
