"""What a difference says, and between whom it says anything."""

from typing import Any

import pytest

from forever.stats.verdict import DoseGap, Replayed, dose_gap, replayed, verdict, word


@pytest.mark.parametrize(
    ("value", "low", "high", "shown", "expected"),
    [
        (3.0, 1.0, 5.0, True, "better"),
        (-3.0, -5.0, -1.0, True, "worse"),
        (0.5, 0.2, 0.8, True, "better"),  # that it is small does not make it none
        (0.3, -0.4, 1.0, False, "equivalent"),
        (0.5, 0.1, 0.9, False, "equivalent"),  # as corrected for other comparisons
        (0.0, 0.0, 0.0, True, "equivalent"),
        (0.3, -0.4, 1.01, False, "not shown"),
        (-0.5, -1.1, 0.1, False, "not shown"),
        (3.0, 1.0, 5.0, False, "not shown"),
    ],
)
def test_verdicts(value: float, low: float, high: float, shown: bool, expected: str) -> None:
    assert word(verdict(value, low, high, shown)) == expected


def test_a_margin_may_be_another_or_none() -> None:
    assert verdict(0.0, -1.9, 2.0, False, margin=2.0) == "equivalent"
    assert verdict(0.0, -1.9, 2.0, False, margin=None) == "tie"
    assert (word("not comparable"), word(None)) == ("≠ dose", "")


METHODS = {"method.name": "forever", "memory.fraction": 0.02}, {"method.name": "mix_replay"}


def beside(examples: Any, others: Any) -> DoseGap:
    """FOREVER and MixReplay whose runs replay so many examples in all."""
    own = [Replayed(count, None) for count in examples]
    return dose_gap(METHODS[0], METHODS[1], own, [Replayed(count, None) for count in others])


def test_doses_that_differ_by_more_than_two_percent_have_no_verdict() -> None:
    """Of the larger one, over the runs that are compared: one that has more in one run may have
    less in another."""
    for smaller, comparable in ((979, False), (980, True), (1000, True)):
        for doses in (([1000], [smaller]), ([smaller], [1000]), ([500, 500], [smaller, 0])):
            result = beside(*doses)
            assert result.comparable is comparable
            assert result.equal == ("examples" if comparable else "")
    assert beside([1000], [979]).words() == "2.1 % of examples"
    assert beside([900, 1100], [1100, 900]).comparable


def test_what_asks_another_question_is_judged_at_any_dose() -> None:
    """What replay is worth, what a dose is worth, and what runs of earlier versions do not tell."""
    for others in ([0], [None]):
        assert beside([1000], others) == DoseGap()
    dose = {**METHODS[0], "memory.fraction": 0.2, "budget.examples": 400}
    more, less = [Replayed(1000, None)], [Replayed(400, None)]
    assert dose_gap(METHODS[0], dose, more, less) == DoseGap()
    assert not dose_gap(METHODS[0], {**dose, "method.days": "random"}, more, less).comparable
    # With equal doses the table says so in either case.
    assert dose_gap(METHODS[0], dose, more, more).equal == "examples"


@pytest.mark.parametrize(("took", "comparable"), [(9.1, True), (10.0, True), (8.9, False)])
def test_runs_with_one_budget_of_seconds_are_compared_at_equal_seconds(
    took: float, comparable: bool
) -> None:
    """However many examples they replay in them."""
    own, base = ({**method, "budget.seconds": 2.0} for method in METHODS)
    result = dose_gap(own, base, [Replayed(100, 10.0)], [Replayed(500, took)])
    assert (result.kind, result.comparable) == ("seconds", comparable)
    other = {**base, "budget.seconds": 3.0}
    result = dose_gap(own, other, [Replayed(100, 10.0)], [Replayed(500, 10.0)])
    assert (result.kind, result.comparable) == ("examples", False)


def test_what_a_result_says_of_replay() -> None:
    """Examples in the place of memory count; seconds are those of all tasks."""
    counted = {"examples": {"task": 900, "replayed": 30, "padded": 10, "probed": 5}}
    notes = {"notes": {"a": {}, "b": {"replay_seconds": 1.5}, "c": {"replay_seconds": 2.0}}}
    assert replayed({**counted, **notes}) == Replayed(40, 3.5)
    assert replayed({"examples": None, "notes": {"a": {}}}) == Replayed(None, None)
