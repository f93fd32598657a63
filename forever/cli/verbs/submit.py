"""`forever submit`: a sweep as a job of a Ray cluster."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from forever.cli.options import Launch, Rounds, command
from forever.cli.shown import print_lines
from forever.cli.verbs.sweep import sweep
from forever.errors import InputError

# Options that this verb does not have are those of `forever sweep`, in the job.
PASSES_ON = {"ignore_unknown_options": True}
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
) -> None:
    """Run a sweep as a job of a Ray cluster, and follow it until it ends.

    The same command finds the job again. Ctrl-C leaves the job alone.

    Examples:
        forever submit components --address http://127.0.0.1:8265 --out /shared/runs
    """
    variables: dict[str, str] = {}
    for text in env or []:
        name, sign, variables[name] = text.partition("=")
        if not sign or not name.isidentifier():
            raise InputError(f"--env {name!r}: NAME=VALUE is expected, e.g. HF_HUB_OFFLINE=1")
    if address is None or not address.startswith(("http://", "https://")):
        rule = "the dashboard's URL is expected, e.g. http://127.0.0.1:8265"
        raise InputError(f"--address {address!r}: {rule}")
    file, base, launch = _parse(words)
    _check_shared(launch)
    from forever.launch.resources import require_ray

    require_ray()
    from forever.launch.submit import connect, follow, make_job, start_or_join

    _check_files(words, working_dir)
    job = make_job(file, base, words, variables)
    client = connect(address)
    name, how = start_or_join(client, job, working_dir)
    print_lines([f"{how}  {name}"])
    if how == "done":
        again = f"ray job delete {name} --address {address}"
        print_lines([f"      after `{again}` the same command runs it again"])
    exit_code = follow(client, name)
    if exit_code:
        raise typer.Exit(exit_code)


def _parse(words: Sequence[str]) -> tuple[Any, Any, Launch]:
    """The sweep that `forever sweep` with these words would run, its base run, and how.

    Raises:
        InputError, click's errors: as that command.
    """
    from forever.sweeps.files import load_sweep

    app = typer.Typer(add_completion=False)
    app.command(epilog="Further options are those of `forever submit`.")(command(sweep))
    params = typer.main.get_command(app).make_context("forever sweep", [*words]).params
    if params["name"] is None or params["show_all"]:
        raise InputError("submit needs a sweep; `forever sweep --list` shows them")
    launch = _options(Launch, params)
    launch.resources()
    file = load_sweep(params["name"])
    request = _options(Rounds, params).request(file, params["changes"])
    if file.is_search:
        request.search()
    else:
        request.sweep().trials()
    return file, request.base, launch


def _options(group: Any, params: Mapping[str, Any]) -> Any:
    return group(**{field.name: params[field.name] for field in fields(group)})


def _check_shared(launch: Launch) -> None:
    """Refuse an --out or a file of MLflow's that would lie in the job's own copy of the folder."""
    store = launch.mlflow.removeprefix("sqlite:///").removeprefix("file:")
    if not launch.out.is_absolute():  # that of an address is
        raise InputError(
            f"--out {launch.out} would be lost with the job; give a folder that all machines "
            "share, such as --out /shared/runs, or an address such as s3://bucket/runs"
        )
    if store not in _NO_STORES and "://" not in store and not Path(store).is_absolute():
        raise InputError(
            f"--mlflow {launch.mlflow} would be lost with the job; give a server's address, or "
            "set MLFLOW_TRACKING_URI on the cluster"
        )


def _check_files(words: Sequence[str], folder: Path) -> None:
    """Refuse YAML files that the job would not find where the words name them."""
    from forever.launch.submit import travelling
    from forever.yaml_file import SUFFIXES

    named = [word.rpartition("=")[2] for word in words if word.endswith(SUFFIXES)]
    sent, _ = travelling(folder)
    for name in filter(os.path.isfile, named):
        if os.path.normpath(name) not in sent or not os.path.samefile(name, folder / name):
            raise InputError(
                f"{name} does not travel with the job; give a path within --working-dir {folder}, "
                "outside of runs and of what .gitignore names"
            )
