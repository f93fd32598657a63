"""`forever sweep` and `forever demo`: many variants with Ray Tune."""

import shlex
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from forever.cli import options
from forever.cli.options import Launch, Rounds
from forever.cli.shown import note, print_lines, show
from forever.cli.verbs.report import show_report


def sweep(
    name: str | None = Argument(
        None, help="A sweep's name (`forever sweep --list`), or its YAML file."
    ),
    changes: list[str] | None = options.CHANGES,
    show_all: bool = Option(False, "--list", help="Show all sweeps with their question, and end."),
    *,
    selection: Rounds,
    launch: Launch,
) -> None:
    """Run many variants with Ray Tune, then print the table and write the report.

    The same command resumes an interrupted sweep. The sweep `search` finds its variants while it
    runs, with Optuna, and stops those that fall behind.

    Examples:
        forever sweep --list
        forever sweep components --seeds 0,1,2
        forever sweep my-sweep.yaml --on my-run.yaml --until 2 --budget 1h
    """
    from forever.sweeps.files import load_sweep, sweeps_table

    if show_all or name is None:
        show(sweeps_table())
        return
    request = selection.request(load_sweep(name), changes)
    from forever.launch.start import mlflow_uri

    resources = launch.resources(
        mlflow=mlflow_uri(launch.mlflow),
        concurrent=selection.concurrent,
        retry_failed=selection.retry_failed,
    )
    _run(request, launch.out, resources)


def demo(
    seeds: Any = options.SEEDS,
    out: Path = options.OUT,
    concurrent: int | None = options.CONCURRENT,
    mlflow: str = options.MLFLOW,
) -> None:
    """The component ablation of FOREVER on the embedded benchmark: minutes on two CPU cores.

    Examples:
        forever demo
        forever demo --seeds 0,1,2
    """
    from forever.launch.resources import Placement, Resources
    from forever.launch.start import Request, mlflow_uri
    from forever.sweeps.files import load_sweep
    from forever.sweeps.named_runs import load_run

    resources = Resources(
        concurrent, workers=0, placement=Placement("cpu"), mlflow=mlflow_uri(mlflow)
    )
    _run(Request(load_sweep("demo"), load_run("mini/forever"), {}, seeds), out, resources)


def _run(request: Any, out: Path, resources: Any) -> None:
    """Run a sweep or a search in a folder of `out`, print its table, write its report, and say
    where MLflow compares it; exit with 1 if a run failed."""
    from forever.launch.start import run_file
    from forever.sweeps.search import front_table

    outcome = run_file(request, out, resources, lambda line: print_lines([line]))
    folder = request.folder(out)
    study = None
    if outcome.finished or outcome.skipped:
        study = show_report(folder)
        if request.file.is_search:
            show(front_table(request.search(), folder), "best")
    print_lines([f"failed  {key}: {error}" for key, error in outcome.failed.items()])
    note(folder=folder, failed=outcome.failed)
    if resources.mlflow is not None:
        from forever.launch.mlflow.store import local_address, place_of
        from forever.launch.mlflow.tracker import show_sweep
        from forever.text import complain

        show_sweep(folder, resources.mlflow, study, complain)
        place = place_of(folder)
        if place is not None:  # otherwise MLflow was away, which was reported
            page = place.comparison(place.served or local_address())
            if place.served is None:  # a database has no pages of its own
                print_lines([f"MLflow  forever ui {shlex.quote(str(folder))}"])
            print_lines([f"compare  {page}"])
            note(compare=page)
    if outcome.failed:
        raise typer.Exit(1)
