"""How many seeds show a difference, from the spread of finished runs."""

import math
from bisect import bisect_left

from scipy import stats

POWER = 0.8
MOST_SEEDS = 1_000_000  # above this a number of seeds is not computed


def power(seeds: int, effect: float, alpha: float) -> float:
    """Computes the chance that the paired two-sided t-test at `alpha` shows a difference.

    Args:
        effect: the difference in standard deviations of the paired differences.
    """
    free, shift = seeds - 1, effect * math.sqrt(seeds)
    bound = stats.t.ppf(1 - alpha / 2, free)
    shown, opposite = stats.nct.sf(bound, free, shift), stats.nct.cdf(-bound, free, shift)
    # The chance of the wrong sign is NaN where it is below 1e-15.
    return float(shown) if math.isnan(opposite) else float(shown + opposite)


def seeds_needed(effect: float, alpha: float) -> int:
    """Finds the smallest number of seeds with a power of POWER, or one above MOST_SEEDS."""
    enough = 2
    while power(enough, effect, alpha) < POWER and enough <= MOST_SEEDS:
        enough *= 2
    candidates = range(max(2, enough // 2), enough)
    return candidates.start + bisect_left(candidates, POWER, key=lambda n: power(n, effect, alpha))


def spread_interval(spread: float, count: int) -> tuple[float, float]:
    """Computes the 95 % interval of a standard deviation that `count` normal numbers have."""
    low, high = stats.chi2.ppf([0.975, 0.025], count - 1)
    return spread * math.sqrt((count - 1) / low), spread * math.sqrt((count - 1) / high)
