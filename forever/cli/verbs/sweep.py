"""`forever sweep` and `forever demo`: many variants with Ray Tune."""

from pathlib import Path

from typer import Argument, Option

from forever.cli import commands, options
from forever.cli.options import Launch, Selection, Stopping, parse_seeds, with_options
from forever.cli.shown import show


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
    request = selection.request(load_sweep(name), changes, stopping.limits())
    resources = launch.resources(
        mlflow=commands.mlflow_uri(launch.mlflow),
        concurrent=selection.concurrent,
        retry_failed=selection.retry_failed,
    )
    commands.sweep(request, launch.out, resources)


def demo(
    seeds: str | None = options.SEEDS,
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
    from forever.launch.start import Request
    from forever.sweeps.files import load_sweep
    from forever.sweeps.named_runs import load_run

    uri = commands.mlflow_uri(mlflow)
    resources = Resources(concurrent, workers=0, placement=Placement("cpu"), mlflow=uri)
    request = Request(load_sweep("demo"), load_run("mini/forever"), {}, parse_seeds(seeds))
    commands.sweep(request, out, resources)
