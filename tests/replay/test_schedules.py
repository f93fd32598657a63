"""Schedules are the lists that the paper and docs/protocol.md#schedules give."""

import itertools

import pytest

from forever.replay.schedules import SCHEDULES, days, random_times, standard_events

# The first nine days, or all.
LISTS = {
    "ebbinghaus": [1, 2, 4, 7, 15, 30, 60, 120, 240],
    "exponential": [1, 2, 4, 8, 16, 32],
    "polynomial": [1, 4, 9, 16, 25, 36],
    "uniform": [2, 4, 6, 8, 10, 12],
    "fixed_interval": [1, 2, 3, 4, 5, 6],
    "decreasing": [15, 23, 26, 28, 29, 30],  # 15, 8, 3, 2, 1, 1: the standard gaps mirrored
    "end_only": [],
}


def test_lists() -> None:
    assert SCHEDULES.keys() == LISTS.keys()
    for name, expected in LISTS.items():
        for _ in range(2):  # each call starts anew
            assert list(itertools.islice(days(name), 9)) == expected
    assert list(days([30.0, 15.0, 7.0])) == [30.0, 15.0, 7.0]  # explicit days keep their order


# T of every task size of the paper at batch 8 (docs/protocol.md), and both sides of a threshold.
EVENTS = [(1250, 6), (1220, 6), (500, 5), (430, 5), (320, 4), (200, 4), (180, 4), (160, 3)]
EVENTS += [(0, 0), (23, 0), (24, 1), (47, 1), (48, 2), (719, 5), (720, 6), (1439, 6), (1440, 7)]


@pytest.mark.parametrize(("updates", "events"), EVENTS)
def test_standard_events(updates: int, events: int) -> None:
    assert standard_events(updates, 24) == events


@pytest.mark.parametrize(("updates", "events"), EVENTS)
def test_random_times_are_as_many_as_the_standard_ones(updates: int, events: int) -> None:
    """Each after an update of its own, from the first one at which the standard schedule can."""
    drawn = [day * 24 for day in random_times(updates, 24, 0, "task")]
    assert len({*drawn}) == len(drawn) == events
    assert drawn == sorted(drawn)
    assert all(24 <= time <= updates and time == round(time) for time in drawn)


def test_random_times_repeat_by_seed_and_differ_by_seed_and_task() -> None:
    places = [(0, "a"), (1, "a"), (0, "b")]
    drawn = [tuple(random_times(1250, 24, *place)) for place in places]
    assert len({*drawn}) == 3
    assert [tuple(random_times(1250, 24, *place)) for place in places] == drawn


def test_random_times_spread_over_the_whole_task() -> None:
    """Of 200 seeds, six times each, about a tenth falls into each tenth (sd 0.9 %)."""
    drawn = [time for seed in range(200) for time in random_times(1223, 24, seed, "task")]
    tenths = [sum(24 + 120 * i <= 24 * time < 144 + 120 * i for time in drawn) for i in range(10)]
    assert sum(tenths) == 1200
    assert all(80 <= tenth <= 160 for tenth in tenths)
