"""The options of the command line that several verbs have, as dataclasses."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any

from typer import Argument, Option

from forever.errors import InputError, shown
from forever.storage.address import local_folder

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def _folder(value: str | None) -> Path | None:
    return None if value is None else local_folder(value)


def _workers(text: str | None) -> tuple[int, int] | None:
    """Parse `--workers 4` or `--workers 1-4` to the fewest and the most."""
    if text is None:
        return None
    fewest, dash, most = text.partition("-")
    try:
        workers = int(fewest), int(most) if dash else int(fewest)
    except ValueError:
        workers = (1, 0)
    if workers[0] > workers[1] or (dash and workers[0] < 1):
        rule = "a number of workers, or the fewest and the most, is expected, e.g. 0, 2 or 1-4"
        raise InputError(f"--workers {shown(text)}: {rule}")
    return workers


# A folder that may be given by its address: where it is on this machine. It is a callback because
# an error in a parser would lose its message.
FOLDER: Any = {"parser": str, "callback": _folder}
# A help text is markup: without the backslash this is a closing tag.
NAMED_RUN = r"<benchmark>\[/<order>]/<method>"
CHANGES: Any = Argument(None, metavar="KEY=VALUE", help="Dotted keys, e.g. optim.lr=1e-3")
OUT: Any = Option(
    "runs", help="Folder for run directories, also s3://bucket/runs or gs://...", **FOLDER
)
MLFLOW: Any = Option(
    "auto", help="MLflow tracking URI, `auto` (MLFLOW_TRACKING_URI or ./mlflow.db) or `off`."
)
SEEDS: Any = Option(None, help="Seeds, separated by commas; default: the sweep's own.")
WORKERS: Any = Option(
    None,
    parser=str,
    callback=_workers,
    metavar="N or N-N",
    help="Ray Train workers, 1-4: as many as have room; 0: a run's own process; "
    "default: 1 in GPU sweeps.",
)
CONCURRENT: Any = Option(None, min=1, help="Runs at a time; default: as many as fit.")


@dataclass(frozen=True)
class Place:
    """Where runs are trained, as far as it changes how long they take."""

    out: Path = OUT
    # A pair of the fewest and the most, (1, 4) for 1-4; None for the default.
    workers: Any = WORKERS
    gpus_per_run: float | None = Option(
        None, min=0.01, metavar="GPUS", help="Of Ray, for each worker; 0.5: two runs share one."
    )
    device: str = Option("auto", help="auto, cpu, cuda, cuda:1 ...")
    micro_batch: int | None = Option(
        None, min=1, help="Examples at once on a device: saves memory."
    )

    def resources(self, **more: Any) -> Any:
        """What these options ask for, with `more` fields of it."""
        from forever.launch.resources import Placement, Resources

        least, most = self.workers or (None, None)
        placement = Placement(self.device, self.micro_batch)
        asked: dict[str, Any] = {"placement": placement, **more}
        return Resources(
            workers=most,
            least=least if least != most else None,
            gpus_per_run=self.gpus_per_run,
            **asked,
        )


@dataclass(frozen=True)
class Launch(Place):
    """Where and how runs are trained. Nothing here changes what is computed."""

    ray_logs: bool = Option(False, "--ray-logs", help="Show what Ray's processes print.")
    checkpoint_every: float = Option(60.0, min=0, help="Seconds between checkpoints in a task.")
    hang_after: float = Option(
        1800.0, min=0, help="End a run that does nothing for so many seconds; 0: never."
    )
    keep_stages: bool = Option(
        False, "--keep-stages", help="Keep each stage's weights, for --fork."
    )
    accept_changes: bool = Option(
        False, "--accept-changes", help="Resume though data, model or code changed; it is recorded."
    )
    mlflow: str = MLFLOW

    def resources(self, **more: Any) -> Any:
        """What these options ask for, with `more` fields of it."""
        from forever.launch.resources import Placement

        placement = Placement(
            self.device,
            self.micro_batch,
            self.checkpoint_every,
            self.keep_stages,
            self.accept_changes,
            self.hang_after,
        )
        return super().resources(placement=placement, ray_logs=self.ray_logs, **more)


@dataclass(frozen=True)
class Selection:
    """Which runs a sweep has, and how many of them are trained at a time."""

    scale: str = Option(
        "mini", help="mini (embedded, minutes), cpu (real data, hours) or paper (GPUs)."
    )
    on: str | None = Option(
        None, help=f"Base run instead of a scale's: a YAML file or {NAMED_RUN}."
    )
    seeds: str | None = SEEDS
    only: list[str] | None = Option(
        None, metavar="VARIANT", help="A variant and what it is compared with; may be repeated."
    )
    trials: int | None = Option(
        None, min=1, max=10**6, help="Runs of a search; default: as its file says."
    )
    concurrent: int | None = CONCURRENT
    retry_failed: bool = Option(
        False, "--retry-failed", help="Also run what failed for good before."
    )

    def check(self, name: str, file: Any) -> None:
        """Refuse options that the sweep, the search or the single run `name` does not have."""
        from forever.launch.start import check_choice

        check_choice(name, file, parse_seeds(self.seeds), self.only or (), self.trials)

    def request(self, file: Any, changes: list[str] | None, limits: Any = None) -> Any:
        """Apply these options and KEY=VALUE to a sweep's file; see `Request`."""
        from forever.config.overrides import parse_assignments
        from forever.launch.start import Request
        from forever.sweeps.named_runs import load_run

        base = load_run(self.on or file.base_run(self.scale))
        changed, seeds = parse_assignments(changes or []), parse_seeds(self.seeds)
        return Request(file, base, changed, seeds, self.only or (), self.trials, limits)


@dataclass(frozen=True)
class Stopping:
    """Whether a sweep adds seeds in rounds, and when it ends."""

    until: float | None = Option(
        None,
        min=0.01,
        max=100,
        metavar="POINTS",
        help="Add seeds until each difference is shown, or shown to be within these points.",
    )
    budget: str | None = Option(
        None, metavar="TIME", help="Add seeds as long as they fit, e.g. 90s, 30m, 2h."
    )

    def limits(self) -> Any:
        """When the sweep ends; None: after its seeds, as without these options."""
        if self.until is None and self.budget is None:
            return None
        from forever.sweeps.rounds import Limits

        return Limits(self.until, parse_time(self.budget))


def with_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb one command-line option for each field of the dataclasses that it takes."""
    signature = inspect.signature(verb)
    parameters: list[Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if not is_dataclass(parameter.annotation):
            parameters.append(parameter)
            continue
        groups[name] = parameter.annotation
        for field in fields(parameter.annotation):
            option = Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default)
            parameters.append(option.replace(annotation=field.type))

    @functools.wraps(verb)
    def expanded(**values: Any) -> None:
        for name, group in groups.items():
            options = {field.name: values.pop(field.name) for field in fields(group)}
            values[name] = group(**options)
        verb(**values)

    setattr(expanded, "__signature__", signature.replace(parameters=parameters))  # noqa: B010 - no declared field
    return expanded


def parse_seeds(text: str | None) -> tuple[int, ...] | None:
    """The numbers in `--seeds 0,1,2`; None for none given."""
    if text is None:
        return None
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        rule = "whole numbers separated by commas are expected, e.g. 0,1,2"
        raise InputError(f"--seeds {shown(text)}: {rule}") from None


def parse_time(text: str | None) -> float | None:
    """The seconds in `--budget 90s`, `30m` or `2h`; None for none given."""
    if text is None:
        return None
    try:
        seconds = float(text[:-1]) * _SECONDS[text[-1:]]
    except (ValueError, KeyError):
        seconds = 0.0
    if not seconds > 0:
        rule = "a number above 0 with s, m or h is expected, e.g. 90s, 30m, 2h"
        raise InputError(f"--budget {shown(text)}: {rule}")
    return seconds
