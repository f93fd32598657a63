"""All sweeps by name: what `forever sweep NAME` and `forever plan NAME` know."""

from collections.abc import Callable

from ablations.baselines import baselines
from ablations.components import components
from experiments.demo import demo
from forever.config import RunConfig
from forever.errors import unknown
from forever.sweep import Sweep

SWEEPS: dict[str, Callable[[RunConfig, tuple[int, ...]], Sweep]] = {
    "components": components,
    "baselines": baselines,
    "demo": demo,
}


def named_sweep(name: str, base: RunConfig, seeds: tuple[int, ...]) -> Sweep:
    """The sweep called `name` on any base run.

    Raises:
        InputError: no such sweep.
    """
    if name not in SWEEPS:
        raise unknown("sweep", name, SWEEPS)
    return SWEEPS[name](base, seeds)
