"""`forever submit`: a sweep as a job of a Ray cluster, or written down for another scheduler."""

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from forever.cli.options import Selection, Stopping
from forever.cli.shown import console, print_lines
from forever.cli.verbs.sweep import sweep
from forever.errors import InputError, unknown

# What is no option of this verb is one of `forever sweep`, in the job.
PASSES_ON = {"ignore_unknown_options": True}
_FORMS = ("rayjob", "slurm", "job")


def submit(
    words: list[str] = Argument(
        metavar="SWEEP", help="A sweep, with KEY=VALUE and any options as for `forever sweep`."
    ),
    address: str | None = Option(
        None,
        envvar="RAY_API_SERVER_ADDRESS",
        metavar="URL",
        help="The cluster's dashboard, e.g. http://127.0.0.1:8265.",
    ),
    working_dir: Path = Option(
        Path(), exists=True, file_okay=False, help="Folder that the job takes along."
    ),
    env: list[str] | None = Option(
        None, metavar="NAME=VALUE", help="A variable of the job's environment; may be repeated."
    ),
    render: str | None = Option(
        None, metavar="FORM", help="Print it as rayjob, slurm or job instead; nothing is started."
    ),
    values: Path | None = Option(
        None, exists=True, dir_okay=False, help="Values of your own for --render rayjob."
    ),
) -> None:
    """Run a sweep as a job of a Ray cluster, and follow it until it ends.

    The same command finds the job again. Ctrl-C leaves the job alone.

    Examples:
        forever submit components --address http://127.0.0.1:8265 --out /shared/runs
        forever submit components --render slurm --out /shared/runs
    """
    file, base, out = _check(words)
    _check_paths(file, out, words, working_dir)
    if render is not None and render not in _FORMS:
        raise unknown("form", render, _FORMS)
    from forever.launch.submit.submission import make_submission

    submission = make_submission(file, base, words, _variables(env or []))
    if render is not None:
        from forever.launch.submit.render import render as rendered

        sys.stdout.write(rendered(submission, render, address, values))
        return
    if address is None:
        raise InputError("submit needs --address URL, the cluster's dashboard, or --render FORM")
    from forever.launch.fleet import require_ray

    require_ray()
    from forever.launch.submit.follow import Screen, follow
    from forever.launch.submit.jobs import connect, start_or_join

    client = connect(address)
    job, is_new = start_or_join(client, submission, working_dir)
    print_lines([f"{'started' if is_new else 'joined'}  {job} (code {submission.code})"])
    with Screen(console) as screen:
        code = follow(client, job, screen)
    if code:
        raise typer.Exit(code)


def _check(words: Sequence[str]) -> tuple[Any, Any, Path]:
    """The sweep that `forever sweep` with these words would run, its base run, and --out.

    Raises:
        InputError, click's errors: as that command.
    """
    from forever.sweeps.files import load_sweep

    app = typer.Typer(add_completion=False)
    app.command(epilog="Further options are those of `forever submit`.")(sweep)
    params = typer.main.get_command(app).make_context("forever sweep", [*words]).params
    if params["name"] is None or params["show_all"]:
        raise InputError("submit needs a sweep; `forever sweep --list` shows those that are there")
    selection = Selection(**{field.name: params[field.name] for field in fields(Selection)})
    stopping = Stopping(params["until"], params["budget"])
    file = load_sweep(params["name"])
    asked = selection.asked(file, params["changes"], stopping.limits())
    if file.is_search:
        asked.search()
    else:
        asked.sweep().trials()
    return file, asked.base, params["out"]


def _check_paths(file: Any, out: Path, words: Sequence[str], folder: Path) -> None:
    """Refuse paths that lead elsewhere on a cluster than here."""
    from forever.yaml_file import SUFFIXES

    if not out.is_absolute():  # that of an address is
        raise InputError(
            f"--out {out}: it would lie in the job's copy of {folder.resolve().name}, which is "
            "thrown away; give a folder that all machines share, such as --out /shared/runs, or an "
            "address such as s3://bucket/runs"
        )
    for word in words:
        path = Path(word.rpartition("=")[2])
        if word.endswith(SUFFIXES) and path.is_file():
            inside = path.resolve().is_relative_to(folder.resolve())
            if path.is_absolute() or not inside or not (folder / path).is_file():
                raise InputError(
                    f"{path} is not sent along; give a path within --working-dir {folder}"
                )


def _variables(assignments: Sequence[str]) -> dict[str, str]:
    """The variables in `NAME=VALUE`."""
    variables: dict[str, str] = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise InputError(f"--env {name!r}: NAME=VALUE is expected, e.g. HF_HUB_OFFLINE=1")
        variables[name] = value
    return variables
