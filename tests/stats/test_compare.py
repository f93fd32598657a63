"""The bootstrap against hand-worked cases, simulated truth, and the properties that define it."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from forever.evaluation.metrics import PerformanceMatrix
from forever.stats.bootstrap import Estimate, Replicated, Runs, Unit, resample_items, summarise
from forever.stats.compare import Comparison, compare, holm, over_logarithm


def matrix(last: Sequence[Any], first: Sequence[Any] | None = None) -> PerformanceMatrix:
    """Tasks learned one after another: item scores at the end and, for all tasks but the last, when
    just learned."""
    names = tuple(f"task{i}" for i in range(len(last)))
    end = len(last) - 1
    items = {(i, end): scores for i, scores in enumerate(last)}
    items |= {(i, i): scores for i, scores in enumerate(first or last[:-1]) if i < end}
    return PerformanceMatrix(names, names, items)


def joint(*tasks: list[float]) -> PerformanceMatrix:
    """Joint training on as many tasks."""
    names = tuple(f"task{i}" for i in range(len(tasks)))
    return PerformanceMatrix(names, ("joint",), {(i, 0): task for i, task in enumerate(tasks)})


def one(runs: PerformanceMatrix, **options: Any) -> Comparison:
    """A variant with a single run."""
    return compare({"a": {("1", 0): runs}}, **options)["a"]


def coins(random: np.random.Generator, chances: np.ndarray) -> list[float]:
    return (random.random(chances.shape) < chances).astype(float).tolist()


def tossed(seed: int, chances: dict[str, Any], seeds: int) -> dict[str, Runs]:
    """Variants of one task by their chances of its items, a run a seed."""
    random = np.random.default_rng(seed)
    variants: dict[str, Runs] = {}
    for name, chance in chances.items():
        variants[name] = {("1", s): matrix([coins(random, chance)]) for s in range(seeds)}
    return variants


def alike(names: Sequence[str], items: int, chance: float = 0.5) -> dict[str, Any]:
    return dict.fromkeys(names, np.full(items, chance))


def settled(*orders: Any, resamples: int = 1000) -> dict[Unit, Replicated]:
    """Runs whose items leave nothing open: of each order, the values of its seeds."""
    runs: dict[Unit, Replicated] = {}
    for order, values in enumerate(orders):
        for seed, value in enumerate(values):
            runs[order, seed] = Replicated(value, np.full(resamples, value))
    return runs


def mean(runs: dict[Unit, Replicated], together: bool = False) -> Estimate:
    return summarise(runs, (-100, 100), together=together)[0]


def ends(estimate: Estimate | None) -> tuple[float, float, float]:
    assert estimate is not None
    return estimate.low, estimate.value, estimate.high


def width(estimate: Estimate | None) -> float:
    low, _, high = ends(estimate)
    return high - low


# ---- items


def test_items_are_drawn_as_by_hand() -> None:
    """Two items, one right: means of 0, 50 and 100 in a quarter, a half and a quarter of the
    resamples."""
    (run,) = resample_items([matrix([[0.0, 1.0]])], 20_000)
    values, counts = np.unique(run.op.samples, return_counts=True)
    assert values.tolist() == [0.0, 50.0, 100.0]
    assert np.allclose(counts / 20_000, [0.25, 0.5, 0.25], atol=0.01)
    assert (run.op.value, run.bwt) == (50.0, None)


def test_interval_over_items_is_the_textbook_one() -> None:
    """800 items, 30 % right: 30 +- 1.96 * sqrt(0.3 * 0.7 / 800) = 30 +- 3.18. So many are drawn in
    parts."""
    op = one(matrix([[1.0] * 240 + [0.0] * 560])).op
    assert ends(op) == pytest.approx((26.82, 30.0, 33.18), abs=0.2)


def test_tasks_weigh_the_same_whatever_their_size() -> None:
    assert one(matrix([[1.0] * 10, [0.0] * 1000])).op == Estimate(50.0, 50.0, 50.0, 1)


def test_backward_transfer_is_paired_over_items() -> None:
    """Each item keeps its score but for one in a hundred, so BWT varies far less than the two
    scores it is made of."""
    learned = [1.0, 0.0] * 50
    forgotten = [0.0, *learned[1:]]
    run = one(matrix([forgotten, learned], [learned]))
    assert ends(run.bwt)[1] == pytest.approx(-1.0)
    assert width(run.bwt) < 5 < width(run.op)
    assert one(joint(forgotten, learned)).bwt is None


def test_pairing_removes_what_makes_an_item_hard_for_everyone() -> None:
    hard = np.where(np.random.default_rng(3).random(400) < 0.5, 0.05, 0.95)
    runs = tossed(3, dict.fromkeys("ab", hard), 1)
    unpaired = 2 * 1.96 * 100 * np.sqrt(2 * 0.25 / 400)
    assert width(compare(runs, "a")["b"].difference) < 0.6 * unpaired


def test_resolution_is_what_the_items_alone_leave_open() -> None:
    """With one run nothing else is resampled; more runs over the same items average the luck of
    single answers."""
    random = np.random.default_rng(0)

    def compared(count: int) -> Comparison:
        runs: dict[str, Runs] = {}
        for name in ("a", "base"):
            runs[name] = {("1", s): matrix([random.random(50).tolist()]) for s in range(count)}
        return compare(runs, "base")["a"]

    alone, several = compared(1), compared(9)
    assert alone.resolution == pytest.approx(width(alone.difference) / 2)
    assert several.resolution == pytest.approx((alone.resolution or 0.0) / 3, rel=0.2)
    assert (several.resolution or 0.0) < width(several.difference) / 2


# ---- differences


def test_bwt_has_a_p_value_of_its_own() -> None:
    """It is that of OP where only what is left of the first task differs: then both measure that.
    Joint training has none."""
    random = np.random.default_rng(0)
    runs: dict[str, dict[Any, PerformanceMatrix]] = {"a": {}, "base": {}}
    learned, last = random.random(30), random.random(30)
    for name, seed in product(runs, range(3)):
        runs[name]["1", seed] = matrix([random.random(30), last], [learned])
    compared = compare({**runs, "mtl": {("1", 0): joint([0.5] * 30, [0.5] * 30)}}, "base")
    assert compared["a"].bwt_p == compared["a"].p
    assert 0 < (compared["a"].p or 0) < 1
    assert compared["mtl"].bwt_p is None


def test_a_p_value_by_hand() -> None:
    """Of R replicates those on the rarer side of zero and one more, of R + 1, on both sides: with
    one of four below, 2 * 2 / 5. What is zero is on both. With 9,999 on one side it is 2e-4."""
    for samples, p in (
        ([-1.0, 1.0, 1.0, 1.0], 2 * 2 / 5),
        ([0.0, 0.0, 1.0, 1.0], 1.0),
        ([-3.0] * 99, 2 * 1 / 100),
        ([1.0] * 9_999, 2e-4),
    ):
        run = Replicated(float(np.mean(samples)), np.array(samples))
        assert summarise({("1", 0): run}, (-100, 100))[1] == pytest.approx(p)


def test_verdicts_on_differences_by_hand() -> None:
    """Seeds of 20, 50 and 80 %, all items alike. What is always ten points ahead differs by exactly
    ten, though each one's interval holds both; what is always half a point ahead is better, too.
    0.1 ahead, level and 0.1 behind is equivalent: Student's interval with two degrees of freedom is
    4.303 * 0.1 / sqrt(3). Seven points each way leave all open. The smallest p-value of 999
    resamples is 2 / 1000, times the four that are judged."""
    ahead = {
        "base": (0.0, 0.0, 0.0),
        "ten": (10.0, 10.0, 10.0),
        "half": (0.5, 0.5, 0.5),
        "level": (0.1, 0.0, -0.1),
        "open": (7.0, 0.0, -7.0),
        "bound": (15.0, 15.0, 15.0),
    }
    runs: dict[str, Runs] = {}
    for name, points in ahead.items():
        scores = zip((20.0, 50.0, 80.0), points, strict=True)
        each = [matrix([[(score + more) / 100] * 4]) for score, more in scores]
        runs[name] = {("1", seed): run for seed, run in enumerate(each)}
    compared = compare(runs, "base", outside=("bound",), resamples=999)
    assert {name: comparison.verdict for name, comparison in compared.items()} == {
        "base": None, "ten": "win", "half": "win", "level": "equivalent", "open": "tie",
        "bound": None,
    }  # fmt: skip
    assert ends(compared["ten"].difference) == pytest.approx((10.0, 10.0, 10.0))
    assert compared["base"].op.low < 20 < 80 < compared["base"].op.high
    low, _, high = ends(compare(runs, "base", resamples=20_000)["level"].difference)
    assert (low, high) == pytest.approx((-0.248, 0.248), rel=0.06)
    assert (compared["ten"].p, compared["ten"].p_holm) == pytest.approx((0.002, 4 * 0.002))
    assert (compared["half"].p, compared["half"].p_holm) == pytest.approx((0.002, 4 * 0.002))


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_identical_variants_differ_by_exactly_nothing(seeds: int) -> None:
    random = np.random.default_rng(0)
    runs: Runs = {("1", s): matrix([random.random(37), random.random(23)]) for s in range(seeds)}
    other: Runs = {("1", 0): matrix([[0.5] * 37, [0.5] * 23])}
    same = compare({"base": runs, "same": dict(runs), "other": other}, "base")["same"]
    assert same.difference == Estimate(0.0, 0.0, 0.0, seeds)
    judged = (1.0, "equivalent") if seeds > 1 else (None, None)
    assert (same.p, same.p_holm, same.verdict) == (1.0, *judged)


def test_swapping_variant_and_reference_mirrors_the_difference() -> None:
    runs = tossed(2, alike("ab", 50), 3)
    forth, back = compare(runs, "a")["b"].difference, compare(runs, "b")["a"].difference
    mirrored = [-end for end in reversed(ends(back))]
    assert ends(forth) == pytest.approx(mirrored, abs=0.2)


def test_only_runs_that_both_have_are_compared() -> None:
    right, wrong = matrix([[1.0] * 8]), matrix([[0.0] * 8])
    base: Runs = {("1", 0): wrong, ("1", 1): right}
    variant: Runs = {("1", 1): right, ("1", 2): wrong}
    compared = compare({"base": base, "a": variant}, "base")["a"]
    assert (compared.op.value, compared.op.runs) == (50.0, 2)
    assert compared.difference == Estimate(0.0, 0.0, 0.0, 1)
    alone = compare({"base": {("1", 0): wrong}, "a": {("1", 1): right}}, "base")["a"]
    assert (alone.difference, alone.verdict) == (None, None)


def test_differences_in_backward_transfer_are_paired_and_not_judged() -> None:
    """The reference forgets half of the first task, the variant nothing; OP differs by what is not
    forgotten."""
    kept, lost = [1.0] * 8, [1.0, 0.0] * 4
    runs: dict[str, Runs] = {
        "base": {("1", s): matrix([lost, kept], [kept]) for s in range(2)},
        "a": {("1", s): matrix([kept, kept], [kept]) for s in range(3)},
        "mtl": {("1", 0): joint(kept, kept)},
    }
    compared = compare(runs, "base")
    low, _, high = ends(compared["a"].difference)
    assert compared["a"].bwt_difference == Estimate(50.0, 2 * low, 2 * high, 2)
    assert compared["base"].bwt_difference is compared["mtl"].bwt_difference is None


def test_a_variant_can_have_its_own_reference() -> None:
    """Two families: each method against its own base, and one correction for all."""
    chances = {"base": 0.3, "a": 0.3, "base2": 0.8, "b": 0.8}
    runs = tossed(8, {name: np.full(200, chance) for name, chance in chances.items()}, 3)
    compared = compare(runs, "base", references={"base2": "base2", "b": "base2"})
    assert compared["base2"].difference is None
    alone = compare({name: runs[name] for name in ("base2", "b")}, "base2")["b"]
    assert compared["b"].difference == alone.difference
    corrected = holm([alone.p or 0.0, compared["a"].p or 0.0])[0]
    assert compared["b"].p_holm == pytest.approx(corrected)
    assert ends(compare(runs, "base")["b"].difference)[0] > 30
    assert compare({"b": runs["b"]}, "base", references={"b": "base2"})["b"].difference is None


def test_neither_bounds_nor_one_seed_are_judged() -> None:
    """Nor do bounds cost the others. From one seed nothing is known, however many items it has."""
    runs = tossed(5, {"base": np.full(60, 0.5), "a": np.full(60, 0.5), "mtl": np.full(60, 0.9)}, 2)
    compared = compare(runs, "base", outside=("mtl",))
    assert ends(compared["mtl"].difference)[0] > 20
    assert compared["mtl"].verdict is compared["base"].verdict is None
    assert compared["a"].p_holm == compared["a"].p
    single: dict[str, Runs] = {name: {("1", 0): runs[name]["1", 0]} for name in ("base", "mtl")}
    alone = compare(single, "base")["mtl"]
    assert ends(alone.difference)[0] > 20
    assert (alone.p_holm, alone.verdict) == (None, None)


def test_holm_on_worked_examples() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    # Four hypotheses: 4 * 0.005, 3 * 0.011, 2 * 0.02 and 0.04, each at least the one before.
    assert holm([0.02, 0.005, 0.04, 0.011]) == pytest.approx([0.04, 0.02, 0.04, 0.033])
    assert (holm([0.6, 0.7]), holm([])) == ([1.0, 1.0], [])


# ---- over a number


def test_the_mean_over_a_logarithm_is_the_area_by_hand() -> None:
    """At 1, 2 and 8, so 0, 1 and 3 in the logarithm: OP of 10, 20 and 40 % has the trapezoids
    15 x 1 and 30 x 2, over 3: 25. A task that was learned by heart lost the rest. Twice the seed's
    points more are twice as much more of the mean. A seed that lacks a number is left out."""

    def curve(values: Sequence[float], luck: float) -> dict[float, Runs]:
        runs: dict[float, dict[Unit, PerformanceMatrix]] = {}
        for number, value in zip((1, 2, 8), values, strict=True):
            for seed in range(3 if number < 8 else 2):
                tasks = [[value + luck * seed] * 4] * 2
                runs.setdefault(number, {})["1", seed] = matrix(tasks, [[1.0] * 4])
        return {number: dict(of_number) for number, of_number in runs.items()}

    curves = {"base": curve((0.2, 0.2, 0.2), 0.02), "a": curve((0.1, 0.2, 0.4), 0.02)}
    means = over_logarithm(curves, "base", resamples=1000)
    assert [*means] == ["base", "a", "a less base"]
    for name, op in (("base", 21.0), ("a", 26.0)):
        assert means[name]["op"].value == pytest.approx(op)
        assert means[name]["bwt"].value == pytest.approx(op - 100)
        assert means[name]["op"].runs == 2
        assert means[name]["op"].low < op - 1 < op + 1 < means[name]["op"].high
    # Both have the luck of their seeds, so what they differ by is sure.
    for score in ("op", "bwt"):
        assert ends(means["a less base"][score]) == pytest.approx((5.0, 5.0, 5.0))
    alone: Runs = {("1", 0): matrix([[0.5]])}
    assert "bwt" not in over_logarithm({"a": {1: alone, 2: alone}})["a"]


# ---- runs


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_runs_alone_give_students_interval(seeds: int) -> None:
    """Without item noise the truth is covered in about 95 of 100 cases; the plain bootstrap covers
    3 seeds in 75."""
    random = np.random.default_rng(seeds)
    hits = 0
    for _ in range(400):
        low, _, high = ends(mean(settled(random.normal(3.0, 2.0, seeds))))
        hits += low <= 3.0 <= high
    assert 0.91 <= hits / 400 <= 0.99


def test_orders_are_drawn_and_seeds_within_them() -> None:
    """Seeds that agree: only orders are drawn, 1 or 11 twice or one of each. Orders that agree:
    only seeds are, so the interval is Student's with 2 + 2 degrees of freedom and the seeds'
    variance 1: 2.776 * sqrt(1 / 6)."""
    assert mean(settled([1.0] * 3, [11.0] * 3)) == Estimate(6.0, 1.0, 11.0, 6)
    agreeing = mean(settled([-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0], resamples=40_000))
    assert (agreeing.low, agreeing.high) == pytest.approx((-1.133, 1.133), rel=0.06)


def test_orders_of_one_seed_each_are_drawn_as_seeds_are() -> None:
    """One seed of joint training is one run in however many orders: its luck is the same in each,
    so nothing but the orders varies; that judges nobody."""
    orders, seeds = settled([3.0], [5.0], [10.0]), settled([3.0, 5.0, 10.0])
    assert mean(orders) == mean(seeds)
    together = mean(orders, together=True)
    assert (together.runs, ends(together)) == (1, ends(mean(seeds)))
    assert together.low < 3.0 < 10.0 < together.high
    assert mean(settled([3.0, 4.0, 5.0], [4.0, 5.0, 6.0]), together=True).runs == 3


def test_joint_training_is_not_surer_for_being_listed_under_several_orders() -> None:
    """It gives the same in each, so three seeds stay three seeds; and so they do in a difference to
    it."""
    random = np.random.default_rng(0)
    scores = dict(enumerate([0.88, 0.84, 0.93]))
    trained: Runs = {
        ("1", seed): joint([score] * 20, [score] * 20) for seed, score in scores.items()
    }
    units: list[Unit] = [(order, seed) for order in ("1", "2", "3") for seed in scores]
    base: Runs = {unit: matrix([[random.random()] * 20, [0.5] * 20]) for unit in units}
    listed: Runs = {(order, seed): trained["1", seed] for order, seed in units}
    alone = compare({"mtl": trained})["mtl"].op
    several = compare({"base": base, "mtl": listed}, "base")["mtl"]
    assert ends(several.op) == pytest.approx(ends(alone), abs=1.0)
    assert width(several.difference) > width(alone)


def test_orders_that_differ_widen_the_interval() -> None:
    """Three orders x three seeds, orders as different as seeds. As nine equals they would cover 75
    of 100."""
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        values = random.normal(0, 2.0, (3, 3)) + random.normal(0, 2.0, (3, 1))
        low, _, high = ends(mean(settled(*values)))
        hits += low <= 0 <= high
    assert hits / 400 >= 0.82


def test_intervals_cover_the_truth_of_a_simulated_comparison() -> None:
    """Items of unequal difficulty, seeds of unequal luck, 15 points apart, 3 seeds of 2 x 50
    items."""
    random = np.random.default_rng(6)
    hits = wins = 0
    for _ in range(200):
        runs: dict[str, dict[Unit, PerformanceMatrix]] = {"base": {}, "a": {}}
        difficulty = random.uniform(0.2, 0.7, (2, 50))
        for s in range(3):
            for name, gain in (("base", 0.0), ("a", 0.15)):
                chances = difficulty + gain + random.normal(0, 0.02)
                runs[name]["1", s] = matrix([coins(random, task) for task in chances])
        compared = compare(runs, "base", resamples=400)["a"]
        low, _, high = ends(compared.difference)
        hits += low <= 15.0 <= high
        wins += compared.verdict == "win"
        assert compared.verdict != "loss"
    assert hits / 200 >= 0.93
    assert 40 <= wins < 200


def test_false_wins_are_rare() -> None:
    """Seven variants equal to the reference: with Holm's correction at most one comparison in
    twenty shouts."""
    false = 0
    for trial in range(60):
        runs = tossed(trial, alike(["base", *"abcdefg"], 60, 0.6), 3)
        verdicts = {one.verdict for one in compare(runs, "base", resamples=1000).values()}
        false += bool(verdicts & {"win", "loss"})
    assert false / 60 <= 0.1
