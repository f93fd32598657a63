"""The options of the command line that several verbs have, as two dataclasses."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from forever.errors import InputError
from forever.launch.local import Placement
from forever.sweeps.files import SweepFile

# A help text is markup: without the backslash this is a closing tag.
NAMED_RUN = r"<benchmark>\[/<order>]/<method>"
SWEEP = "A sweep's name (`forever sweep --list`), or its YAML file"
Assignments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Dotted keys, e.g. optim.lr=1e-3"),
]


@dataclass(frozen=True)
class Launch:
    """Where and how runs are trained. Nothing here changes what is computed."""

    out: Annotated[Path, typer.Option(help="Folder for run directories.")] = Path("runs")
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Ray Train workers a run; 0 is its own process; default: 1 in a sweep on a GPU "
            "cluster.",
        ),
    ] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto"
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Examples a device takes at once: saves memory.")
    ] = None
    checkpoint_every: Annotated[
        float, typer.Option(min=0, help="Seconds between checkpoints within a task.")
    ] = 60.0
    keep_stages: Annotated[
        bool, typer.Option("--keep-stages", help="Keep the weights of every stage, for --fork.")
    ] = False
    mlflow: Annotated[
        str,
        typer.Option(
            help="MLflow tracking URI, `auto` (MLFLOW_TRACKING_URI or ./mlflow.db) or `off`."
        ),
    ] = "auto"

    @property
    def placement(self) -> Placement:
        """How a run uses its machine."""
        return Placement(self.device, self.micro_batch, self.checkpoint_every, self.keep_stages)


@dataclass(frozen=True)
class Selection:
    """Which runs a sweep has, and how many of them are trained at a time."""

    scale: Annotated[
        str,
        typer.Option(
            help="How large: mini (embedded, minutes), cpu (real data, two cores, hours) or paper "
            "(GPUs)."
        ),
    ] = "mini"
    on: Annotated[
        str | None,
        typer.Option(help=f"The base run, instead of a scale's: a YAML file or {NAMED_RUN}."),
    ] = None
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, separated by commas; default: the sweep's own.")
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VARIANT",
            help="This variant of the sweep and what it is compared with; may be repeated.",
        ),
    ] = None
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many configurations a search tries in all; default: as its file says."
        ),
    ] = None
    concurrent: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: as many as fit.")
    ] = None
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also run what failed for good before.")
    ] = False

    def check(self, name: str, file: SweepFile | None) -> None:
        """Refuse options that the sweep, the search or the single run called `name` does not have.

        Raises:
            InputError: there is such an option.
        """
        searches = file is not None and file.is_search
        if self.trials is not None and not searches:
            raise InputError(
                f"--trials {self.trials}: {name} has its own variants; only a search has a number "
                "of them"
            )
        if self.only and (file is None or searches):
            raise InputError(f"--only {self.only[0]!r}: {name} has no variants by name")


def with_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb one command-line option for each field of the dataclasses that it takes."""
    signature = inspect.signature(verb)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    parameters = [p for name, p in signature.parameters.items() if name not in groups]
    for group in groups.values():
        for field in fields(group):
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=field.type,
                )
            )

    def expanded(**values: Any) -> None:
        for name, group in groups.items():
            options = {field.name: values.pop(field.name) for field in fields(group)}
            values[name] = group(**options)
        verb(**values)

    expanded.__name__, expanded.__doc__ = verb.__name__, verb.__doc__
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    setattr(expanded, "__signature__", signature.replace(parameters=parameters))  # noqa: B010 - no declared field
    return expanded


def parse_seeds(text: str | None) -> tuple[int, ...] | None:
    """The numbers in `--seeds 0,1,2`; None for none given.

    Raises:
        InputError: no whole numbers, negative ones, or one of them twice.
    """
    if text is None:
        return None
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--seeds {text!r}: whole numbers separated by commas are expected, e.g. 0,1,2"
        ) from None
    if min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise InputError(f"--seeds {text!r}: seeds must be different and not negative")
    return seeds
