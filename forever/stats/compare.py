"""Whether variants differ from a reference: differences run by run, their p-values corrected for
all that are judged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forever.stats.bootstrap import (
    RESAMPLES,
    TAILS,
    Estimate,
    Replicated,
    RunReplicates,
    Runs,
    Unit,
    resample_items,
    summarise,
)
from forever.stats.verdict import Verdict, verdict

ALPHA = 0.05

_Areas = dict[str, dict[Unit, Replicated]]  # by score and run


@dataclass
class Comparison:
    """What is known of one variant."""

    op: Estimate
    bwt: Estimate | None  # None for joint training and for a single task
    # Minus the reference's, over the runs that both have; None if there are none.
    difference: Estimate | None = None
    bwt_difference: Estimate | None = None
    p: float | None = None  # of the difference in OP, two-sided
    bwt_p: float | None = None  # of that in BWT
    p_holm: float | None = None  # corrected for all variants that get a verdict
    # None for the reference itself, for bounds, and if there is only one run to compare.
    verdict: Verdict | None = None
    # Half the width of the difference's interval if only test items are resampled, in points: a
    # smaller difference this test set cannot show with this number of runs.
    resolution: float | None = None
    # In a sweep in rounds, of all seeds: `difference` is of those that decided.
    all_seeds: Estimate | None = None
    caution: str = ""  # why the verdict may be wrong more often than promised


def compare(
    variants: Mapping[str, Runs],
    reference: str | None = None,
    outside: Collection[str] = (),
    resamples: int = RESAMPLES,
    references: Mapping[str, str] | None = None,
) -> dict[str, Comparison]:
    """Estimates for all variants, and their differences to the reference, with verdicts on OP.

    Args:
        variants: by name, the runs by order and seed.
        references: of variants that are compared with another than `reference`; with themselves:
            with none.
        outside: variants that are shown but not judged, and so do not count for the correction.
        resamples: of the bootstrap. The same arguments give the same numbers.
    """
    matrices = [matrix for runs in variants.values() for matrix in runs.values()]
    replicates = iter(resample_items(matrices, resamples))
    by_variant: dict[str, dict[Unit, RunReplicates]] = {}
    for name, runs in variants.items():
        by_variant[name] = {unit: next(replicates) for unit in runs}
    comparisons: dict[str, Comparison] = {}
    judged: list[Comparison] = []
    for name, runs in by_variant.items():
        other = (references or {}).get(name, reference)
        base = by_variant.get(other or "", {}) if other != name else {}
        comparison = comparisons[name] = _compare(runs, base)
        # From one run nothing can be said of others, however many test items there are.
        if comparison.difference and comparison.difference.runs > 1 and name not in outside:
            judged.append(comparison)
    corrected = holm([comparison.p or 0.0 for comparison in judged])
    for comparison, p in zip(judged, corrected, strict=True):
        difference = comparison.difference
        assert difference is not None
        value, low, high = difference.value, difference.low, difference.high
        comparison.p_holm, comparison.verdict = p, verdict(value, low, high, shown=p <= ALPHA)
    return comparisons


def _compare(runs: Mapping[Unit, RunReplicates], base: Mapping[Unit, RunReplicates]) -> Comparison:
    joint = any(run.bwt is None for run in (*runs.values(), *base.values()))
    ops: dict[Unit, Replicated] = {}
    bwts: dict[Unit, Replicated | None] = {}
    differences: dict[Unit, Replicated] = {}
    bwt_differences: dict[Unit, Replicated | None] = {}
    for unit, run in runs.items():
        ops[unit], bwts[unit] = run
        if unit in base:
            differences[unit] = run.op - base[unit].op
            theirs = base[unit].bwt
            bwt_differences[unit] = None
            if run.bwt and theirs:
                bwt_differences[unit] = run.bwt - theirs
    op, _ = summarise(ops, (0, 100), joint)
    bwt, _ = _mean(bwts, 100)
    if not differences:
        return Comparison(op, bwt)
    items = np.mean([run.samples for run in differences.values()], axis=0)
    low, high = np.quantile(items, TAILS)
    difference, p = summarise(differences, (-100, 100), joint)
    bwt_difference, bwt_p = _mean(bwt_differences, 200)
    resolution = float(high - low) / 2
    return Comparison(op, bwt, difference, bwt_difference, p, bwt_p, resolution=resolution)


def _mean(
    runs: Mapping[Unit, Replicated | None], limit: float
) -> tuple[Estimate, float] | tuple[None, None]:
    """The mean over runs and its p-value; None unless all of them have the score."""
    known = {unit: run for unit, run in runs.items() if run is not None}
    return summarise(known, (-limit, limit)) if len(known) == len(runs) else (None, None)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): the smallest of m p-values times m, the next times m - 1,
    ..., never falling.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    times = np.arange(len(p_values), 0, -1) * np.asarray(p_values)[order]
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(times), 1.0)
    return corrected.tolist()


def over_logarithm(
    curves: Mapping[str, Mapping[float, Runs]],
    reference: str | None = None,
    resamples: int = RESAMPLES,
) -> dict[str, dict[str, Estimate]]:
    """Means of "op" and "bwt" over the logarithm of a number: the area under a curve by the
    trapezoid rule, over its length; and what they are less the reference's, run by run.

    Args:
        curves: by name, the runs at each of two numbers or more, which rise and are the same in all
            curves. A run that is not there at each of them is left out.
        resamples: as in `compare`.
    """
    areas: dict[str, _Areas] = {}
    for name, curve in curves.items():
        areas[name] = _areas(curve, resamples)
    means: dict[str, dict[str, Estimate]] = {}
    for name, scores in areas.items():
        means[name] = _each_mean(scores, 100)
        if reference in areas and name != reference:
            apart: _Areas = {}
            for score, runs in scores.items():
                base = areas[reference][score]
                apart[score] = {unit: runs[unit] - base[unit] for unit in runs if unit in base}
            means[f"{name} less {reference}"] = _each_mean(apart, 200)
    return means


def _areas(curve: Mapping[float, Runs], resamples: int) -> _Areas:
    steps = np.diff(np.log([*curve]))
    weights = (np.append(steps, 0) + np.insert(steps, 0, 0)) / (2 * steps.sum())
    shared = set[Unit].intersection(*map(set[Unit], curve.values()))
    units = [unit for unit in next(iter(curve.values())) if unit in shared]
    matrices = [runs[unit] for unit in units for runs in curve.values()]
    replicates = iter(resample_items(matrices, resamples))
    areas: _Areas = {"op": {}, "bwt": {}}
    for unit in units:
        points = [next(replicates) for _ in curve]
        for score, runs in areas.items():
            scores = [getattr(point, score) for point in points]
            if None not in scores:
                value = float(weights @ [number.value for number in scores])
                samples = weights @ np.array([number.samples for number in scores])
                runs[unit] = Replicated(value, samples)
    return areas


def _each_mean(areas: _Areas, limit: float) -> dict[str, Estimate]:
    means: dict[str, Estimate] = {}
    for score, runs in areas.items():
        if runs:
            means[score], _ = summarise(runs, (-limit, limit))
    return means
