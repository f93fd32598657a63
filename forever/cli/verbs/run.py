"""`forever run`: one run, here or with Ray Train's workers."""

from contextlib import closing

from rich.console import Console
from typer import Argument, Option

from forever.cli import commands, options
from forever.cli.commands import console
from forever.cli.options import NAMED_RUN, Launch, with_options
from forever.config.overrides import parse_assignments
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import check
from forever.launch.start import train
from forever.runs.console import ConsoleTracker, matrix_table
from forever.runs.directory import RunDirectory
from forever.sweeps.named_runs import load_run


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
    fleet = launch.fleet(commands.mlflow_uri(launch.mlflow))
    with closing(ConsoleTracker(Console(quiet=quiet))) as progress:
        told = [progress, *profilers]
        result = train(settings, directory.path, benchmark, fleet, resume, told)
    console.print(matrix_table(result))


def _settings(config: str | None, changes: list[str], forked: RunConfig | None) -> RunConfig:
    """The run that CONFIG and KEY=VALUE mean; without CONFIG it is the run that is forked."""
    if config is not None and forked is not None and "=" in config:
        config, changes = None, [config, *changes]
    base = forked if config is None else load_run(config)
    if base is None:
        raise InputError("run needs a configuration: a YAML file, or a name such as mini/forever")
    return base.override(parse_assignments(changes))
