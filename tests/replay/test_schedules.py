"""Schedules are the lists that the paper and docs/protocol.md#schedules give."""

import itertools
import math

import pytest

from forever.replay.schedules import (
    CONTROLS,
    SCHEDULES,
    days,
    evenly,
    log_uniform_times,
    permuted_gaps,
    random_times,
    standard_events,
)

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


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize(("updates", "events"), EVENTS)
def test_controls_have_as_many_days_as_the_standard_list(
    name: str, updates: int, events: int
) -> None:
    """Each after an update of its own, from the first one at which the standard schedule can."""
    drawn = [day * 24 for day in CONTROLS[name](updates, 24, 0, "task")]
    assert len({*drawn}) == len(drawn) == events
    assert drawn == sorted(drawn)
    assert all(24 <= time <= updates and time == round(time) for time in drawn)


@pytest.mark.parametrize("name", [name for name in CONTROLS if name != "evenly"])
def test_drawn_times_repeat_by_seed_and_differ_by_seed_and_task(name: str) -> None:
    places = [(0, "a"), (1, "a"), (0, "b")]
    drawn = [tuple(CONTROLS[name](1250, 24, *place)) for place in places]
    assert len({*drawn}) == 3
    assert [tuple(CONTROLS[name](1250, 24, *place)) for place in places] == drawn


def test_even_days() -> None:
    """T = 1250 with J = 6: every 208 updates, as fixed-interval replay has it."""
    assert [day * 24 for day in evenly(1250, 24, 0, "task")] == [208 * j for j in range(1, 7)]


def test_permuted_gaps_are_the_standard_ones_in_every_order() -> None:
    """60 orders of 1, 1, 2, 3, 8 and 15 from 200 seeds at least; each ends at day 30."""
    orders = set()
    for seed in range(200):
        drawn = list(permuted_gaps(1250, 24, seed, "task"))
        gaps = tuple(b - a for a, b in itertools.pairwise([0.0, *drawn]))
        assert sorted(gaps) == [1, 1, 2, 3, 8, 15]
        assert drawn[-1] == 30
        orders.add(gaps)
    assert len(orders) > 60


def test_log_uniform_times_are_as_dense_as_the_standard_days() -> None:
    """A third of 1,200 draws in each third of log-time from 24 to 1250 (sd 1.4 %)."""
    drawn = [time for seed in range(200) for time in log_uniform_times(1250, 24, seed, "task")]
    place = [math.log(time) / math.log(1250 / 24) for time in drawn]
    thirds = [sum(i <= 3 * p < i + 1 + (i == 2) for p in place) for i in range(3)]
    assert sum(thirds) == 1200
    assert all(330 <= third <= 470 for third in thirds)


def test_random_times_spread_over_the_whole_task() -> None:
    """Of 200 seeds, six times each, about a tenth falls into each tenth (sd 0.9 %)."""
    drawn = [time for seed in range(200) for time in random_times(1223, 24, seed, "task")]
    tenths = [sum(24 + 120 * i <= 24 * time < 144 + 120 * i for time in drawn) for i in range(10)]
    assert sum(tenths) == 1200
    assert all(80 <= tenth <= 160 for tenth in tenths)
