"""`forever init`: files to begin with."""

import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from typer import Argument, Option

from forever.cli.completion import complete_run
from forever.cli.options import NAMED_RUN
from forever.cli.shown import print_lines
from forever.errors import InputError


class What(StrEnum):
    """What can be begun."""

    RUN = "run"
    SWEEP = "sweep"


def init(
    what: What = Argument(What.RUN, help="A run's file or a sweep's."),
    task: str | None = Option(
        None, "--task", metavar="NAME", help="A task instead: a folder with examples, and its run."
    ),
    on: str | None = Option(
        None,
        help=f"The run that is written: {NAMED_RUN}; default: mini/forever.",
        autocompletion=complete_run,
    ),
    to: Path | None = Option(
        None, "--to", help="The file; with --task the folder of tasks. Default: its own name here."
    ),
) -> None:
    """Write a run, a task or a sweep with comments, which runs as it is; nothing is overwritten.

    Examples:
        forever init
        forever init --on superni/7/forever --to superni.yaml
        forever init --task first
        forever init sweep
    """
    from forever.cli.starters import run, sweep
    from forever.cli.starters import task as tasks
    from forever.sweeps.named_runs import load_run
    from forever.yaml_file import SUFFIXES

    if on is not None and (task is not None or what is What.SWEEP):
        raise InputError(f"--on {on}: a sweep or a task is not written from a run; leave it out")
    file = to or Path(f"{what}.yaml")
    if task is not None:
        if what is What.SWEEP:
            raise InputError(f"--task {task}: a sweep has no tasks of its own; leave out one")
        tasks.check_name(task)
        folder = to or Path("tasks")
        tasks.check_folder(folder)
        file = folder.parent / f"{task}.yaml"
        files = tasks.task_files(folder, task)
        files[file] = tasks.run_text(folder, task, str(file))
    elif not str(file).endswith(SUFFIXES):
        raise InputError(f"--to {file}: the file of a {what} ends in .yaml, as {what}.yaml does")
    elif what is What.SWEEP:
        files = {file: sweep.sweep_text(str(file))}
    else:
        files = {file: run.run_text(load_run(on or "mini/forever"), str(file))}
    _write(files)
    then = f"next  forever {what} {shlex.quote(str(file))}"
    print_lines([*(f"wrote {path}" for path in files), then])


def _write(files: Mapping[Path, str]) -> None:
    """Write files that are not there; InputError, and nothing is written, if one is."""
    from forever.files import write_text, writing

    for path in files:
        if path.exists():
            raise InputError(f"{path} is there, and init overwrites nothing; give another name")
    for path, text in files.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
