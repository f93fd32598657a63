"""Baselines in the other way in which they may have been meant, each beside its default; FOREVER as
the reference.

| variant                    | why                                                                                 |
|----------------------------|-------------------------------------------------------------------------------------|
| fixed_interval, I = S      | replay every 24 updates: the literal reading of the paper's example (A21)           |
| ewc, lambda = ...          | published values belong to other Fisher estimates; to be tuned on one order only    |
| moelora without contrast   | the plain mixture of experts that the MIGU paper may have run                       |
| migu without replay        | as published, T = 0.7; that FOREVER's row has replay is inferred                    |
| ssr, 10 % kept             | the method's own setting, with 1 % shown; five times the share that others keep     |
| vbm mix                    | views in every batch, as in the released code for images                            |
"""

from typing import Any

from forever.config.run import RunConfig
from forever.sweeps.named_runs import method_settings, scale_of
from forever.sweeps.sweep import Sweep

STRENGTHS = (4e2, 4e3, 4e4, 4e5)


def baseline_variants(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """Six methods with what is uncertain about them decided otherwise."""
    own = {
        name: method_settings(base, name)
        for name in ("forever", "fixed_interval", "ewc", "moelora", "migu", "ssr", "vbm")
    }
    interval = getattr(base.override(own["fixed_interval"]).method, "warmup_steps")  # noqa: B009 - its own field
    rows = min(1.0, round(5 * base.memory.fraction, 6))
    demos = 10 if scale_of(base) == "paper" else 4  # a tenth of what this variant keeps
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "fixed_interval, I = S": ("fixed_interval", {"method.interval": interval}),
        **{
            f"ewc, lambda = {strength:g}": ("ewc", {"method.strength": strength})
            for strength in STRENGTHS
        },
        "moelora without contrast": ("moelora", {"method.contrast": 0.0}),
        "migu without replay": ("migu", {"method.replay": False}),
        f"ssr, {100 * rows:g} % kept": ("ssr", {"memory.fraction": rows, "method.demos": demos}),
        "vbm mix": ("vbm", {"method.variant": "mix"}),
    }
    variants = own | {
        variant: {**own[name], **change} for variant, (name, change) in changes.items()
    }
    return Sweep("baseline_variants", base, variants, seeds, reference="forever")
