"""How sure a score is: a paired bootstrap over runs and test items, as docs/verbs/report.md
explains it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from forever.evaluation.metrics import PerformanceMatrix
from forever.seeding import derive

# The smallest p-value is 2e-4, enough for Holm's correction of some hundred comparisons.
RESAMPLES = 10_000
_SEED = 0  # the same runs have the same numbers
LEVEL = 0.95
TAILS = (1 - LEVEL) / 2, (1 + LEVEL) / 2
_CELLS = 4_000_000  # counts held at once: 32 MB
_ROUNDING = 1e-9  # points; replicates closer to zero than this are zero

Unit = tuple[Hashable, int]  # order and seed: what pairs a run with a run of another variant
Runs = Mapping[Unit, PerformanceMatrix]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, in percent or points, and of how many runs it is the mean.

    Runs of one seed are one where joint training takes part, which is the same in all orders.
    """

    value: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Replicated:
    """A score of one run, and under each resample of the items: shape [resamples]."""

    value: float
    samples: np.ndarray

    def __sub__(self, other: Replicated) -> Replicated:
        return Replicated(self.value - other.value, self.samples - other.samples)


class RunReplicates(NamedTuple):
    op: Replicated
    bwt: Replicated | None


def resample_items(matrices: Sequence[PerformanceMatrix], resamples: int) -> list[RunReplicates]:
    """OP and BWT of each run, all under the same resamples of the items."""
    # By task, number of rows and content, so that equal scores stay exactly equal.
    vectors: dict[tuple[str, int], dict[bytes, np.ndarray]] = {}
    for matrix in matrices:
        for task, scores in _needed(matrix):
            vectors.setdefault((task, len(scores)), {})[scores.tobytes()] = scores
    means: dict[tuple[str, bytes], np.ndarray] = {}
    for (task, rows), contents in vectors.items():
        distinct = np.stack(list(contents.values()), axis=1)
        drawn = _resampled_means(distinct, resamples, derive(_SEED, "items", task, rows))
        for content, column in zip(contents, drawn.T, strict=True):
            means[task, content] = column.copy()
    return [_replicate(matrix, means) for matrix in matrices]


def _needed(matrix: PerformanceMatrix) -> list[tuple[str, np.ndarray]]:
    """The item scores that OP and BWT are made of, in percent: of all tasks at the end, and of all
    but the last when just learned."""
    last = len(matrix.stages) - 1
    cells = [(i, last) for i in matrix.scored()]
    if matrix.backward_transfer() is not None:
        cells += [(i, i) for i in range(last)]
    return [(matrix.tasks[i], 100 * np.asarray(matrix.items[i, j], float)) for i, j in cells]


def _replicate(
    matrix: PerformanceMatrix, means: Mapping[tuple[str, bytes], np.ndarray]
) -> RunReplicates:
    rows = np.array([means[task, scores.tobytes()] for task, scores in _needed(matrix)])
    final, learned = np.split(rows, [len(matrix.scored())])
    op, bwt = Replicated(matrix.overall(), final.mean(axis=0)), matrix.backward_transfer()
    if bwt is None:
        return RunReplicates(op, None)
    return RunReplicates(op, Replicated(bwt, (final[:-1] - learned).mean(axis=0)))


def _resampled_means(vectors: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means of each column of `vectors` [rows, columns] under `resamples` draws of its rows:
    [resamples, columns]."""
    random = np.random.default_rng(seed)
    rows = len(vectors)
    most = max(1, _CELLS // rows)
    parts: list[np.ndarray] = []
    for start in range(0, resamples, most):
        size = min(most, resamples - start)
        drawn = random.integers(rows, size=(size, rows)) + rows * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows)
        parts.append(counts @ vectors / rows)
    return np.concatenate(parts)


def summarise(
    runs: Mapping[Unit, Replicated], limits: tuple[float, float], together: bool = False
) -> tuple[Estimate, float]:
    """The mean over runs with its interval, and the two-sided p-value of zero.

    Args:
        limits: what the number cannot exceed; a stretched interval is cut there.
        together: draw a seed for all orders at once, as joint training needs it.
    """
    orders: dict[Hashable, list[float]] = {}
    seeds: dict[int, list[float]] = {}
    for (order, number), run in runs.items():
        orders.setdefault(order, []).append(run.value)
        seeds.setdefault(number, []).append(run.value)
    value = float(np.mean([run.value for run in runs.values()]))
    centre = np.mean([run.samples for run in runs.values()], axis=0)
    count, shared = len(runs), None
    if together:
        count, shared = len(seeds), np.array([*map(np.mean, seeds.values())])
    samples = centre + _run_effects([*map(np.array, orders.values())], len(centre), shared)
    low, high = np.clip(np.quantile(samples, TAILS), *limits)
    return Estimate(value, float(low), float(high), count), _p_value(samples)


def _run_effects(
    orders: Sequence[np.ndarray], resamples: int, shared: np.ndarray | None
) -> np.ndarray:
    """What drawing orders, and seeds of each, adds to the mean of all runs.

    Args:
        orders: the values of each order's seeds.
        shared: the mean of each seed over all orders, if seeds are drawn for all orders together.
    """
    count = sum(map(len, orders))
    if len(orders) == count and (shared is None or len(shared) == 1):
        # One run each: then orders are the repetitions, as seeds of one order would be.
        orders = [np.concatenate(orders)]
        shared = None
    if count == 1:
        return np.zeros(resamples)
    random = np.random.default_rng(derive(_SEED, "runs", count))
    free = count - len(orders) if shared is None else len(shared) - 1
    stretch = np.sqrt(free / random.chisquare(free, resamples)) if free else 0.0
    means = np.array([values.mean() for values in orders])
    drawn = random.integers(len(orders), size=(len(orders), resamples))
    effects = means[drawn].mean(axis=0) - means.mean()
    if shared is not None:
        return effects + stretch * _seed_effects(shared, resamples, random)
    for places in drawn:
        luck = np.stack([_seed_effects(values, resamples, random) for values in orders])
        effects += stretch * luck[places, np.arange(resamples)] / len(orders)
    return effects


def _seed_effects(values: np.ndarray, resamples: int, random: np.random.Generator) -> np.ndarray:
    """What drawing S seeds from the `values` [S] of one order adds to their mean, not short in
    variance."""
    count = len(values)
    drawn = values[random.integers(count, size=(resamples, count))].mean(axis=1)
    return np.sqrt(count / max(count - 1, 1)) * (drawn - values.mean())


def _p_value(samples: np.ndarray) -> float:
    """The level at which the percentile interval just touches zero; never 0 (Davison and Hinkley
    1997, section 4.2)."""
    below, above = np.sum(samples <= _ROUNDING), np.sum(samples >= -_ROUNDING)
    return float(min(1.0, 2 * (1 + min(below, above)) / (1 + len(samples))))
