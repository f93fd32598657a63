"""`forever run`: one run, here or with Ray Train's workers."""

from contextlib import closing
from typing import Any

from rich.console import Console
from typer import Argument, Option

from forever.cli import options
from forever.cli.options import NAMED_RUN, Launch
from forever.cli.shown import console, note, print_lines, show
from forever.errors import InputError
from forever.storage.address import local_folder, portable


def run(
    config: str | None = Argument(
        None, help=f"A YAML file, or {NAMED_RUN} such as mini/forever; a fork has its run's own."
    ),
    changes: list[str] | None = options.CHANGES,
    resume: bool = Option(False, "--resume", help="Resume an interrupted run."),
    fork: str | None = Option(
        None,
        metavar="RUN[@TASK]",
        help="Begin after a run's last task, or after one by name or number with --keep-stages.",
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
    from forever.cli.view.run import SCORES, lost_tasks, read_run
    from forever.config.overrides import parse_assignments
    from forever.launch.copies import download
    from forever.launch.local import prepare
    from forever.launch.start import mlflow_uri, train
    from forever.runs.console import ConsoleTracker, matrix_table
    from forever.runs.directory import RunDirectory
    from forever.sweeps.named_runs import load_run

    if not (launch.workers and launch.workers[1]) and (launch.gpus_per_run or launch.ray_logs):
        rule = "--gpus-per-run and --ray-logs are about Ray's workers"
        raise InputError(f"{rule}; give --workers, too")

    origin = _origin(fork) if fork else None

    # The configuration and the folder. Without CONFIG it is that of the run that is forked.
    words = changes or []
    if config is not None and origin is not None and "=" in config:
        config, words = None, [config, *words]
    if config is None and origin is None:
        raise InputError(
            "run needs a configuration: a name such as mini/forever, or a YAML file, e.g. with "
            "{data: {benchmark: mine, root: data, order: [a, b]}, model: {name: tiny}, "
            "method: {name: forever}}; `forever init` writes one"
        )
    base: Any = load_run(config) if config is not None else origin and origin.config
    settings = base.override(parse_assignments(words))
    key = origin.key(settings) if origin else settings.key()
    directory = RunDirectory(launch.out / key)
    download(directory.path)
    # What it wrote of its tasks stands in for their examples, unless the fork was planted before.
    past = origin.learned() if origin and not directory.fork.is_file() else None
    prepared = prepare(settings, directory.path, resume, past)

    # What a fork takes over from its origin.
    if directory.finished() is not None:
        print_lines([f"{portable(directory.path)} is finished; nothing to do"])
    elif origin is not None:
        from forever.runs.fork import plant

        differences = plant(origin, settings, prepared.benchmark, directory)
        if not quiet:
            print_lines(differences)

    resources = launch.resources(mlflow=mlflow_uri(launch.mlflow))
    with closing(ConsoleTracker(_Progress(quiet=quiet))) as progress:
        result = train(prepared, resources, [progress])

    show(matrix_table(result, console.width))
    lost = lost_tasks(result, read_run(directory.path).answers)
    print_lines(lost)
    note(run=directory.path, scores={name: result.get(name) for name in SCORES}, lost=lost)


def _origin(fork: str) -> Any:
    """Return the run and the task that are forked. To fork is to read a checkpoint, for which torch
    is loaded."""
    from forever.launch.copies import download

    name, at, task = fork.rpartition("@") if "@" in fork else (fork, "", "")
    folder = local_folder(name)
    download(folder, weights=True)
    if not (name and (folder / "config.yaml").is_file()):  # known before torch is loaded
        raise InputError(f"--fork {fork}: a run's folder is expected, perhaps with @TASK")
    from forever.runs.fork import find_origin

    return find_origin(f"{folder}{at}{task}")


class _Progress(Console):
    """A console whose loss, as in `forever run ... | head -1`, costs a run its progress alone."""

    def on_broken_pipe(self) -> None:
        """Raise the error again, for which a tracker is left out; rich would end the process."""
        raise
