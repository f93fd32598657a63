"""All sweeps by name, a table or a figure of the paper each: what `forever sweep` and `forever
plan` know."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from forever.config.run import RunConfig
from forever.errors import InputError, unknown
from forever.sweeps.builtin.backbones import backbones
from forever.sweeps.builtin.baseline_variants import baseline_variants
from forever.sweeps.builtin.baselines import baselines
from forever.sweeps.builtin.components import components
from forever.sweeps.builtin.demo import demo
from forever.sweeps.builtin.forgetting_rate import forgetting_rate
from forever.sweeps.builtin.full_finetuning import full_finetuning
from forever.sweeps.builtin.long_sequence import long_sequence
from forever.sweeps.builtin.main_results import main_results
from forever.sweeps.builtin.memory_epochs import memory_epochs
from forever.sweeps.builtin.memory_size import memory_size
from forever.sweeps.builtin.model_day import model_day
from forever.sweeps.builtin.replay_loss import replay_loss
from forever.sweeps.builtin.spacing import spacing
from forever.sweeps.builtin.training_time import training_time
from forever.sweeps.builtin.warmup_window import warmup_window
from forever.sweeps.sweep import Sweep


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
        raise InputError(
            f"seed={base.seed}: a sweep sets the seeds of its runs; give --seeds {base.seed}"
        )
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
