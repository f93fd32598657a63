"""Schedules are the lists that the paper and docs/protocol.md#schedules give."""

import itertools

import pytest

from forever.replay.schedules import SCHEDULES, days, ebbinghaus, standard_events

LISTS = {
    "exponential": [1, 2, 4, 8, 16, 32],
    "polynomial": [1, 4, 9, 16, 25, 36],
    "uniform": [2, 4, 6, 8, 10, 12],
    "fixed_interval": [1, 2, 3, 4, 5, 6],
    "decreasing": [15, 23, 26, 28, 29, 30],
    "end_only": [],
}


def test_standard_list_then_doubling() -> None:
    assert list(itertools.islice(ebbinghaus(), 9)) == [1, 2, 4, 7, 15, 30, 60, 120, 240]


@pytest.mark.parametrize("name", sorted(LISTS))
def test_list(name: str) -> None:
    assert list(days(name)) == LISTS[name]


def test_every_schedule_is_listed_here() -> None:
    assert SCHEDULES.keys() == {*LISTS, "ebbinghaus"}


def test_decreasing_mirrors_the_gaps_of_the_standard_list() -> None:
    def gaps(values: list[float]) -> list[float]:
        return [b - a for a, b in itertools.pairwise([0.0, *values])]

    standard = list(itertools.islice(ebbinghaus(), 6))
    assert gaps(list(days("decreasing"))) == gaps(standard)[::-1]


def test_explicit_list_keeps_its_order() -> None:
    assert list(days([30.0, 15.0, 7.0])) == [30.0, 15.0, 7.0]


def test_a_schedule_starts_anew_each_time() -> None:
    for name in LISTS:
        assert list(days(name)) == list(days(name))


@pytest.mark.parametrize(
    ("updates", "events"),
    # T of every task size of the paper at batch 8 (docs/protocol.md), and both sides of a threshold
    [
        *[(1250, 6), (1220, 6), (500, 5), (430, 5), (320, 4), (200, 4), (180, 4), (160, 3)],
        *[(0, 0), (23, 0), (24, 1), (47, 1), (48, 2), (719, 5), (720, 6), (1439, 6), (1440, 7)],
    ],
)
def test_standard_events(updates: int, events: int) -> None:
    assert standard_events(updates, 24) == events
