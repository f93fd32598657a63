"""Schedules are the lists that the paper and docs/protocol.md#schedules give."""

import itertools

import pytest

from forever.replay.schedules import SCHEDULES, days, standard_events

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
