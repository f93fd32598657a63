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
            that both have; None if there are none.
        p: of the difference in OP, two-sided, by the bootstrap.
        p_holm: p corrected for all variants that get a verdict.
        verdict: None for the reference itself, for variants outside the comparison, such as bounds,
            and if there is only one run to compare.
        resolution: half the width of the difference's 95 % interval if only test items are
            resampled, in points: a smaller difference this test set cannot show with these runs.
            More of them average the luck of single answers, so it shrinks with their number.
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
    matrices = [matrix for runs in variants.values() for matrix in runs.values()]
    replicates = iter(resample_items(matrices, resamples, seed))
    by_variant: dict[str, dict[Unit, RunReplicates]] = {}
    for name, runs in variants.items():
        if runs:
            by_variant[name] = {unit: next(replicates) for unit in runs}
    comparisons: dict[str, Comparison] = {}
    judged: dict[str, Estimate] = {}
    for name, runs in by_variant.items():
        other = (references or {}).get(name, reference)
        base = by_variant.get(other or "", {}) if other != name else {}
        comparison = comparisons[name] = _compare(runs, base, seed)
        # From one seed nothing can be said of others, however many test items there are.
        if comparison.difference and comparison.difference.runs > 1 and name not in outside:
            judged[name] = comparison.difference
    corrected = holm([comparisons[name].p or 0.0 for name in judged])
    for (name, difference), p in zip(judged.items(), corrected, strict=True):
        judgement = verdict(difference.value, p)
        comparisons[name] = replace(comparisons[name], p_holm=p, verdict=judgement)
    return comparisons


def _compare(
    runs: Mapping[Unit, RunReplicates], base: Mapping[Unit, RunReplicates], seed: int
) -> Comparison:
    joint = any(run.bwt is None for run in (*runs.values(), *base.values()))
    op, _ = summarise({unit: run.op for unit, run in runs.items()}, (0, 100), seed, joint)
    bwt = _mean({unit: run.bwt for unit, run in runs.items()}, 100, seed)
    shared = [unit for unit in runs if unit in base]
    if not shared:
        return Comparison(op, bwt)
    differences = {unit: runs[unit].op - base[unit].op for unit in shared}
    items = np.mean([run.samples for run in differences.values()], axis=0)
    tail = (1 - LEVEL) / 2
    resolution = float(np.subtract(*np.quantile(items, [1 - tail, tail]))) / 2
    difference, p = summarise(differences, (-100, 100), seed, joint)
    bwts: dict[Unit, Replicated | None] = {}
    for unit in shared:
        ours, theirs = runs[unit].bwt, base[unit].bwt
        bwts[unit] = ours - theirs if ours and theirs else None
    return Comparison(op, bwt, difference, _mean(bwts, 200, seed), p, resolution=resolution)


def _mean(runs: Mapping[Unit, Replicated | None], limit: float, seed: int) -> Estimate | None:
    """The mean over runs; None unless all of them have the score."""
    known = {unit: run for unit, run in runs.items() if run is not None}
    return summarise(known, (-limit, limit), seed)[0] if len(known) == len(runs) else None


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
