"""The bootstrap against hand-worked cases, simulated truth, and the properties that define it."""

from typing import Any

import numpy as np
import pytest

from forever.evaluation.metrics import PerformanceMatrix
from forever.report.bootstrap import Estimate, Replicated, Runs, Unit, resample_items, summarise
from forever.report.statistics import compare, holm, verdict


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
    assert (op.value, op.runs, op.basis) == (30.0, 1, "items only, 1 run")
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
    assert one.bwt is not None
    assert one.bwt.value == pytest.approx(-1.0)
    assert one.bwt.high - one.bwt.low < 5 < one.op.high - one.op.low


def test_joint_training_has_no_backward_transfer() -> None:
    joint = PerformanceMatrix(("a", "b"), ("joint",), {(0, 0): [1.0, 0.0], (1, 0): [1.0, 1.0]})
    one = compare({"mtl": {("1", 0): joint}})["mtl"]
    assert one.bwt is None
    assert one.op.value == 75.0


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_identical_variants_differ_by_exactly_nothing(seeds: int) -> None:
    random = np.random.default_rng(0)
    runs = {
        ("1", s): matrix([random.random(37).tolist(), random.random(23).tolist()])
        for s in range(seeds)
    }
    one = compare(
        {"base": runs, "same": dict(runs), "other": {("1", 0): matrix([[0.5] * 37, [0.5] * 23])}},
        "base",
    )["same"]
    assert one.difference == Estimate(0.0, 0.0, 0.0, seeds)
    assert (one.p, one.p_holm, one.verdict) == (
        (1.0, 1.0, "tie") if seeds > 1 else (1.0, None, None)
    )


def test_a_shift_of_all_scores_shifts_everything_but_the_difference() -> None:
    random = np.random.default_rng(1)
    a, b = ({s: [random.random(40) / 2 for _ in range(2)] for s in range(3)} for _ in range(2))

    def compared(shift: float) -> dict:
        shifted = [
            {("1", s): matrix([(v + shift).tolist() for v in t]) for s, t in tasks.items()}
            for tasks in (a, b)
        ]
        return compare({"a": shifted[0], "b": shifted[1]}, "a", resamples=2000)

    here, there = compared(0.0), compared(0.25)
    for field in ("value", "low", "high"):
        assert getattr(there["b"].op, field) - getattr(here["b"].op, field) == pytest.approx(25)
        assert getattr(there["b"].difference, field) == pytest.approx(
            getattr(here["b"].difference, field)
        )
    assert there["b"].p == here["b"].p


def test_swapping_variant_and_reference_mirrors_the_difference() -> None:
    random = np.random.default_rng(2)
    runs = {
        name: {("1", s): matrix([coins(random, np.full(50, 0.5))]) for s in range(3)}
        for name in "ab"
    }
    forth, back = compare(runs, "a")["b"].difference, compare(runs, "b")["a"].difference
    assert forth is not None
    assert back is not None
    assert (forth.value, forth.low, forth.high) == pytest.approx(
        (-back.value, -back.high, -back.low), abs=0.2
    )


def test_pairing_removes_what_makes_an_item_hard_for_everyone() -> None:
    random = np.random.default_rng(3)
    hard = np.where(random.random(400) < 0.5, 0.05, 0.95)
    runs = {name: {("1", 0): matrix([coins(random, hard)])} for name in "ab"}
    difference = compare(runs, "a")["b"].difference
    assert difference is not None
    unpaired = 2 * 1.96 * 100 * np.sqrt(2 * 0.25 / 400)
    assert difference.high - difference.low < 0.6 * unpaired


def test_resolution_is_what_the_items_alone_leave_open() -> None:
    """With one run nothing else is resampled; more runs over the same items average the luck of
    single answers."""
    random = np.random.default_rng(0)

    def runs(count: int) -> Runs:
        return {("1", seed): matrix([random.random(50).tolist()]) for seed in range(count)}

    alone = compare({"a": runs(1), "base": runs(1)}, "base")["a"]
    assert alone.difference is not None
    assert alone.resolution == pytest.approx((alone.difference.high - alone.difference.low) / 2)
    several = compare({"a": runs(9), "base": runs(9)}, "base")["a"]
    assert several.difference is not None
    assert several.resolution is not None
    assert several.resolution == pytest.approx((alone.resolution or 0.0) / 3, rel=0.2)
    assert several.resolution < (several.difference.high - several.difference.low) / 2
    assert compare({"base": runs(2)}, "base")["base"].resolution is None


def test_only_runs_that_both_have_are_compared() -> None:
    one, zero = matrix([[1.0] * 8]), matrix([[0.0] * 8])
    found = compare(
        {"base": {("1", 0): zero, ("1", 1): one}, "a": {("1", 1): one, ("1", 2): zero}}, "base"
    )["a"]
    assert found.op.value == 50.0
    assert found.op.runs == 2
    assert found.difference == Estimate(0.0, 0.0, 0.0, 1)
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
    found = compare(runs, "base")
    one = found["a"]
    assert one.bwt_difference is not None
    assert one.difference is not None
    assert (one.bwt_difference.value, one.bwt_difference.runs) == (50.0, 2)
    assert (one.bwt_difference.low, one.bwt_difference.high) == (
        2 * one.difference.low,
        2 * one.difference.high,
    )
    assert found["base"].bwt_difference is None
    joint = PerformanceMatrix(("task0", "task1"), ("joint",), {(0, 0): kept, (1, 0): other})
    assert compare({**runs, "mtl": {("1", 0): joint}}, "base")["mtl"].bwt_difference is None


def test_a_variant_can_have_its_own_reference() -> None:
    """Two families: each method against its own base, and one correction for all."""
    random = np.random.default_rng(8)
    chances = {"base": 0.3, "a": 0.3, "base2": 0.8, "b": 0.8}
    runs = {
        n: {("1", s): matrix([coins(random, np.full(200, p))]) for s in range(3)}
        for n, p in chances.items()
    }
    found = compare(runs, "base", references={"base2": "base2", "b": "base2"})
    assert found["base2"].difference is None
    alone = compare({n: runs[n] for n in ("base2", "b")}, "base2")
    assert found["b"].difference == alone["b"].difference
    assert found["b"].p_holm is not None
    assert alone["b"].p is not None
    assert found["b"].p_holm == pytest.approx(
        min(1.0, holm([alone["b"].p, found["a"].p or 0.0])[0])
    )
    other = compare(runs, "base")["b"].difference
    assert other is not None
    assert other.low > 30
    assert (
        compare({n: runs[n] for n in ("base", "b")}, "base", references={"b": "base2"})[
            "b"
        ].difference
        is None
    )


def test_the_same_arguments_give_the_same_numbers() -> None:
    random = np.random.default_rng(4)
    runs = {
        name: {("1", s): matrix([coins(random, np.full(30, 0.6))]) for s in range(2)}
        for name in "abc"
    }
    assert compare(runs, "a", resamples=500) == compare(runs, "a", resamples=500)
    fewer = compare({name: runs[name] for name in "ab"}, "a", resamples=500)
    assert fewer["b"].difference == compare(runs, "a", resamples=500)["b"].difference


def test_bounds_are_not_judged_and_do_not_cost_the_others() -> None:
    random = np.random.default_rng(5)
    runs = {
        n: {("1", s): matrix([coins(random, np.full(60, 0.5))]) for s in range(2)}
        for n in ("base", "a", "mtl")
    }
    found = compare(runs, "base", outside=("mtl",))
    assert found["mtl"].difference is not None
    assert found["mtl"].verdict is None
    assert found["a"].p_holm == found["a"].p
    assert found["a"].verdict is not None
    assert found["base"].difference is None


def test_one_seed_judges_nothing() -> None:
    """A hundred items and forty points apart, and still it could be the seed."""
    runs = {
        name: {("1", 0): matrix([[1.0] * hits + [0.0] * (100 - hits)])}
        for name, hits in (("base", 30), ("a", 70))
    }
    one = compare(runs, "base")["a"]
    assert one.difference is not None
    assert one.difference.low > 20
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


def settled(values: dict[str, Any]) -> dict[Unit, Replicated]:
    """Runs whose items leave nothing open, by order."""
    return {
        (order, s): Replicated(v, np.full(1000, v))
        for order, runs in values.items()
        for s, v in enumerate(runs)
    }


def test_orders_are_drawn_and_seeds_within_them() -> None:
    """Seeds that agree: only orders are drawn, 1 or 11 twice or one of each. Orders that agree:
    only seeds are, so the interval is Student's with 2 + 2 degrees of freedom and the seeds'
    variance 1: 2.776 * sqrt(1 / 6)."""
    one, _ = summarise(settled({"1": [1.0] * 3, "2": [11.0] * 3}), (-100, 100))
    assert (one.low, one.value, one.high, one.runs) == (1.0, 6.0, 11.0, 6)
    runs = {
        (order, s): Replicated(v, np.full(40_000, v))
        for order in "12"
        for s, v in enumerate([-1.0, 0.0, 1.0])
    }
    two, _ = summarise(runs, (-100, 100))
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
    orders = ("1", "2", "3")
    base: Runs = {
        (o, s): matrix([[random.random()] * 20, [0.5] * 20]) for o in orders for s in seeds
    }
    one = compare({"mtl": {("1", s): joint(v) for s, v in seeds.items()}})["mtl"]
    found = compare(
        {"base": base, "mtl": {(o, s): joint(v) for o in orders for s, v in seeds.items()}}, "base"
    )["mtl"]
    assert (found.op.low, found.op.high) == pytest.approx((one.op.low, one.op.high), abs=1.0)
    assert found.difference is not None
    assert found.difference.high - found.difference.low > one.op.high - one.op.low


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
                runs[name]["1", s] = matrix(
                    [coins(random, row + gain + luck) for row in difficulty]
                )
        one = compare(runs, "base", resamples=400)["a"]
        assert one.difference is not None
        hits += one.difference.low <= 15.0 <= one.difference.high
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
        runs = {
            n: {("1", s): matrix([coins(random, np.full(60, 0.6))]) for s in range(3)}
            for n in ["base", *"abcdefg"]
        }
        false += any(
            one.verdict in ("win", "loss") for one in compare(runs, "base", resamples=1000).values()
        )
    assert false / 60 <= 0.1


def test_holm_on_worked_examples() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    # Four hypotheses: 4 * 0.005, 3 * 0.011, 2 * 0.02 and 0.04, each at least the one before.
    assert holm([0.02, 0.005, 0.04, 0.011]) == pytest.approx([0.04, 0.02, 0.04, 0.033])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_verdicts() -> None:
    assert verdict(3.0, 0.01) == "win"
    assert verdict(-3.0, 0.01) == "loss"
    assert verdict(3.0, 0.06) == "tie"


def test_many_rows_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forever.report.bootstrap._CELLS", 100)
    op = compare({"a": {("1", 0): matrix([[1.0, 0.0] * 30])}}, resamples=501)["a"].op
    assert op.low < 50 < op.high
