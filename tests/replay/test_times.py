"""When day 7 came, over tasks and runs."""

import math
from typing import Any

import pytest

from forever.replay.times import day_seven, day_seven_of_updates


def result(*days: float | None) -> dict[str, Any]:
    """A run whose tasks have 100 updates."""
    notes: dict[str, Any] = {}
    for place, day in enumerate(days):
        notes[f"task{place}"] = {"day_7": day, "planned": 100}
    return {"notes": notes}


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([result(12, 20, 14)], (14, 0.14)),
        ([result(12, 20), result(14, 30)], (17, 0.17)),
        ([result(12, None, 14)], (14, 0.14)),  # never is later than any update
        ([result(12, None, None)], (math.inf, math.inf)),
    ],
)
def test_the_median_over_tasks_and_runs(
    runs: list[dict[str, Any]], expected: tuple[float, float]
) -> None:
    day = day_seven(runs)
    assert day is not None
    assert day == pytest.approx(expected)
    text = "never" if math.isinf(expected[0]) else f"{expected[0]} ({expected[0]} %)"
    assert str(day) == text


def test_runs_that_do_not_say() -> None:
    """Those of other clocks, and of earlier versions."""
    assert day_seven([]) is day_seven([{"notes": {"a": {"tau_day": 3.0}}}]) is None


def test_a_clock_of_updates() -> None:
    """The paper's S and task: update 168 of 1250."""
    assert day_seven_of_updates(24, [1250, 1250]) == pytest.approx((168, 0.1344))
    assert str(day_seven_of_updates(24, [1250, 160, 160])) == "never"
