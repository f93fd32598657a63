"""All sweeps by name, a table or a figure of the paper each: what `forever sweep` and `forever plan` know."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ablations.baseline_variants import baseline_variants
from ablations.baselines import baselines
from ablations.components import components
from ablations.memory_epochs import memory_epochs
from ablations.memory_size import memory_size
from ablations.spacing import spacing
from ablations.warmup_window import warmup_window
from experiments.backbones import backbones
from experiments.demo import demo
from experiments.forgetting_rate import forgetting_rate
from experiments.full_finetuning import full_finetuning
from experiments.long_sequence import long_sequence
from experiments.main_results import main_results
from experiments.model_day import model_day
from experiments.replay_loss import replay_loss
from experiments.training_time import training_time
from forever.config import RunConfig
from forever.errors import InputError, unknown
from forever.sweep import Sweep


class Family(Protocol):
    """What makes a sweep of any base run; without seeds it has those of the paper's table."""

    def __call__(self, base: RunConfig, seeds: tuple[int, ...] = ...) -> Sweep: ...


SWEEPS: dict[str, Family] = {
    family.__name__: family
    for family in (
        main_results, backbones, components, spacing, memory_size, warmup_window, memory_epochs, full_finetuning,
        long_sequence, forgetting_rate, model_day, training_time, replay_loss, baselines,
        baseline_variants, demo,
    )
}  # fmt: skip


def asked_sweep(
    name: str,
    base: RunConfig,
    changes: Mapping[str, Any],
    seeds: tuple[int, ...] | None = None,
    only: Sequence[str] = (),
) -> Sweep:
    """A named sweep as a person asks for it.

    Args:
        changes: dotted keys of the base. only: variants; none of them: all.

    Raises:
        InputError: no such sweep or variant, or a change that the sweep would overwrite.
    """
    base = base.override(changes)
    if seeds is None and base.seed != RunConfig().seed:
        raise InputError(f"seed={base.seed}: a sweep sets the seeds of its runs; give --seeds {base.seed}")
    sweep = named_sweep(name, base, seeds)
    if sweep.orders and "data.order" in changes:
        raise InputError(
            f"data.order={changes['data.order']}: {name} runs on the orders {', '.join(sweep.orders)}; "
            "of the other sweeps each is on one order, that of its base"
        )
    return sweep.only(only)


def named_sweep(name: str, base: RunConfig, seeds: tuple[int, ...] | None = None) -> Sweep:
    """The sweep called `name` on any base run.

    Args:
        seeds: None for the sweep's own.

    Raises:
        InputError: no such sweep.
    """
    if name not in SWEEPS:
        raise unknown("sweep", name, [*SWEEPS, "search"])
    return SWEEPS[name](base, seeds) if seeds else SWEEPS[name](base)
