"""The rule by which a sweep in rounds stops: its formula, and its error and power by simulation."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from forever.stats.sequential import ALPHA, SPREAD, Decision, caution, decide, farthest, half_width
from forever.sweeps.rounds import MOST_SEEDS

JUDGED = 7  # comparisons of a sweep


def e_value(differences: list[float], mean: float) -> float:
    """The likelihood ratio of the module's docstring."""
    n, free = len(differences), len(differences) - 1
    t = math.sqrt(n) * (np.mean(differences) - mean) / np.std(differences, ddof=1)
    shrink = 1 + n * SPREAD
    ratio = (1 + t**2 / free) / (1 + t**2 / (shrink * free))
    return shrink**-0.5 * ratio ** (n / 2)


def integrated(differences: list[float], mean: float) -> float:
    """The same from its definition: Student's densities of t, central and mixed over N(0, g)."""
    n, free = len(differences), len(differences) - 1
    t = math.sqrt(n) * (np.mean(differences) - mean) / np.std(differences, ddof=1)
    prior = stats.norm(0, math.sqrt(SPREAD))

    def mixed(effect: float) -> float:
        return stats.nct.pdf(t, free, math.sqrt(n) * effect) * prior.pdf(effect)

    return integrate.quad(mixed, -8, 8, limit=200)[0] / stats.t.pdf(t, free)


def test_the_formula_is_the_integral() -> None:
    differences = [2.0, 3.5, 1.0, 2.5, 0.5]
    for mean in (0.0, 1.0, 2.0, 4.0):
        assert e_value(differences, mean) == pytest.approx(integrated(differences, mean), rel=1e-4)


def test_an_interval_by_hand() -> None:
    """Five differences, mean 2 and variance 2.5, at 5 %: c = 51, r = (51^(1/2) / 0.05)^(2/5) =
    7.2766, t^2 = 4 (r - 1) / (1 - r / c) = 29.284, so t = 5.4115 and the half-width is
    5.4115 sqrt(2.5 / 5) = 3.8265."""
    assert half_width([0.0, 1.0, 2.0, 3.0, 4.0], 0.05) == pytest.approx(3.8265, abs=1e-4)


@pytest.mark.parametrize("alpha", [0.05, ALPHA / JUDGED])
@pytest.mark.parametrize("count", [4, 5, 12, 64])
def test_the_interval_ends_where_the_evidence_is_enough(count: int, alpha: float) -> None:
    differences = np.random.default_rng(count).normal(3.0, 2.0, count).tolist()
    half, mean = half_width(differences, alpha), float(np.mean(differences))
    for end in (mean - half, mean + half):
        assert e_value(differences, end) == pytest.approx(1 / alpha)


# Half the widths by savvi 0.3.1, LinearRegression(alpha, p=1, phi=0.1) of an intercept alone: the
# t-test of Lindon et al. 2024, whose phi is 1 / g. Its degrees of freedom are taken as n - 1, where
# it takes one fewer.
ANOTHER_IMPLEMENTATION = [
    (5, 0.05, 4.156662), (5, 0.05 / 17, 9.567669), (10, 0.05, 2.300469),
    (10, 0.05 / 17, 3.424372), (40, 0.05, 0.958091), (40, 0.05 / 17, 1.207578),
]  # fmt: skip


@pytest.mark.parametrize(("count", "alpha", "half"), ANOTHER_IMPLEMENTATION)
def test_another_implementation_has_the_same_interval(
    count: int, alpha: float, half: float
) -> None:
    differences = [(7 * i * i % 11 - 4) / 2 for i in range(count)]
    assert half_width(differences, alpha) == pytest.approx(half, rel=1e-6)


def test_few_seeds_exclude_nothing() -> None:
    """(1 + n g)^((n - 1) / 2): 31 with three seeds, 262 with four; 20 is asked of one comparison
    and 140 of seven."""
    assert [half_width([1.0] * n, 0.05) for n in range(4)] == [math.inf] * 3 + [0.0]
    assert [half_width([1.0] * n, ALPHA / JUDGED) for n in (3, 4)] == [math.inf, 0.0]


def looks(differences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half-width of each of many sequences [..., seeds], after each seed."""
    counts = np.arange(1, differences.shape[-1] + 1)
    means = differences.cumsum(-1) / counts
    squares = (differences**2).cumsum(-1) - counts * means**2
    # What one standard deviation becomes, from numbers whose standard deviation is one.
    widths = [math.inf]
    for count in counts[1:]:
        unit = np.resize([1.0, -1.0], count)
        widths.append(half_width(unit.tolist(), ALPHA / JUDGED) / unit.std(ddof=1))
    halves = np.array(widths) * np.sqrt(np.maximum(squares, 1e-12) / np.maximum(counts - 1, 1))
    return means, halves


def test_sweeps_without_differences_err_in_at_most_one_of_twenty() -> None:
    """2,000 sweeps of seven variants like their reference, all with the luck of its seeds, a look
    after each seed up to the last: a sweep errs if any of its looks shows any difference."""
    random = np.random.default_rng(0)
    runs = random.normal(70.0, 3.0, (2000, 1 + JUDGED, MOST_SEEDS))
    means, halves = looks(runs[:, 1:] - runs[:, :1])
    wrong = (np.abs(means) > halves).any(axis=(1, 2)).mean()
    assert wrong <= ALPHA
    # As vectors so in the function itself.
    for sweep, variant in ((0, 0), (1, 3)):
        differences = runs[sweep, 1 + variant] - runs[sweep, 0]
        half = half_width(differences.tolist(), ALPHA / JUDGED)
        assert half == pytest.approx(halves[sweep, variant, -1])


@pytest.mark.parametrize(("effect", "seeds"), [(1.0, 30), (2.0, 12), (3.0, 9)])
def test_differences_are_found(effect: float, seeds: int) -> None:
    """In more than four of five cases, and hardly ever with the wrong sign."""
    random = np.random.default_rng(1)
    means, halves = looks(random.normal(effect, 1.0, (2000, seeds)))
    assert (np.abs(means) > halves).any(axis=1).mean() > 0.8
    assert (means < -halves).any(axis=1).mean() < 0.01


def test_a_decision_is_the_first_one_and_stays() -> None:
    """5.5 with a half-width of 3.8 after three seeds; what comes later changes nothing."""
    rises = [5.0, 6.0, 5.5, 5.2, -40.0]
    decided = decide(rises, 0.05, None)
    assert (decided.seeds, decided.value, decided.verdict) == (3, 5.5, "win")
    assert decide(rises[:3], 0.05, None) == decided
    assert decide(rises[:2], 0.05, None) == Decision(2, 5.5, None, "tie")
    assert decide([-rise for rise in rises], 0.05, None).verdict == "loss"
    small = [0.1, -0.2, 0.15, 0.0, -0.1]
    assert decide(small, 0.05, None).verdict == "tie"
    within = decide(small, 0.05, 2.0)
    assert (within.verdict, within.words(2.0)) == ("equivalent", "within ±2")
    assert decide([], 0.05, 2.0) == Decision(0, 0.0, None, "tie")


def test_variants_that_never_differ() -> None:
    """A variant that does nothing gives the reference's numbers, up to the last digit of a sum."""
    assert decide([1e-14] * 4, 0.05, 1.0).verdict == "equivalent"
    assert decide([1e-14] * 4, 0.05, None).verdict == "tie"


def test_scores_that_repeat_themselves_are_no_certainty() -> None:
    """Four times the same half point, of 200 answers, is not a spread of nothing: with a step of
    half a point it is as if it had a standard deviation of 0.144."""
    assert half_width([0.5] * 4, 0.05) == 0.0
    known = half_width([-0.5, 0.5, -0.5, 0.5], 0.05)  # a standard deviation of 1 / sqrt(3)
    stepped = half_width([0.5] * 4, 0.05, step=0.5)
    assert stepped == pytest.approx(known * math.sqrt(3) * 0.5 / math.sqrt(12))
    assert decide([0.5] * 4, 0.05 / 7, None, step=0.5).verdict == "tie"
    assert decide([0.0] * 4, 0.05 / 7, 2.0, step=0.5).verdict == "equivalent"


def test_a_difference_that_is_far_from_the_others() -> None:
    """Ten lie one apart from nothing, so their standard deviation is sqrt(10 / 9). In that of all
    eleven, none could be farther away than 10 / sqrt(11) = 3.02."""
    others = [1.0, -1.0] * 5
    assert farthest([*others, -8.0]) == pytest.approx(8 / math.sqrt(10 / 9))
    assert farthest([*others, -8.0], step=12.0) < farthest([*others, -8.0])
    assert farthest([0.0] * 3) == farthest([1.0]) == 0.0
    assert farthest([0.0, 0.0, 1.0]) == math.inf


def test_a_comparison_of_few_seeds_or_with_a_fall_is_warned_of() -> None:
    others = [1.0, -1.0] * 5
    assert caution(others, 0.0, decided_by=10) == caution(others, 0.0) == ""
    assert caution(others, 0.0, decided_by=9) == "decided by 9 seeds"
    assert caution([*others, -8.0], 0.0) == "a seed 7.6 standard deviations from the others"
    assert caution([1.0, -1.0, -8.0], 0.0) == ""  # open, and too few to call it far
