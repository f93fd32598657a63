"""`forever run`: one run, here or with Ray Train's workers."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from rich.console import Console
from typer import Argument, Option

from forever.cli import commands, options
from forever.cli.completion import complete_run
from forever.cli.options import NAMED_RUN, Launch, with_options
from forever.cli.shown import console, note, print_lines, show
from forever.errors import InputError
from forever.storage.address import address_of, local_folder, portable


@with_options
def run(
    config: str | None = Argument(
        None,
        help=f"A YAML file, or {NAMED_RUN} such as mini/forever; a fork has its run's own.",
        autocompletion=complete_run,
    ),
    changes: list[str] | None = options.CHANGES,
    resume: bool = Option(False, "--resume", help="Go on with an interrupted run."),
    fork: str | None = Option(
        None,
        metavar="RUN@TASK",
        help="Begin after a task, by name or number, of a folder's run with --keep-stages.",
    ),
    quiet: bool = Option(False, "--quiet", "-q", help="Print the result only."),
    *,
    launch: Launch,
) -> None:
    """Train one run, task after task, and print its performance matrix.

    Examples:
        forever run mini/forever
        forever run my-run.yaml optim.lr=1e-3 seed=1
        forever run my-run.yaml --resume
    """
    from forever.launch.copies import settle
    from forever.launch.local import check
    from forever.launch.start import train
    from forever.runs.console import ConsoleTracker
    from forever.runs.directory import RunDirectory
    from forever.storage.copying import readable

    if not launch.most_workers and (launch.gpus_per_run or launch.ray_logs):
        rule = "--gpus-per-run and --ray-logs are about Ray's workers"
        raise InputError(f"{rule}; give --workers, too")
    origin = None
    if fork:
        from forever.runs.fork import find_origin

        origin = find_origin(_forked(fork))
    settings = _settings(config, changes or [], origin.config if origin else None)
    key = origin.key(settings) if origin else settings.key()
    directory = RunDirectory(launch.out / key)
    settle(directory.path, readable)
    benchmark = check(settings, directory, resume)
    if directory.finished() is not None:
        print_lines([f"{portable(directory.path)} is finished; nothing to do"])
    elif origin is not None:
        from forever.runs.fork import plant

        differences = plant(origin, settings, benchmark, directory)
        if not quiet:
            print_lines(differences)
    fleet = launch.fleet(commands.mlflow_uri(launch.mlflow))
    with closing(ConsoleTracker(Console(quiet=quiet))) as progress:
        result = train(settings, directory.path, benchmark, fleet, resume, [progress])
    _show(directory, result)


def _show(directory: Any, result: Mapping[str, Any]) -> None:
    """Print the matrix of a run that is over, and a line on each task that ends at chance."""
    from forever.cli.view.chance import lost_tasks
    from forever.cli.view.seen import Seen
    from forever.runs.console import matrix_table

    show(matrix_table(result, console.width))
    lost = lost_tasks(Seen(directory))
    print_lines(lost)
    scores = {name: result.get(name) for name in ("op", "bwt", "fwt", "forgetting")}
    note(run=directory.path, scores=scores, lost=lost)


def _forked(text: str) -> str:
    """RUN@TASK, of a run in storage with its copy on this machine, which is brought up to date."""
    from forever.launch.copies import settle

    name, at, task = text.rpartition("@")
    folder = local_folder(name)
    if address_of(folder) is None:
        return text
    settle(folder)
    return f"{folder}{at}{task}"


def _settings(config: str | None, changes: list[str], forked: Any) -> Any:
    """The run that CONFIG and KEY=VALUE mean; without CONFIG it is the run that is forked."""
    from forever.config.overrides import parse_assignments
    from forever.sweeps.named_runs import load_run

    if config is not None and forked is not None and "=" in config:
        config, changes = None, [config, *changes]
    base = forked if config is None else load_run(config)
    if base is None:
        raise InputError("run needs a configuration: a YAML file, or a name such as mini/forever")
    return base.override(parse_assignments(changes))
