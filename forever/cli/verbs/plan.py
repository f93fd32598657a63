"""`forever plan`: what a run or a sweep will cost."""

from typing import Any

from typer import Argument, Option

from forever.cli import options
from forever.cli.options import NAMED_RUN, Place, Selection
from forever.cli.shown import show
from forever.errors import InputError


def plan(
    name: str = Argument(help=f"A YAML file, {NAMED_RUN}, or a sweep."),
    changes: list[str] | None = options.CHANGES,
    tokens_per_second: float | None = Option(None, min=1, help="Training throughput."),
    price_per_hour: float | None = Option(None, min=0, help="Of a GPU, or of a run's CPUs."),
    detect: float | None = Option(
        None,
        min=0.01,
        max=100,
        metavar="POINTS",
        help="Seeds and hours that show such a difference in a sweep.",
    ),
    *,
    selection: Selection,
    place: Place,
) -> None:
    """What a run or a sweep will cost: runs, updates, tokens, hours; nothing is started.

    Examples:
        forever plan mini/forever
        forever plan components --scale paper data.root=/data --price-per-hour 2.5
        forever plan components --detect 2
    """
    from forever.config.overrides import parse_assignments
    from forever.launch.checks import planned_runs, without_failed
    from forever.launch.copies import download
    from forever.sweeps.files import sweep_or_none

    file, only = sweep_or_none(name), selection.only or ()
    if detect is not None:
        if file is None or file.is_search:
            raise InputError(f"--detect {detect:g} needs a sweep with variants; {name} has none")
        sweep: Any = selection.request(file, changes).sweep()
        folder = (place.out / sweep.name).absolute()
        download(folder)
        from forever.sweeps.rounds import detection_table

        try:
            table = detection_table(sweep, folder, detect, name)
        except ModuleNotFoundError as error:
            remedy = "pip install 'forever-cl[report]'"
            raise InputError(f"--detect needs {error.name}; {remedy}") from None
        show(table)
        return

    base = selection.on or (file.base_run(selection.scale) if file else "")
    changed = parse_assignments(changes or [])
    runs = planned_runs(name, base, changed, selection.seeds, place.out, only, selection.trials)
    # The runs of a sweep are downloaded together.
    for folder in {run.directory.path if file is None else place.out / file.name for run in runs}:
        download(folder)
    # Torch is loaded when the runs are known to be possible.
    from forever.plan import plan_table

    resources = place.resources(concurrent=selection.concurrent)
    planned = runs if selection.retry_failed else without_failed(runs)
    show(plan_table(name, planned, resources, tokens_per_second, price_per_hour))
