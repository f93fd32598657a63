"""The options of the command line that several verbs have, as two dataclasses."""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any

from typer import Argument, CallbackParam, Option

from forever.cli.completion import complete_method, complete_run, complete_scale
from forever.errors import InputError, shown
from forever.storage.address import local_folder

_NUMBER = "0|[1-9][0-9]{0,9}"  # as people write it: 010 may be 8 or 10
_WHOLE = "0|[1-9][0-9]{0,39}"  # the same, of which bounds say the rest
_FRACTION = rf"(?:{_WHOLE}|(?=\.[0-9]))(?:\.[0-9]{{0,40}})?(?:[eE][+-]?[0-9]{{1,3}})?"


def _folder(value: str | None) -> Path | None:
    return None if value is None else local_folder(value)


def number(
    default: float | None,
    help: str,
    least: float,
    most: float = 1e9,
    whole: bool = False,
    metavar: str | None = None,
) -> Any:
    """An option whose value is a number as people write it, and within bounds."""
    pattern, kind = (_WHOLE, int) if whole else (_FRACTION, float)

    def parse(param: CallbackParam, text: str | None) -> float | None:
        if text is None:
            return None
        if re.fullmatch(pattern, text) and least <= kind(text) <= most:
            return kind(text)
        rule = f"a {'whole ' * whole}number from {least:g} to {most:g} is expected"
        raise InputError(f"{param.opts[0]} {shown(text)}: {rule}, without leading zeros")

    return Option(default, help=help, min=least, metavar=metavar, parser=str, callback=parse)


# What a user may give by an address, too: its place on this machine. A parser that refuses a value
# could not say why.
FOLDER: Any = {"parser": str, "callback": _folder}
# A help text is markup: without the backslash this is a closing tag.
NAMED_RUN = r"<benchmark>\[/<order>]/<method>"
CHANGES: Any = Argument(
    None,
    metavar="KEY=VALUE",
    help="Dotted keys, e.g. optim.lr=1e-3",
    autocompletion=complete_method,
)
OUT: Any = Option(
    "runs", help="Folder for run directories, also s3://bucket/runs or gs://...", **FOLDER
)
MLFLOW: Any = Option(
    "auto", help="MLflow tracking URI, `auto` (MLFLOW_TRACKING_URI or ./mlflow.db) or `off`."
)
SEEDS: Any = Option(None, help="Seeds, separated by commas; default: the sweep's own.")
CONCURRENT: Any = number(None, "Runs at a time; default: as many as fit.", 1, whole=True)


@dataclass(frozen=True)
class Place:
    """Where runs are trained, as far as it changes how long they take."""

    out: Path = OUT
    workers: str | None = Option(
        None,
        metavar="N or N-N",
        help="Ray Train workers, 1-4: as many as have room; 0: a run's own process; "
        "default: 1 in GPU sweeps.",
    )
    gpus_per_run: float | None = number(
        None, "Of Ray, for each worker; 0.5: two runs share one.", 0.01, metavar="GPUS"
    )
    device: str = Option("auto", help="auto, cpu, cuda, cuda:1 ...")
    micro_batch: int | None = number(
        None, "Examples at once on a device: saves memory.", 1, whole=True
    )

    @property
    def most_workers(self) -> int | None:
        """Of Ray Train; None leaves it to the cluster."""
        workers = parse_workers(self.workers)
        return workers[1] if workers else None


@dataclass(frozen=True)
class Launch(Place):
    """Where and how runs are trained. Nothing here changes what is computed."""

    ray_logs: bool = Option(False, "--ray-logs", help="Show what Ray's processes print.")
    checkpoint_every: float = number(60.0, "Seconds between checkpoints within a task.", 0)
    hang_after: float = number(
        1800.0, "End a run that does nothing for so many seconds; 0: never.", 0
    )
    keep_stages: bool = Option(
        False, "--keep-stages", help="Keep each stage's weights, for --fork."
    )
    accept_changes: bool = Option(
        False, "--accept-changes", help="Go on though data, model or code changed; noted down."
    )
    mlflow: str = MLFLOW

    @property
    def placement(self) -> Any:
        """How a run uses its machine."""
        from forever.launch.local import Placement

        return Placement(
            self.device,
            self.micro_batch,
            self.checkpoint_every,
            self.keep_stages,
            accept_changes=self.accept_changes,
            hang_s=self.hang_after,
        )

    def fleet(self, mlflow_uri: str | None = None) -> Any:
        """How runs are spread, as far as these options say, and at which address MLflow hears."""
        from forever.launch.fleet import Fleet

        workers = parse_workers(self.workers)
        least = workers[0] if workers and workers[0] < workers[1] else None
        return Fleet(
            workers=self.most_workers,
            least=least,
            gpus_per_run=self.gpus_per_run,
            ray_logs=self.ray_logs,
            placement=self.placement,
            mlflow=mlflow_uri,
        )


@dataclass(frozen=True)
class Selection:
    """Which runs a sweep has, and how many of them are trained at a time."""

    scale: str = Option(
        "mini",
        help="mini (embedded, minutes), cpu (real data, hours) or paper (GPUs).",
        autocompletion=complete_scale,
    )
    on: str | None = Option(
        None,
        help=f"Base run instead of a scale's: a YAML file or {NAMED_RUN}.",
        autocompletion=complete_run,
    )
    seeds: str | None = SEEDS
    only: list[str] | None = Option(
        None, metavar="VARIANT", help="A variant and what it is compared with; may be repeated."
    )
    trials: int | None = number(
        None, "Runs of a search; default: as its file says.", 1, most=10**6, whole=True
    )
    concurrent: int | None = CONCURRENT
    retry_failed: bool = Option(
        False, "--retry-failed", help="Also run what failed for good before."
    )

    def check(self, name: str, file: Any) -> None:
        """Refuse options that the sweep, the search or the single run `name` does not have."""
        from forever.launch.start import check_choice

        check_choice(name, file, parse_seeds(self.seeds), self.only or (), self.trials)

    def asked(self, file: Any, changes: list[str] | None, limits: Any = None) -> Any:
        """What these options and KEY=VALUE ask for of a sweep's file; see `Asked`."""
        from forever.config.overrides import parse_assignments
        from forever.launch.start import Asked
        from forever.sweeps.named_runs import load_run

        base = load_run(self.on or file.base_run(self.scale))
        changed, seeds = parse_assignments(changes or []), parse_seeds(self.seeds)
        return Asked(file, base, changed, seeds, self.only or (), self.trials, limits)


@dataclass(frozen=True)
class Stopping:
    """Whether a sweep adds seeds in rounds, and when it ends."""

    until: float | None = number(
        None,
        "Add seeds until each difference is shown, or shown to be within these points.",
        0.01,
        100,
        metavar="POINTS",
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
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(_NUMBER, part) for part in parts):
        rule = "whole numbers separated by commas are expected, e.g. 0,1,2"
        raise InputError(f"--seeds {shown(text)}: {rule}")
    return tuple(map(int, parts))


def parse_workers(text: str | None) -> tuple[int, int] | None:
    """The fewest and the most workers in `--workers 4` or `--workers 1-4`; None for none given."""
    if text is None:
        return None
    parts = re.fullmatch(f"({_NUMBER})(?:-({_NUMBER}))?", text)
    least, most = (int(parts[1]), int(parts[2] or parts[1])) if parts else (1, 0)
    if least > most or (parts and parts[2] and not least):
        raise InputError(
            f"--workers {shown(text)}: a number of workers, or the least and the most, is "
            "expected, e.g. 0, 2 or 1-4"
        )
    return least, most


def parse_time(text: str | None) -> float | None:
    """The seconds in `--budget 90s`, `30m` or `2h`; None for none given."""
    if text is None:
        return None
    parts = re.fullmatch(rf"((?:{_NUMBER})(?:\.[0-9]{{1,9}})?)([smh])", text)
    if not parts or not float(parts[1]):
        rule = "a number above 0 with s, m or h is expected, e.g. 90s, 30m, 2h"
        raise InputError(f"--budget {shown(text)}: {rule}")
    return float(parts[1]) * {"s": 1, "m": 60, "h": 3600}[parts[2]]
