"""The clock against a hand-worked script, and its defining properties (docs/protocol.md)."""

import itertools
import math
import random

import pytest

from forever.replay.clock import CLOCKS, Clock, ModelClock, StepClock

DAYS = [1.0, 2.0, 4.0, 7.0, 15.0, 30.0]
STANDARD = [24, 48, 96, 168, 360, 720]  # these days in updates of S = 24


def first_reached(clock: Clock, norms: list[float], days: list[float]) -> list[int | None]:
    """For each day the first update after which the clock says that it has come."""
    found: list[int | None] = [None] * len(days)
    for t, norm in enumerate(norms, 1):
        clock.advance(norm)
        for i, day in enumerate(days):
            if found[i] is None and clock.reached(day):
                found[i] = t
    return found


def random_norms(seed: int, count: int = 800) -> list[float]:
    stream = random.Random(seed)
    return [stream.random() for _ in range(count)]


def test_hand_worked_script() -> None:
    clock = ModelClock(day_steps=3, smoothing=0.05)
    #        Delta tau  day   mu     days
    script = [
        (0.3, 0.3, None, None, 0.0),
        (0.2, 0.5, None, None, 0.0),
        (0.1, 0.6, 0.6, 0.2, 1.0),  # S updates are over: a day is 0.6, mu0 = 0.6 / 3
        (0.2, 0.8, 0.6, 0.2, 4 / 3),
        (0.4, 1.2, 0.6, 0.21, 2.0),  # 0.95 * 0.2 + 0.05 * 0.4
        (0.0, 1.2, 0.6, 0.1995, 2.0),
    ]
    for t, (norm, tau, day, mu, days) in enumerate(script, 1):
        clock.advance(norm)
        assert clock.steps == t
        assert (clock.tau, clock.days) == pytest.approx((tau, days), rel=1e-12)
        assert clock.tau_day == (None if day is None else pytest.approx(day, rel=1e-12))
        assert clock.mu == (None if mu is None else pytest.approx(mu, rel=1e-12))
    assert clock.mu0 == pytest.approx(0.2, rel=1e-12)
    assert clock.pace() == pytest.approx(0.1995 / 0.2, rel=1e-9)


@pytest.mark.parametrize("norm", [1.0, 0.1, 1 / 3, math.pi * 1e-4, 7e-9, 1e5])
@pytest.mark.parametrize("name", CLOCKS)
def test_constant_movement_gives_the_standard_updates(name: str, norm: float) -> None:
    clock = CLOCKS[name](24, 0.05)
    assert first_reached(clock, [norm] * 1250, DAYS) == STANDARD
    assert clock.pace() == pytest.approx(1.0, rel=1e-3)  # eps = 1e-12 in r is absolute


@pytest.mark.parametrize("seed", range(20))
def test_a_day_comes_when_its_distance_is_covered_and_not_before(seed: int) -> None:
    """Day 1 is exactly the warm-up: both sides are the same sum, so no rounding can shift it."""
    norms, days = random_norms(seed), [1.0, 2.0, 3.7, 7.0]
    sums = list(itertools.accumulate(norms))
    expected = [next(t for t, tau in enumerate(sums, 1) if tau >= day * sums[23]) for day in days]
    assert first_reached(ModelClock(24, 0.05), norms, days) == expected
    assert expected[0] == 24
    assert first_reached(StepClock(24, 0.05), norms, DAYS) == STANDARD  # however far they move


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**-3, 2.0**10])
def test_unit_free(scale: float) -> None:
    """Scaling all movements changes neither when a day comes nor the pace (2^k does not round)."""
    norms, clock, scaled = random_norms(1), ModelClock(24, 0.05), ModelClock(24, 0.05)
    found = first_reached(scaled, [scale * norm for norm in norms], DAYS)
    assert found == first_reached(clock, norms, DAYS)
    assert scaled.days == clock.days
    assert scaled.pace() == pytest.approx(clock.pace(), rel=1e-5)


@pytest.mark.parametrize("kind", [ModelClock, StepClock])
def test_nothing_is_reached_within_the_warmup(kind: type[Clock]) -> None:
    clock = kind(5, 0.05)
    for _ in range(4):
        clock.advance(100.0)
        assert not clock.reached(1e-6)
        assert (clock.days, clock.pace()) == (0, 1)
    clock.advance(100.0)
    assert clock.reached(1.0)


def test_no_movement_at_all() -> None:
    still, steps = ModelClock(3, 0.05), StepClock(3, 0.05)
    assert first_reached(still, [0.0] * 10, [1.0]) == [None]
    assert first_reached(steps, [0.0] * 10, [3.0, 4.0]) == [9, None]
    assert still.pace() == 0.0
