"""`forever submit`: a sweep as a job of a Ray cluster, or written down for another scheduler."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from forever.cli.options import Launch, Selection, Stopping
from forever.cli.shown import console, print_lines
from forever.cli.verbs.sweep import sweep
from forever.errors import InputError, unknown
from forever.storage.address import is_address, portable

# What is no option of this verb is one of `forever sweep`, in the job.
PASSES_ON = {"ignore_unknown_options": True}
_FORMS = ("rayjob", "slurm", "job")
_MOUNTED = Path("/shared")  # by all pods of deploy/kuberay/
_NO_STORES = ("auto", "off", "databricks")  # what --mlflow may be that is neither path nor address


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
    _check_form(render, values)
    file, base, launch = _check(words)
    _check_folders(launch, working_dir, render)
    files = _check_files(words, working_dir, render)
    from forever.launch.submit.submission import make_submission

    if render in (None, "job") and address is not None:
        _check_address(address)
    submission = make_submission(file, base, words, _variables(env or []))
    if render is not None:
        from forever.launch.submit.render import rendered

        sys.stdout.write(rendered(submission, render, address, working_dir, files, values))
        return
    if address is None:
        raise InputError("submit needs --address URL, the cluster's dashboard, or --render FORM")
    from forever.launch.fleet import require_ray

    require_ray()
    from forever.launch.submit.follow import Screen, follow
    from forever.launch.submit.jobs import connect, start_or_join

    client = connect(address)
    job, how = start_or_join(client, submission, working_dir)
    _say_how(job, how, submission.code, client.get_address())
    with Screen(console) as screen:
        code = follow(client, job, screen)
    if code:
        raise typer.Exit(code)


def _say_how(job: str, how: str, code: str, address: str) -> None:
    """Say whether a job was started or joined, or is done and how it would run again."""
    print_lines([f"{how}  {job} (code {code})"])
    if how == "done":
        again = f"ray job delete {job} --address {address}"
        print_lines(
            [f"        it ended well before; after `{again}` the same command runs it again"]
        )


def _check(words: Sequence[str]) -> tuple[Any, Any, Launch]:
    """The sweep that `forever sweep` with these words would run, its base run, and how.

    Raises:
        InputError, click's errors: as that command.
    """
    from forever.sweeps.files import load_sweep

    app = typer.Typer(add_completion=False)
    app.command(epilog="Further options are those of `forever submit`.")(sweep)
    params = typer.main.get_command(app).make_context("forever sweep", [*words]).params
    if params["name"] is None or params["show_all"]:
        raise InputError("submit needs a sweep; `forever sweep --list` shows those that are there")
    selection = _options(Selection, params)
    stopping = Stopping(params["until"], params["budget"])
    file = load_sweep(params["name"])
    asked = selection.asked(file, params["changes"], stopping.limits())
    if file.is_search:
        asked.search()
    else:
        asked.sweep().trials()
    launch = _options(Launch, params)
    _check_launch(launch)
    return file, asked.base, launch


def _options(group: Any, params: Mapping[str, Any]) -> Any:
    return group(**{field.name: params[field.name] for field in fields(group)})


def _check_form(render: str | None, values: Path | None) -> None:
    if render is not None and render not in _FORMS:
        raise unknown("form", render, _FORMS)
    if values is not None and render != "rayjob":
        raise InputError("--values is for --render rayjob alone; leave it out")


def _check_launch(launch: Launch) -> None:
    """Refuse what no cluster could do, however large."""
    from forever.launch.fleet import divide

    # As training does, which would load torch and look for GPUs here.
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", launch.device) is None:
        raise unknown("device", launch.device, ["auto", "cpu", "cuda", "cuda:1"])
    divide({"CPU": sys.maxsize, "GPU": sys.maxsize}, 2, 1, launch.fleet())


def _check_address(address: str) -> None:
    if not re.fullmatch(r"https?://\S+", address):
        rule = "the dashboard's URL is expected, e.g. http://127.0.0.1:8265"
        raise InputError(f"--address {address!r}: {rule}")


def _check_folders(launch: Launch, folder: Path, form: str | None) -> None:
    """Refuse an --out or a file of MLflow's that leads elsewhere on a cluster than here."""
    out, store = launch.out, launch.mlflow.removeprefix("sqlite:///").removeprefix("file:")
    remedy = (
        "a folder that all machines share, such as --out /shared/runs, or an address such as "
        "s3://bucket/runs"
    )
    lost = f"it would lie in the job's copy of {folder.resolve().name}, which is thrown away"
    if not out.is_absolute():  # that of an address is
        raise InputError(f"--out {out}: {lost}; give {remedy}")
    inside = Path(os.path.normpath(out)).is_relative_to(_MOUNTED)
    if form == "rayjob" and not inside and not is_address(str(portable(out))):
        raise InputError(f"--out {out}: a RayJob's pods share {_MOUNTED} alone; give {remedy}")
    if store not in _NO_STORES and "://" not in store and not Path(store).is_absolute():
        raise InputError(
            f"--mlflow {launch.mlflow}: {lost}; give a server's address, or set "
            "MLFLOW_TRACKING_URI on the cluster"
        )


def _check_files(words: Sequence[str], folder: Path, form: str | None) -> list[str]:
    """The files that words of a sweep name; those that a job would not find are refused."""
    from forever.yaml_file import SUFFIXES

    named = [word.rpartition("=")[2] for word in words if word.endswith(SUFFIXES)]
    files = [name for name in named if Path(name).is_file()]
    for path in map(Path, files):
        inside = path.resolve().is_relative_to(folder.resolve()) and not path.is_absolute()
        if not inside or not _travels(path, folder, form):
            raise InputError(
                f"{path} is not sent along; give a path within --working-dir {folder}, outside of "
                "runs and of what .gitignore names"
            )
    return files


def _travels(path: Path, folder: Path, form: str | None) -> bool:
    """Whether a job finds a file where it is called so; nothing is packed for Slurm."""
    if form == "slurm":
        return (folder / path).is_file()
    from forever.launch.fleet import require_ray

    require_ray()
    from forever.launch.submit.packing import travelling

    return os.path.normpath(path) in travelling(folder)


def _variables(assignments: Sequence[str]) -> dict[str, str]:
    """The variables in `NAME=VALUE`."""
    variables: dict[str, str] = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise InputError(f"--env {name!r}: NAME=VALUE is expected, e.g. HF_HUB_OFFLINE=1")
        variables[name] = value
    return variables
