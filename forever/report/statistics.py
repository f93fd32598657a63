"""Whether variants differ from a reference: differences run by run, their p-values corrected for
all that are judged.

What is resampled, and what an interval means: forever/report/bootstrap.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from forever.report.bootstrap import (
    LEVEL,
    RESAMPLES,
    Estimate,
    Replicated,
    RunReplicates,
    Runs,
    Unit,
    resample_items,
    summarise,
)

ALPHA = 0.05

Verdict = Literal["win", "tie", "loss"]


@dataclass(frozen=True)
class Comparison:
    """What is known of one variant.

    Attributes:
        op, bwt: means over its runs. bwt is None for joint training and for a single task.
        difference, bwt_difference: OP and BWT minus the reference's, over the runs (order and seed)
        that both have;
            None if there are none.
        p: of the difference in OP, two-sided, by the bootstrap; p_holm: corrected for all variants
        that get a verdict.
        resolution: half the width of the difference's 95 % interval if only test items are
        resampled, in points: what
            is smaller than that, this test set cannot show with these runs. More of them average
            the luck of single answers, so it shrinks with their number.
        verdict: None for the reference itself, for variants outside the comparison, such as bounds,
        and if there is
            only one run to compare.
    """

    op: Estimate
    bwt: Estimate | None
    difference: Estimate | None = None
    bwt_difference: Estimate | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: Verdict | None = None
    resolution: float | None = None


def compare(
    variants: Mapping[str, Runs],
    reference: str | None = None,
    outside: Collection[str] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
    references: Mapping[str, str] | None = None,
) -> dict[str, Comparison]:
    """Estimates for all variants that have runs, and their differences to the reference.

    Verdicts are on OP.

    Args:
        variants: by name, the runs by order and seed.
        references: of variants that are compared with another than `reference`; with themselves:
        with none.
        outside: variants that are shown but not judged, and so do not count for the correction.
        resamples, seed: of the bootstrap. The same arguments give the same numbers.
    """
    keys = [(variant, unit) for variant, runs in variants.items() for unit in runs]
    replicates = resample_items(
        [variants[variant][unit] for variant, unit in keys], resamples, seed
    )
    by_variant: dict[str, dict[Unit, RunReplicates]] = {}
    for (variant, unit), replicate in zip(keys, replicates, strict=True):
        by_variant.setdefault(variant, {})[unit] = replicate
    found: dict[str, Comparison] = {}
    for name, runs in by_variant.items():
        other = (references or {}).get(name, reference)
        base = by_variant.get(other, {}) if other is not None and other != name else {}
        found[name] = _compare_one(runs, base, seed)
    # From one seed nothing can be said of others, however many test items there are.
    judged = {
        n: one.p
        for n, one in found.items()
        if one.p is not None and one.difference and one.difference.runs > 1
    }
    judged = {name: p for name, p in judged.items() if name not in outside}
    for name, p_holm in zip(judged, holm(list(judged.values())), strict=True):
        one = found[name]
        assert one.difference is not None
        judgement = verdict(one.difference.value, p_holm)
        found[name] = replace(one, p_holm=p_holm, verdict=judgement)
    return found


def _compare_one(
    runs: Mapping[Unit, RunReplicates], base: Mapping[Unit, RunReplicates], seed: int
) -> Comparison:
    joint = any(run.bwt is None for run in (*runs.values(), *base.values()))
    op, _ = summarise({unit: run.op for unit, run in runs.items()}, (0, 100), seed, joint)
    bwts = {unit: run.bwt for unit, run in runs.items() if run.bwt is not None}
    bwt = summarise(bwts, (-100, 100), seed)[0] if len(bwts) == len(runs) else None
    pairs = [(unit, runs[unit], base[unit]) for unit in runs if unit in base]
    if not pairs:
        return Comparison(op, bwt)
    differences = {unit: _less(one.op, other.op) for unit, one, other in pairs}
    items = np.mean([run.samples for run in differences.values()], axis=0)
    tail = (1 - LEVEL) / 2
    resolution = float(np.subtract(*np.quantile(items, [1 - tail, tail]))) / 2
    difference, p = summarise(differences, (-100, 100), seed, joint)
    bwts = {unit: _less(one.bwt, other.bwt) for unit, one, other in pairs if one.bwt and other.bwt}
    bwt_difference = summarise(bwts, (-200, 200), seed)[0] if len(bwts) == len(pairs) else None
    return Comparison(op, bwt, difference, bwt_difference, p, resolution=resolution)


def _less(one: Replicated, other: Replicated) -> Replicated:
    return Replicated(one.value - other.value, one.samples - other.samples)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): the smallest of m p-values times m, the next times m - 1,
    ..., never falling.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def verdict(difference: float, p: float, alpha: float = ALPHA) -> Verdict:
    """Whether a variant beats the reference, loses to it, or neither can be said."""
    if p > alpha or difference == 0:
        return "tie"
    return "win" if difference > 0 else "loss"
