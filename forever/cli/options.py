"""The options that several verbs have, as dataclasses, and how a function becomes a command."""

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any

from typer import Argument, Option
from typer.core import TyperCommand

from forever.cli.shown import document
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


def _seeds(text: str | None) -> tuple[int, ...] | None:
    """Parse the numbers of `--seeds 0,1,2`."""
    if text is None:
        return None
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        rule = "whole numbers separated by commas are expected, e.g. 0,1,2"
        raise InputError(f"--seeds {shown(text)}: {rule}") from None


def _time(text: str | None) -> float | None:
    """Parse the seconds of `--budget 90s`, `30m` or `2h`."""
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
SEEDS: Any = Option(
    None,
    parser=str,
    callback=_seeds,
    metavar="N,N...",
    help="Seeds, separated by commas; default: the sweep's own.",
)
WORKERS: Any = Option(
    None,
    parser=str,
    callback=_workers,
    metavar="N or N-N",
    help="Ray Train workers, 1-4: as many as have room; 0: a run's own process; "
    "default: 1 in GPU sweeps.",
)
CONCURRENT: Any = Option(None, min=1, help="Runs at a time; default: as many as fit.")
_AS_JSON: Any = Option(False, "--json", help="Print one JSON document, and nothing else on stdout.")


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
        """Return the `Resources` that these options ask for, with `more` fields of it."""
        from forever.launch.resources import Placement, Resources

        options = vars(self)
        names = [field.name for field in fields(Placement) if field.name in options]
        least, most = self.workers or (None, None)
        return Resources(
            workers=most,
            least=least if least != most else None,
            gpus_per_run=self.gpus_per_run,
            ray_logs=options.get("ray_logs", False),
            placement=Placement(**{name: options[name] for name in names}),
            **more,
        )


@dataclass(frozen=True)
class Launch(Place):
    """Where and how runs are trained. Nothing here changes what is computed."""

    ray_logs: bool = Option(False, "--ray-logs", help="Show what Ray's processes print.")
    checkpoint_s: float = Option(
        60.0, "--checkpoint-every", min=0, help="Seconds between checkpoints in a task."
    )
    hang_s: float = Option(
        1800.0, "--hang-after", min=0, help="End a run without a step for N seconds; 0: never."
    )
    keep_stages: bool = Option(
        False, "--keep-stages", help="Keep each stage's weights, for --fork."
    )
    accept_changes: bool = Option(
        False, "--accept-changes", help="Resume though data, model or code changed; it is recorded."
    )
    mlflow: str = MLFLOW


@dataclass(frozen=True)
class Selection:
    """Which runs a sweep has, and how many of them are trained at a time."""

    scale: str = Option(
        "mini", help="mini (embedded, minutes), cpu (real data, hours) or paper (GPUs)."
    )
    on: str | None = Option(
        None, help=f"Base run instead of a scale's: a YAML file or {NAMED_RUN}."
    )
    seeds: Any = SEEDS
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

    def request(self, file: Any, changes: list[str] | None) -> Any:
        """Apply these options and KEY=VALUE to a sweep's file; see `Request`."""
        from forever.config.overrides import parse_assignments
        from forever.launch.start import Request
        from forever.sweeps.named_runs import load_run

        base = load_run(self.on or file.base_run(self.scale))
        changed = parse_assignments(changes or [])
        return Request(file, base, changed, self.seeds, self.only or (), self.trials, self.limits())

    def limits(self) -> Any:
        """Return when a sweep that adds seeds in rounds ends; None if it adds none."""
        return None


@dataclass(frozen=True)
class Rounds(Selection):
    """Which runs a sweep has, and up to when it adds seeds in rounds."""

    until: float | None = Option(
        None,
        min=0.01,
        max=100,
        metavar="POINTS",
        help="Add seeds until each difference is shown, or shown to be within these points.",
    )
    budget: Any = Option(
        None,
        parser=str,
        callback=_time,
        metavar="TIME",
        help="Add seeds as long as they fit, e.g. 90s, 30m, 2h.",
    )

    def limits(self) -> Any:
        """Return the `Limits` of these options; None without them: it ends after its seeds."""
        if self.until is None and self.budget is None:
            return None
        from forever.sweeps.rounds import Limits

        return Limits(self.until, self.budget)


class Verb(TyperCommand):
    """A command that says how a setting is written if it is given as an option, `--lr=1e-3`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command.

        Raises:
            InputError: an option is a setting of a run.
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            name = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
            if not (name and any(parameter.name == "changes" for parameter in self.params)):
                raise
            from forever.config.overrides import dotted_keys
            from forever.config.run import RunConfig

            keys = [key for key in dotted_keys(RunConfig) if name in (key, key.split(".")[-1])]
            if not keys:
                raise
            raise InputError(
                f"--{name} is not an option but a setting; give it as {' or '.join(keys)}=VALUE"
            ) from None


def command(verb: Callable[..., None], has_json: bool = False) -> Callable[..., None]:
    """Give a verb an option for each field of the dataclasses that it takes, and `--json`."""
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
    if has_json:
        json = Parameter("as_json", Parameter.KEYWORD_ONLY, default=_AS_JSON, annotation=bool)
        parameters.append(json)

    @functools.wraps(verb)
    def run(**values: Any) -> None:
        as_json = values.pop("as_json", False)
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        with document() if as_json else nullcontext():
            verb(**values)

    setattr(run, "__signature__", signature.replace(parameters=parameters))  # noqa: B010 - no declared field
    return run
