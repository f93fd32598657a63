"""The options of the command line that several verbs have."""

from pathlib import Path
from typing import Annotated

import typer

# A help text is markup: without the backslash this is a closing tag.
NAMED_RUN = r"<benchmark>\[/<order>]/<method>"
SWEEP = "A sweep's name (`forever sweep --list`), or its YAML file"
Assignments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Dotted keys, e.g. optim.lr=1e-3"),
]
Out = Annotated[Path, typer.Option(help="Folder for run directories.")]
Scale = Annotated[
    str,
    typer.Option(
        help="How large: mini (embedded, minutes), cpu (real data, two cores, hours) or paper (GPUs)."
    ),
]
On = Annotated[
    str | None,
    typer.Option(help=f"The base run, instead of a scale's: a YAML file or {NAMED_RUN}."),
]
Seeds = Annotated[
    str | None, typer.Option(help="Seeds, separated by commas; default: the sweep's own.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="VARIANT",
        help="This variant of the sweep and what it is compared with, not all; may be repeated.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Ray Train workers a run; 0 is its own process; default: 1 in a sweep on a GPU cluster.",
    ),
]
Concurrent = Annotated[
    int | None, typer.Option(min=1, help="Runs at a time; default: as many as fit.")
]
Mlflow = Annotated[
    str,
    typer.Option(help="MLflow tracking URI, `auto` (MLFLOW_TRACKING_URI or ./mlflow.db) or `off`."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
MicroBatch = Annotated[
    int | None, typer.Option(min=1, help="Rows a device takes at once: saves memory.")
]
CheckpointEvery = Annotated[
    float, typer.Option(min=0, help="Seconds between checkpoints within a task.")
]
KeepStages = Annotated[
    bool, typer.Option("--keep-stages", help="Keep the weights of every stage, for --fork.")
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Also run what failed for good before.")
]
Fork = Annotated[
    str | None,
    typer.Option(
        metavar="RUN@TASK",
        help="Begin after a task, by name or number, of a run's folder; it needs --keep-stages.",
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        min=1, help="Of a search: how many configurations in all; default: what its file says."
    ),
]
