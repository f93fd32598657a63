"""The command line: a few verbs, each a thin layer over the library. Exit 0 done, 1 failed, 2 bad input."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console

from forever.config import parse_assignments
from forever.errors import InputError, unknown
from forever.options import (
    NAMED_RUN,
    Assignments,
    CheckpointEvery,
    Concurrent,
    Device,
    MicroBatch,
    Mlflow,
    On,
    Out,
    Scale,
    Seeds,
    Workers,
)

app = typer.Typer(
    help="Continual learning of language models around FOREVER: run, sweep, compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Look at benchmark data.", no_args_is_help=True)
app.add_typer(data_app, name="data")
# A pipe has no width of its own; 80 columns would fold every table.
console = Console() if sys.stdout.isatty() else Console(width=120)


@app.command()
def run(
    config: Annotated[str, typer.Argument(help=f"A YAML file, or {NAMED_RUN} such as mini/forever.")],
    changes: Assignments = None,
    out: Out = Path("runs"),
    workers: Workers = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    device: Device = "auto",
    micro_batch: MicroBatch = None,
    checkpoint_every: CheckpointEvery = 60.0,
    mlflow: Mlflow = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
) -> None:
    """Train one run, task after task, and print its performance matrix."""
    from experiments.runs import load_run
    from forever.console import ConsoleTracker, matrix_table
    from forever.launch.local import Placement, check, run_local
    from forever.run_directory import RunDirectory

    settings = load_run(config).override(parse_assignments(changes or []))
    directory = RunDirectory(out / settings.key())
    check(settings, directory, resume)
    if directory.finished() is not None:
        console.print(f"{directory.path} is finished; nothing to do", soft_wrap=True)
    placement = Placement(device, micro_batch, checkpoint_every)
    uri = _mlflow_uri(mlflow)
    with _mirrored(directory.path, uri) as mirror, closing(ConsoleTracker(Console(quiet=quiet))) as progress:
        if workers:
            from forever.launch.ray_train import run_workers

            arguments = (settings, directory.path, workers, resume, placement)
            result = run_workers(*arguments, tracking=uri, trackers=[progress])
        else:
            trackers = [progress, *mirror]
            result = run_local(settings, directory.path, resume=resume, trackers=trackers, placement=placement)
    console.print(matrix_table(result))


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(help="A sweep, such as components.")],
    changes: Assignments = None,
    scale: Scale = "mini",
    on: On = None,
    seeds: Seeds = "0",
    out: Out = Path("runs"),
    concurrent: Concurrent = None,
    workers: Workers = None,
    device: Device = "auto",
    micro_batch: MicroBatch = None,
    checkpoint_every: CheckpointEvery = 60.0,
    mlflow: Mlflow = "auto",
) -> None:
    """Run many variants with Ray Tune, then print the table and write the report. Goes on where it was interrupted."""
    base = _base(scale, on)
    _sweep(name, base, changes, seeds, out, concurrent, workers, device, micro_batch, checkpoint_every, mlflow)


@app.command()
def demo(
    seeds: Seeds = "0",
    out: Out = Path("runs"),
    concurrent: Concurrent = None,
    mlflow: Mlflow = "auto",
) -> None:
    """The component ablation of FOREVER on the embedded benchmark: minutes on two CPU cores, no download."""
    _sweep("demo", "mini/forever", None, seeds, out, concurrent, 0, "cpu", None, 60.0, mlflow)


@app.command()
def plan(
    name: Annotated[str, typer.Argument(help=f"A sweep, a YAML file or {NAMED_RUN}.")],
    changes: Assignments = None,
    scale: Scale = "mini",
    on: On = None,
    seeds: Seeds = "0",
    out: Out = Path("runs"),
    tokens_per_second: Annotated[float | None, typer.Option(min=1, help="Training throughput, for hours.")] = None,
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="Of one device, for the cost.")] = None,
) -> None:
    """What a run or a sweep will cost: runs, updates, tokens, hours; nothing is started."""
    from experiments.plans import plan_table

    table = plan_table(
        name, _base(scale, on), parse_assignments(changes or []), _seeds(seeds), out, tokens_per_second, price_per_hour
    )
    console.print(table)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A sweep, a run, or a folder of runs.")]) -> None:
    """Write report.md and report.html with tables and figures, from run directories alone."""
    _show_report(folder)


@app.command()
def sync(
    folder: Annotated[Path, typer.Argument(help="A run or a sweep.")],
    mlflow: Mlflow = "auto",
) -> None:
    """Send to MLflow what it does not have yet, once each."""
    from forever.launch import mlflow_tracker

    uri = _mlflow_uri(mlflow)
    if uri is None:
        raise InputError("MLflow is off or not installed; pip install 'forever-cl[mlflow]' and give --mlflow URI")
    mlflow_tracker.sync(folder, uri)


@app.command()
def doctor() -> None:
    """Check what is installed and what this machine offers."""
    from experiments.doctor import examine

    table, sound = examine()
    console.print(table)
    if not sound:
        raise typer.Exit(1)


@data_app.command("check")
def data_check(
    root: Annotated[Path | None, typer.Argument(help="Folder with benchmark folders; none: the embedded one.")] = None,
) -> None:
    """Read every task that is found, and show rows, metric, labels and length; errors name file and line."""
    from experiments.data_tables import data_table

    console.print(data_table(root))


def _sweep(
    name: str,
    on: str,
    changes: Sequence[str] | None,
    seeds: str,
    out: Path,
    concurrent: int | None,
    workers: int | None,
    device: str,
    micro_batch: int | None,
    checkpoint_every: float,
    mlflow: str,
) -> None:
    from experiments.runs import load_run
    from experiments.sweeps import named_sweep
    from forever.launch.local import Placement, refused

    sweep = named_sweep(name, load_run(on).override(parse_assignments(changes or [])), _seeds(seeds))
    folder = (out / sweep.name).absolute()
    refused(sweep.trials())
    uri = _mlflow_uri(mlflow)
    from forever.launch.ray_tune import run_sweep  # Ray takes seconds to import: after the data has been checked

    outcome = run_sweep(
        sweep,
        folder,
        concurrent=concurrent,
        workers=workers,
        placement=Placement(device, micro_batch, checkpoint_every),
        mlflow=uri,
    )
    _show_report(folder)
    if uri is not None and uri.startswith("sqlite:"):
        console.print(
            f"MLflow  {Path(sys.executable).with_name('mlflow')} ui --backend-store-uri {uri}", soft_wrap=True
        )
    elif uri is not None and uri.startswith("http"):
        console.print(f"MLflow  {urlsplit(uri)._replace(netloc=urlsplit(uri).netloc.rpartition('@')[2]).geturl()}")
    for key, error in outcome.failed.items():
        console.print(f"failed  {key}: {error}", soft_wrap=True, markup=False, highlight=False)
    if outcome.failed:
        raise typer.Exit(1)


def _show_report(folder: Path) -> None:
    from experiments.tables import summary_table

    console.print(summary_table(folder))
    try:
        from experiments.report import write_report
    except ModuleNotFoundError as error:
        console.print(f"no report: {error.name} is not installed; pip install 'forever-cl\\[report]'")
    else:
        console.print(f"report  {write_report(folder)}", soft_wrap=True, highlight=False)


def _base(scale: str, on: str | None) -> str:
    """The base run of a sweep: what `--on` says, or else what the scale stands for."""
    from experiments.runs import SCALES

    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return on or SCALES[scale]


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--seeds {text!r}: whole numbers separated by commas are expected, e.g. 0,1,2") from None
    if min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise InputError(f"--seeds {text!r}: seeds must be different and not negative")
    return seeds


def _mlflow_uri(choice: str) -> str | None:
    """The tracking URI to use, or None. `auto` without MLflow installed means no tracking, and is not an error."""
    from importlib.util import find_spec

    if choice == "off":
        return None
    if find_spec("mlflow") is None:
        if choice != "auto":
            raise InputError("--mlflow: MLflow is not installed; pip install 'forever-cl[mlflow]', or --mlflow off")
        return None
    if choice != "auto":
        return choice
    from forever.launch.mlflow_tracker import tracking_uri

    return tracking_uri()


@contextmanager
def _mirrored(folder: Path, uri: str | None) -> Iterator[list[Any]]:
    """The MLflow tracker of a run, if any; a run that is interrupted is marked so and does not stay RUNNING."""
    if uri is None:
        yield []
        return
    from forever.launch import mlflow_tracker

    try:
        yield [mlflow_tracker.MlflowTracker(uri)]
    except BaseException:
        with suppress(Exception):  # the reason why the run ended matters more than a server that is away
            mlflow_tracker.sync(folder, uri, patience_s=5.0)  # the last workers end some seconds later
        raise


def main() -> None:
    """Entry point of the console script."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130:  # Ctrl-C, as typer passes it on
            again = "the same command with --resume" if sys.argv[1:2] == ["run"] else "the same command"
            print(f"interrupted; {again} goes on from the last checkpoint", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
