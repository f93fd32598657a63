"""When a comparison is decided, however often it is inspected: a confidence sequence for the mean
of paired differences.

The differences are taken as normal, of unknown mean and variance. For n of them with mean d and
standard deviation s, and t = sqrt(n) (d - m) / s,

    e(m) = (1 + n g)^(-1/2) [(1 + t^2 / (n - 1)) / (1 + t^2 / ((1 + n g) (n - 1)))]^(n / 2)

is the likelihood ratio of "the mean is not m" (standardised, it is drawn from N(0, g)) to "it is
m", with the right-Haar prior on the variance in both. If the mean is m, e(m) is a martingale that
begins at 1, so by Ville's inequality it ever reaches 1 / alpha with a chance of at most alpha; the
interval of all m with e(m) < 1 / alpha holds the mean at all n at once, whatever made one stop.

Lai 1976, "On confidence sequences" (Annals of Statistics); Perez-Ortiz, Lardy, de Heide and
Gruenwald 2024, "E-statistics, group invariance and anytime-valid testing" (Annals of Statistics);
Wang and Ramdas 2025, "Anytime-valid t-tests and confidence sequences for Gaussian means with
unknown variance".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, NamedTuple

from forever.stats.verdict import Replayed, Verdict, replayed, verdict

ALPHA = 0.05  # for all comparisons of a sweep together
# What a report warns of: with fewer seeds a rare fall may not have come yet, and a difference this
# many standard deviations from the others is no normal one.
FEW_SEEDS, FAR = 10, 4.0
# Variance of the standardised difference. Of seven comparisons one of 1, 2, 3 or 5 standard
# deviations takes 20, 8, 6 or 5 seeds (medians of 4,000 simulations). With g = 1 it takes 18, 9, 8
# or 7, for nothing can be decided before the seventh seed; with g = 100 it takes 23, 10, 7 or 5.
SPREAD = 10.0
ROUNDING = 1e-9  # points; an interval that ends closer to zero than this holds zero


@dataclass(frozen=True)
class Decision:
    """What a number of seeds says of a variant less its reference.

    `half_width` is that of the interval around `value`, in points; None while there are too few
    seeds to exclude anything. A tie is open: more seeds may decide it.
    """

    seeds: int
    value: float
    half_width: float | None
    verdict: Verdict

    def words(self, points: float | None) -> str:
        """The verdict as people read it; `points` are those that a difference may have "within"."""
        if self.verdict == "equivalent":
            return f"within ±{points:g}"
        if self.verdict == "not comparable":
            return f"{self.verdict}: unequal replay"
        if self.verdict != "tie":
            return "differs"
        if self.half_width is None:
            return "open: too few seeds"
        return f"open: ±{self.half_width:.1f}"


def half_width(differences: Sequence[float], alpha: float, step: float = 0.0) -> float:
    """Half the width of the interval around the mean of paired differences: where e(m) = 1 / alpha.

    It is infinite as long as (1 + n g)^((n - 1) / 2) <= 1 / alpha.
    """
    count = len(differences)
    if count < 2:
        return math.inf
    shrink = 1 + count * SPREAD
    ratio = (math.sqrt(shrink) / alpha) ** (2 / count)
    if ratio >= shrink:
        return math.inf
    t = math.sqrt((count - 1) * (ratio - 1) / (1 - ratio / shrink))
    return t * spread(differences, step) / math.sqrt(count)


def spread(differences: Sequence[float], step: float) -> float:
    """The standard deviation of what is measured in steps. It can repeat itself, which does not say
    that it never varies: the variance of a step, step^2 / 12, is added."""
    return math.sqrt(variance(differences) + step**2 / 12)


def farthest(differences: Sequence[float], step: float = 0.0) -> float:
    """How many standard deviations of the others the farthest difference is from their mean.

    In the standard deviation of all n, none could be farther away than (n - 1) / sqrt(n).
    """
    distances = [0.0]
    for place, difference in enumerate(differences):
        others = [*differences[:place], *differences[place + 1 :]]
        distance = abs(difference - fmean(others)) if len(others) > 1 else 0.0
        if distance > ROUNDING:
            width = spread(others, step)
            distances.append(distance / width if width else math.inf)
    return max(distances)


def caution(
    differences: Sequence[float], step: float, decided_by: int = 0, unit: str = "seed"
) -> str:
    """Why a comparison may be wrong more often than promised, in words; "" for no reason.

    Args:
        differences: over all seeds; `step` is as in `decide`.
        decided_by: how many of them decided it; 0: it is open.
        unit: what has one difference each.
    """
    if 0 < decided_by < FEW_SEEDS:
        return f"decided by {decided_by} {unit}s"
    distance = farthest(differences, step)
    if len(differences) >= FEW_SEEDS and distance > FAR:
        return f"a {unit} {distance:.1f} standard deviations from the others"
    return ""


def decide(
    differences: Sequence[float], alpha: float, points: float | None, step: float = 0.0
) -> Decision:
    """The first decision that differences allow in the order in which they came, or how open it is.

    Args:
        differences: in points, one a seed.
        alpha: how often the comparison may err.
        points: a difference that is shown to be no larger is decided as well; None: none is.
        step: what a single answer is worth, in points.
    """
    decision = Decision(0, 0.0, None, "tie")
    for count in range(1, len(differences) + 1):
        value, half = fmean(differences[:count]), half_width(differences[:count], alpha, step)
        width = None if math.isinf(half) else half
        shown = abs(value) - half > ROUNDING
        outcome = verdict(value, value - half, value + half, shown, points)
        decision = Decision(count, value, width, outcome)
        if outcome != "tie":
            break
    return decision


# ---- what is compared: one score a seed, over all orders


class Score(NamedTuple):
    """A variant with one seed: OP is the mean over orders, seconds are their sum."""

    op: float
    seconds: float
    step: float  # what a single answer can be worth in OP
    replayed: tuple[Replayed, ...] = ()  # one an order


def score_of(results: Sequence[Mapping[str, Any]]) -> Score:
    """Summarises the results of a variant with one seed, one an order.

    An answer counts most in the smallest task, as OP is the mean over tasks.
    """
    steps: list[float] = []
    for result in results:
        smallest = min(task["test"] for task in result["rows"].values())
        steps.append(100 / (len(result["rows"]) * smallest * len(results)))
    op = fmean(result["op"] for result in results)
    seconds = math.fsum(sum(result["seconds"].values()) for result in results)
    return Score(op, seconds, max(steps), tuple(map(replayed, results)))


def paired(runs: Mapping[int, Score], base: Mapping[int, Score]) -> tuple[list[float], float]:
    """Subtracts the reference from the variant, in points, for each seed that both have, in the
    order of seeds; and says what a single answer is worth in these differences."""
    seeds = sorted(runs.keys() & base.keys())
    values = [runs[seed].op - base[seed].op for seed in seeds]
    return values, max((base[seed].step for seed in seeds), default=0.0)
