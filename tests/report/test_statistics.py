"""The bootstrap against hand-worked cases, simulated truth, and the properties that define it."""

from typing import Any

import numpy as np
import pytest

from forever.evaluation.metrics import PerformanceMatrix
from forever.report.bootstrap import Estimate, Replicated, Runs, Unit, resample_items, summarise
from forever.report.statistics import Comparison, compare, holm, verdict


def matrix(last: list[list[float]], first: list[list[float]] | None = None) -> PerformanceMatrix:
    """Tasks learned one after another: item scores at the end and, for all tasks but the last, when
    just learned."""
    names = tuple(f"task{i}" for i in range(len(last)))
    end = len(last) - 1
    items = {(i, end): scores for i, scores in enumerate(last)}
    items |= {(i, i): scores for i, scores in enumerate(first or last[:-1]) if i < end}
    return PerformanceMatrix(names, names, items)


def coins(random: np.random.Generator, chances: np.ndarray) -> list[float]:
    return (random.random(chances.shape) < chances).astype(float).tolist()


def tossed(random: np.random.Generator, chances: dict[str, Any], seeds: int) -> dict[str, Runs]:
    """Variants of one task by their chances of its items, a run a seed."""
    variants: dict[str, Runs] = {}
    for name, chance in chances.items():
        variants[name] = {("1", s): matrix([coins(random, chance)]) for s in range(seeds)}
    return variants


def settled(values: dict[str, Any], resamples: int = 1000) -> dict[Unit, Replicated]:
    """Runs whose items leave nothing open, by order."""
    runs: dict[Unit, Replicated] = {}
    for order, of_order in values.items():
        for seed, value in enumerate(of_order):
            runs[order, seed] = Replicated(value, np.full(resamples, value))
    return runs


def known(estimate: Estimate | None) -> Estimate:
    assert estimate is not None
    return estimate


def width(estimate: Estimate | None) -> float:
    return known(estimate).high - known(estimate).low


def test_items_are_drawn_as_by_hand() -> None:
    """Two items, one right: means of 0, 50 and 100 in a quarter, a half and a quarter of the
    resamples."""
    (run,) = resample_items([matrix([[0.0, 1.0]])], 20_000, 0)
    values, counts = np.unique(run.op.samples, return_counts=True)
    assert values.tolist() == [0.0, 50.0, 100.0]
    assert np.allclose(counts / 20_000, [0.25, 0.5, 0.25], atol=0.01)
    assert run.op.value == 50.0
    assert run.bwt is None


def test_interval_over_items_is_the_textbook_one() -> None:
    """400 items, 30 % right: 30 +- 1.96 * sqrt(0.3 * 0.7 / 400) = 30 +- 4.49."""
    scores = [1.0] * 120 + [0.0] * 280
    op = compare({"a": {("1", 0): matrix([scores])}})["a"].op
    assert (op.value, op.runs) == (30.0, 1)
    assert (op.low, op.high) == pytest.approx((25.51, 34.49), abs=0.3)


def test_tasks_weigh_the_same_whatever_their_size() -> None:
    op = compare({"a": {("1", 0): matrix([[1.0] * 10, [0.0] * 1000])}})["a"].op
    assert (op.value, op.low, op.high) == (50.0, 50.0, 50.0)


def test_backward_transfer_is_paired_over_items() -> None:
    """Each item keeps its score but for one in a hundred, so BWT varies far less than the two
    scores it is made of."""
    learned = [1.0, 0.0] * 50
    forgotten = [0.0, *learned[1:]]
    one = compare({"a": {("1", 0): matrix([forgotten, [1.0, 0.0] * 50], [learned])}})["a"]
    assert known(one.bwt).value == pytest.approx(-1.0)
    assert width(one.bwt) < 5 < width(one.op)


def test_joint_training_has_no_backward_transfer() -> None:
    joint = PerformanceMatrix(("a", "b"), ("joint",), {(0, 0): [1.0, 0.0], (1, 0): [1.0, 1.0]})
    one = compare({"mtl": {("1", 0): joint}})["mtl"]
    assert (one.bwt, one.op.value) == (None, 75.0)


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_identical_variants_differ_by_exactly_nothing(seeds: int) -> None:
    random = np.random.default_rng(0)
    rows = [[random.random(37).tolist(), random.random(23).tolist()] for _ in range(seeds)]
    runs = {("1", seed): matrix(scores) for seed, scores in enumerate(rows)}
    other = {("1", 0): matrix([[0.5] * 37, [0.5] * 23])}
    one = compare({"base": runs, "same": dict(runs), "other": other}, "base")["same"]
    assert one.difference == Estimate(0.0, 0.0, 0.0, seeds)
    judged = (1.0, "tie") if seeds > 1 else (None, None)
    assert (one.p, one.p_holm, one.verdict) == (1.0, *judged)


def test_a_shift_of_all_scores_shifts_everything_but_the_difference() -> None:
    random = np.random.default_rng(1)
    a, b = ({s: [random.random(40) / 2 for _ in range(2)] for s in range(3)} for _ in range(2))

    def compared(shift: float) -> Comparison:
        shifted: dict[str, Runs] = {}
        for name, tasks in (("a", a), ("b", b)):
            scores = {s: [(v + shift).tolist() for v in t] for s, t in tasks.items()}
            shifted[name] = {("1", s): matrix(rows) for s, rows in scores.items()}
        return compare(shifted, "a", resamples=2000)["b"]

    before, after = compared(0.0), compared(0.25)
    for field in ("value", "low", "high"):
        assert getattr(after.op, field) - getattr(before.op, field) == pytest.approx(25)
        gap = getattr(before.difference, field)
        assert getattr(after.difference, field) == pytest.approx(gap)
    assert after.p == before.p


def test_swapping_variant_and_reference_mirrors_the_difference() -> None:
    runs = tossed(np.random.default_rng(2), dict.fromkeys("ab", np.full(50, 0.5)), 3)
    forth, back = (
        known(compare(runs, "a")["b"].difference),
        known(compare(runs, "b")["a"].difference),
    )
    mirrored = (-back.value, -back.high, -back.low)
    assert (forth.value, forth.low, forth.high) == pytest.approx(mirrored, abs=0.2)


def test_pairing_removes_what_makes_an_item_hard_for_everyone() -> None:
    random = np.random.default_rng(3)
    hard = np.where(random.random(400) < 0.5, 0.05, 0.95)
    runs = tossed(random, dict.fromkeys("ab", hard), 1)
    unpaired = 2 * 1.96 * 100 * np.sqrt(2 * 0.25 / 400)
    assert width(compare(runs, "a")["b"].difference) < 0.6 * unpaired


def test_resolution_is_what_the_items_alone_leave_open() -> None:
    """With one run nothing else is resampled; more runs over the same items average the luck of
    single answers."""
    random = np.random.default_rng(0)

    def runs(count: int) -> Runs:
        return {("1", seed): matrix([random.random(50).tolist()]) for seed in range(count)}

    alone = compare({"a": runs(1), "base": runs(1)}, "base")["a"]
    assert alone.resolution == pytest.approx(width(alone.difference) / 2)
    several = compare({"a": runs(9), "base": runs(9)}, "base")["a"]
    assert several.resolution == pytest.approx((alone.resolution or 0.0) / 3, rel=0.2)
    assert several.resolution < width(several.difference) / 2
    assert compare({"base": runs(2)}, "base")["base"].resolution is None


def test_only_runs_that_both_have_are_compared() -> None:
    one, zero = matrix([[1.0] * 8]), matrix([[0.0] * 8])
    base, variant = {("1", 0): zero, ("1", 1): one}, {("1", 1): one, ("1", 2): zero}
    compared = compare({"base": base, "a": variant}, "base")["a"]
    assert (compared.op.value, compared.op.runs) == (50.0, 2)
    assert compared.difference == Estimate(0.0, 0.0, 0.0, 1)
    alone = compare({"base": {("1", 0): zero}, "a": {("1", 1): one}}, "base")["a"]
    assert (alone.difference, alone.verdict) == (None, None)


def test_differences_in_backward_transfer_are_paired_and_not_judged() -> None:
    """The reference forgets half of the first task, the variant nothing; OP differs by what is not
    forgotten."""
    kept, lost, other = [1.0] * 8, [1.0, 0.0] * 4, [1.0] * 8
    runs = {
        "base": {("1", s): matrix([lost, other], [kept]) for s in range(2)},
        "a": {("1", s): matrix([kept, other], [kept]) for s in range(3)},
    }
    compared = compare(runs, "base")
    bwt, op = known(compared["a"].bwt_difference), known(compared["a"].difference)
    assert (bwt.value, bwt.runs) == (50.0, 2)
    assert (bwt.low, bwt.high) == (2 * op.low, 2 * op.high)
    assert compared["base"].bwt_difference is None
    joint = PerformanceMatrix(("task0", "task1"), ("joint",), {(0, 0): kept, (1, 0): other})
    assert compare({**runs, "mtl": {("1", 0): joint}}, "base")["mtl"].bwt_difference is None


def test_a_variant_can_have_its_own_reference() -> None:
    """Two families: each method against its own base, and one correction for all."""
    chances = {"base": 0.3, "a": 0.3, "base2": 0.8, "b": 0.8}
    random = np.random.default_rng(8)
    runs = tossed(random, {name: np.full(200, p) for name, p in chances.items()}, 3)
    compared = compare(runs, "base", references={"base2": "base2", "b": "base2"})
    assert compared["base2"].difference is None
    alone = compare({name: runs[name] for name in ("base2", "b")}, "base2")["b"]
    assert compared["b"].difference == alone.difference
    corrected = holm([alone.p or 0.0, compared["a"].p or 0.0])[0]
    assert compared["b"].p_holm == pytest.approx(min(1.0, corrected))
    assert known(compare(runs, "base")["b"].difference).low > 30
    two = {name: runs[name] for name in ("base", "b")}
    assert compare(two, "base", references={"b": "base2"})["b"].difference is None


def test_the_same_arguments_give_the_same_numbers() -> None:
    runs = tossed(np.random.default_rng(4), dict.fromkeys("abc", np.full(30, 0.6)), 2)
    assert compare(runs, "a", resamples=500) == compare(runs, "a", resamples=500)
    fewer = compare({name: runs[name] for name in "ab"}, "a", resamples=500)
    assert fewer["b"].difference == compare(runs, "a", resamples=500)["b"].difference


def test_bounds_are_not_judged_and_do_not_cost_the_others() -> None:
    names = ("base", "a", "mtl")
    runs = tossed(np.random.default_rng(5), dict.fromkeys(names, np.full(60, 0.5)), 2)
    compared = compare(runs, "base", outside=("mtl",))
    assert compared["mtl"].difference is not None
    assert compared["mtl"].verdict is None
    assert compared["a"].p_holm == compared["a"].p
    assert compared["a"].verdict is not None
    assert compared["base"].difference is None


def test_one_seed_judges_nothing() -> None:
    """A hundred items and forty points apart, and still it could be the seed."""
    base, other = (matrix([[1.0] * hits + [0.0] * (100 - hits)]) for hits in (30, 70))
    one = compare({"base": {("1", 0): base}, "a": {("1", 0): other}}, "base")["a"]
    assert known(one.difference).low > 20
    assert (one.p_holm, one.verdict) == (None, None)


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_runs_alone_give_students_interval(seeds: int) -> None:
    """Without item noise the truth is covered in about 95 of 100 cases; the plain bootstrap covers
    3 seeds in 75."""
    random = np.random.default_rng(seeds)
    hits = 0
    for _ in range(400):
        estimate, _ = summarise(settled({"1": random.normal(3.0, 2.0, seeds)}), (-100, 100))
        hits += estimate.low <= 3.0 <= estimate.high
    assert 0.91 <= hits / 400 <= 0.99


def test_orders_are_drawn_and_seeds_within_them() -> None:
    """Seeds that agree: only orders are drawn, 1 or 11 twice or one of each. Orders that agree:
    only seeds are, so the interval is Student's with 2 + 2 degrees of freedom and the seeds'
    variance 1: 2.776 * sqrt(1 / 6)."""
    one, _ = summarise(settled({"1": [1.0] * 3, "2": [11.0] * 3}), (-100, 100))
    assert (one.low, one.value, one.high, one.runs) == (1.0, 6.0, 11.0, 6)
    agreeing = settled({"1": [-1.0, 0.0, 1.0], "2": [-1.0, 0.0, 1.0]}, 40_000)
    two, _ = summarise(agreeing, (-100, 100))
    assert (two.low, two.high) == pytest.approx((-1.133, 1.133), rel=0.06)


def test_orders_of_one_seed_each_are_drawn_as_seeds_are() -> None:
    values = [3.0, 5.0, 10.0]
    orders, seeds = settled({str(i): [v] for i, v in enumerate(values)}), settled({"1": values})
    assert summarise(orders, (-100, 100)) == summarise(seeds, (-100, 100))


def test_joint_training_is_not_surer_for_being_listed_under_several_orders() -> None:
    """It gives the same in each, so three seeds stay three seeds; and so they do in a difference to
    it."""
    random = np.random.default_rng(0)

    def joint(score: float) -> PerformanceMatrix:
        return PerformanceMatrix(("a", "b"), ("joint",), {(i, 0): [score] * 20 for i in range(2)})

    seeds = dict(enumerate([0.88, 0.84, 0.93]))
    units = [(order, seed) for order in ("1", "2", "3") for seed in seeds]
    base = {unit: matrix([[random.random()] * 20, [0.5] * 20]) for unit in units}
    one = compare({"mtl": {("1", seed): joint(score) for seed, score in seeds.items()}})["mtl"]
    listed = {(order, seed): joint(seeds[seed]) for order, seed in units}
    several = compare({"base": base, "mtl": listed}, "base")["mtl"]
    assert (several.op.low, several.op.high) == pytest.approx((one.op.low, one.op.high), abs=1.0)
    assert width(several.difference) > width(one.op)


def test_one_seed_of_joint_training_is_one_run_in_however_many_orders() -> None:
    """Its luck is the same in each, so nothing but the orders varies; that judges nobody, and is
    drawn as seeds are."""
    values = settled({"1": [3.0], "2": [5.0], "3": [10.0]})
    together, alone = (summarise(values, (-100, 100), together=joint)[0] for joint in (True, False))
    assert (together.runs, alone.runs) == (1, 3)
    assert (together.low, together.value, together.high) == (alone.low, alone.value, alone.high)
    assert together.low < 3.0 < 10.0 < together.high
    three = settled({"1": [3.0, 4.0, 5.0], "2": [4.0, 5.0, 6.0]})
    assert summarise(three, (-100, 100), together=True)[0].runs == 3


def test_orders_that_differ_widen_the_interval() -> None:
    """Three orders x three seeds, orders as different as seeds. As nine equals they would cover 75
    of 100."""
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        values = random.normal(0, 2.0, (3, 3)) + random.normal(0, 2.0, (3, 1))
        estimate, _ = summarise(settled({str(i): row for i, row in enumerate(values)}), (-100, 100))
        hits += estimate.low <= 0 <= estimate.high
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
                luck = random.normal(0, 0.02)
                scores = [coins(random, row + gain + luck) for row in difficulty]
                runs[name]["1", s] = matrix(scores)
        one = compare(runs, "base", resamples=400)["a"]
        hits += known(one.difference).low <= 15.0 <= known(one.difference).high
        wins += one.verdict == "win"
        assert one.verdict != "loss"
    assert hits / 200 >= 0.93
    assert 40 <= wins < 200


def test_false_wins_are_rare() -> None:
    """Seven variants equal to the reference: with Holm's correction at most one comparison in
    twenty shouts."""
    random = np.random.default_rng(7)
    false = 0
    for _ in range(60):
        runs = tossed(random, dict.fromkeys(["base", *"abcdefg"], np.full(60, 0.6)), 3)
        verdicts = {one.verdict for one in compare(runs, "base", resamples=1000).values()}
        false += bool(verdicts & {"win", "loss"})
    assert false / 60 <= 0.1


def test_holm_on_worked_examples() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    # Four hypotheses: 4 * 0.005, 3 * 0.011, 2 * 0.02 and 0.04, each at least the one before.
    assert holm([0.02, 0.005, 0.04, 0.011]) == pytest.approx([0.04, 0.02, 0.04, 0.033])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_verdicts() -> None:
    assert [verdict(*case) for case in ((3.0, 0.01), (-3.0, 0.01), (3.0, 0.06))] == [
        "win", "loss", "tie",
    ]  # fmt: skip


def test_many_rows_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forever.report.bootstrap._CELLS", 100)
    op = compare({"a": {("1", 0): matrix([[1.0, 0.0] * 30])}}, resamples=501)["a"].op
    assert op.low < 50 < op.high
