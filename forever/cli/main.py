"""The command line: a few verbs, each a thin layer over the library. Exit 0 done, 1 failed, 2 bad
input."""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from forever.cli import commands
from forever.cli.commands import console
from forever.cli.options import (
    NAMED_RUN,
    SWEEP,
    Assignments,
    CheckpointEvery,
    Concurrent,
    Device,
    Fork,
    KeepStages,
    MicroBatch,
    Mlflow,
    On,
    Only,
    Out,
    RetryFailed,
    Scale,
    Seeds,
    Trials,
    Workers,
)
from forever.cli.output import shield_output
from forever.config.overrides import parse_assignments
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.fleet import Fleet, require_ray
from forever.launch.local import Placement
from forever.runs.environment import without_credentials
from forever.sweeps.files import SweepFile, load_sweep, sweep_or_none
from forever.sweeps.search import Search, find_search
from forever.sweeps.sweep import Sweep

app = typer.Typer(
    help="Continual learning of language models around FOREVER: run, sweep, compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Look at benchmark data.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@app.command()
def run(
    config: Annotated[
        str | None,
        typer.Argument(
            help=f"A YAML file, or {NAMED_RUN} such as mini/forever; a fork has its run's own."
        ),
    ] = None,
    changes: Assignments = None,
    out: Out = Path("runs"),
    workers: Workers = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    fork: Fork = None,
    keep_stages: KeepStages = False,
    device: Device = "auto",
    micro_batch: MicroBatch = None,
    checkpoint_every: CheckpointEvery = 60.0,
    mlflow: Mlflow = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
) -> None:
    """Train one run, task after task, and print its performance matrix."""
    from forever.launch.local import check, run_local
    from forever.runs.console import ConsoleTracker, matrix_table
    from forever.runs.directory import RunDirectory
    from forever.runs.fork import find_origin, plant

    origin = find_origin(fork) if fork else None
    settings = _settings(config, changes or [], origin.config if origin else None)
    directory = RunDirectory(out / (origin.key(settings) if origin else settings.key()))
    benchmark = check(settings, directory, resume)
    if directory.finished() is not None:
        console.print(f"{directory.path} is finished; nothing to do", soft_wrap=True)
    elif origin is not None:
        differences = plant(origin, settings, benchmark, directory)
        for difference in [] if quiet else differences:
            console.print(difference, markup=False, highlight=False, soft_wrap=True)
    placement = Placement(device, micro_batch, checkpoint_every, keep_stages)
    uri = commands.mlflow_uri(mlflow)
    with (
        commands.mirrored(directory.path, uri) as mirror,
        closing(ConsoleTracker(Console(quiet=quiet))) as progress,
    ):
        if workers:
            require_ray()
            from forever.launch.ray_train import run_workers

            arguments = (settings, directory.path, workers, resume, placement)
            result = run_workers(*arguments, tracking=uri, trackers=[progress])
        else:
            trackers = [progress, *mirror]
            result = run_local(
                settings, directory.path, resume=resume, trackers=trackers, placement=placement
            )
    console.print(matrix_table(result))


@app.command()
def sweep(
    name: Annotated[str | None, typer.Argument(help=f"{SWEEP}.")] = None,
    changes: Assignments = None,
    show_all: Annotated[
        bool, typer.Option("--list", help="Show all sweeps with their questions.")
    ] = False,
    scale: Scale = "mini",
    on: On = None,
    seeds: Seeds = None,
    only: Only = None,
    out: Out = Path("runs"),
    concurrent: Concurrent = None,
    workers: Workers = None,
    trials: Trials = None,
    retry_failed: RetryFailed = False,
    keep_stages: KeepStages = False,
    device: Device = "auto",
    micro_batch: MicroBatch = None,
    checkpoint_every: CheckpointEvery = 60.0,
    mlflow: Mlflow = "auto",
) -> None:
    """Run many variants with Ray Tune, then print the table and write the report. Goes on where it
    was interrupted.

    The sweep `search` finds its variants while it runs, with Optuna, and stops those that fall
    behind.
    """
    from forever.sweeps.lists import sweeps_table
    from forever.sweeps.named_runs import load_run

    if show_all or name is None:
        console.print(sweeps_table())
        return
    file = load_sweep(name)
    base, asked = load_run(on or file.base_run(scale)), parse_assignments(changes or [])
    placement = Placement(device, micro_batch, checkpoint_every, keep_stages)
    uri = commands.mlflow_uri(mlflow)
    fleet = Fleet(concurrent, workers, placement, uri, retry_failed=retry_failed)
    _check_selection(name, file, trials, only)
    if file.is_search:
        _search(find_search(file, base.override(asked), _seeds(seeds)), trials, out, fleet)
    else:
        _sweep(file.expand(base, _seeds(seeds), asked, only or ()), out, fleet)


@app.command()
def demo(
    seeds: Seeds = None,
    out: Out = Path("runs"),
    concurrent: Concurrent = None,
    mlflow: Mlflow = "auto",
) -> None:
    """The component ablation of FOREVER on the embedded benchmark: minutes on two CPU cores, no
    download."""
    from forever.sweeps.named_runs import load_run

    fleet = Fleet(concurrent, 0, Placement("cpu"), commands.mlflow_uri(mlflow))
    _sweep(load_sweep("demo").expand(load_run("mini/forever"), _seeds(seeds)), out, fleet)


@app.command()
def plan(
    name: Annotated[str, typer.Argument(help=f"A YAML file of a run, {NAMED_RUN}. {SWEEP}.")],
    changes: Assignments = None,
    scale: Scale = "mini",
    on: On = None,
    seeds: Seeds = None,
    only: Only = None,
    out: Out = Path("runs"),
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine for 20 seconds.")
    ] = False,
    tokens_per_second: Annotated[
        float | None, typer.Option(min=1, help="Training throughput, instead.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Of a GPU, or of a run's CPUs.")
    ] = None,
    trials: Trials = None,
    retry_failed: RetryFailed = False,
    device: Device = "auto",
    concurrent: Concurrent = None,
    workers: Workers = None,
    micro_batch: MicroBatch = None,
) -> None:
    """What a run or a sweep will cost: runs, updates, tokens, hours; nothing is started."""
    from forever.planning.table import Terms, plan_table

    file = sweep_or_none(name)
    _check_selection(name, file, trials, only)
    base = on or (file.base_run(scale) if file else "")
    terms = Terms(
        calibrate, tokens_per_second, price_per_hour, only or (),
        trials, retry_failed, device, concurrent, workers, micro_batch,
    )  # fmt: skip
    console.print(
        plan_table(name, base, parse_assignments(changes or []), _seeds(seeds), out, terms)
    )


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A sweep, a run, or a folder of runs.")],
) -> None:
    """Write report.html, .md, .tex and .json with tables and figures, from run directories
    alone."""
    commands.show_report(folder)


@app.command()
def sync(
    folder: Annotated[Path, typer.Argument(help="A run or a sweep.")], mlflow: Mlflow = "auto"
) -> None:
    """Send to MLflow what it does not have yet, once each."""
    from forever.launch import mlflow_tracker

    uri = commands.mlflow_uri(mlflow)
    if uri is None:
        raise InputError(
            "MLflow is off or not installed; pip install 'forever-cl[mlflow]' and give --mlflow URI"
        )
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
        Path | None, typer.Argument(help="Folder with benchmark folders; none: the embedded one.")
    ] = None,
) -> None:
    """Read every task that is found, and show rows, metric, labels and length; errors name file and
    line."""
    from forever.data.check import data_table

    console.print(data_table(root))


def _settings(config: str | None, changes: list[str], own: RunConfig | None) -> RunConfig:
    """The run that CONFIG and KEY=VALUE mean; without CONFIG it is `own`, that of the run which is
    forked."""
    from forever.sweeps.named_runs import load_run

    if config is None or ("=" in config and own is not None):
        if own is None:
            raise InputError(
                "run needs a configuration: a YAML file, or a name such as mini/forever"
            )
        return own.override(parse_assignments([*([config] if config else []), *changes]))
    return load_run(config).override(parse_assignments(changes))


def _sweep(what: Sweep, out: Path, fleet: Fleet) -> None:
    if not commands.sweep(what, out, fleet):
        raise typer.Exit(1)


def _search(what: Search, trials: int | None, out: Path, fleet: Fleet) -> None:
    if not commands.search(what, trials, out, fleet):
        raise typer.Exit(1)


def _check_selection(
    name: str, file: SweepFile | None, trials: int | None, only: Sequence[str] | None
) -> None:
    if trials is not None and (file is None or not file.is_search):
        raise InputError(
            f"--trials {trials}: {name} has its own variants; only a search has a number of them"
        )
    if only and (file is None or file.is_search):
        raise InputError(f"--only {only[0]!r}: {name} has no variants by name")


def _seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--seeds {text!r}: whole numbers separated by commas are expected, e.g. 0,1,2"
        ) from None
    if min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise InputError(f"--seeds {text!r}: seeds must be different and not negative")
    return seeds


def main() -> None:
    """Entry point of the console script."""
    shield_output()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130:  # Ctrl-C, as typer passes it on
            again = (
                "the same command with --resume" if sys.argv[1:2] == ["run"] else "the same command"
            )
            print(f"interrupted; {again} goes on from the last checkpoint", file=sys.stderr)
        raise
    except Exception:  # the traceback of a bug: what went wrong may name a server with its password
        print(without_credentials(traceback.format_exc()), file=sys.stderr, end="")
        sys.exit(1)


if __name__ == "__main__":
    main()
