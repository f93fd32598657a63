"""The clock against a hand-worked script, and its defining properties (docs/protocol.md)."""

import itertools
import math
import random

import pytest

from forever.replay.clock import CLOCKS, Clock, ModelClock, StepClock
from forever.replay.schedules import ebbinghaus

STANDARD = [24, 48, 96, 168, 360, 720]  # the days 1, 2, 4, 7, 15, 30 in updates of S = 24


def first_reached(clock: Clock, norms: list[float], days: list[float]) -> list[int | None]:
    """For each day the first update after which the clock says that it has come."""
    found: list[int | None] = [None] * len(days)
    for t, norm in enumerate(norms, 1):
        clock.advance(norm)
        for i, day in enumerate(days):
            if found[i] is None and clock.reached(day):
                found[i] = t
    return found


def test_hand_worked_script() -> None:
    clock = ModelClock(warmup_steps=3, smoothing=0.05)
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
        assert clock.tau == pytest.approx(tau, rel=1e-12)
        assert clock.tau_day == (None if day is None else pytest.approx(day, rel=1e-12))
        assert clock.mu == (None if mu is None else pytest.approx(mu, rel=1e-12))
        assert clock.days == pytest.approx(days, rel=1e-12)
    assert clock.mu0 == pytest.approx(0.2, rel=1e-12)
    assert clock.pace() == pytest.approx(0.1995 / 0.2, rel=1e-9)


@pytest.mark.parametrize("norm", [1.0, 0.1, 1 / 3, math.pi * 1e-4, 7e-9, 1e5])
@pytest.mark.parametrize("name", sorted(CLOCKS))
def test_constant_movement_gives_the_standard_updates(name: str, norm: float) -> None:
    days = list(itertools.islice(ebbinghaus(), 6))
    assert first_reached(CLOCKS[name](24, 0.05), [norm] * 1250, days) == STANDARD


def test_step_clock_does_not_see_how_far_updates_move() -> None:
    noise = random.Random(0)
    norms = [noise.random() for _ in range(800)]
    days = [1.0, 2.0, 4.0, 7.0, 15.0, 30.0]
    assert first_reached(StepClock(24, 0.05), norms, days) == STANDARD
    assert first_reached(ModelClock(24, 0.05), norms, days) != STANDARD


@pytest.mark.parametrize("seed", range(20))
def test_first_day_is_exactly_the_warmup(seed: int) -> None:
    """Both sides of the comparison are the same accumulated number, so no rounding can shift day
    1."""
    noise = random.Random(seed)
    norms = [noise.expovariate(1 / 0.003) for _ in range(60)]
    clock = ModelClock(24, 0.05)
    assert first_reached(clock, norms, [1.0]) == [24]
    fresh = ModelClock(24, 0.05)
    for norm in norms[:24]:
        fresh.advance(norm)
    assert fresh.pace() == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**-3, 2.0**10])
def test_unit_free(scale: float) -> None:
    """Scaling all movements by c > 0 changes neither when a day comes nor the pace (c = 2^k:
    without rounding)."""
    noise = random.Random(1)
    norms = [noise.random() for _ in range(500)]
    days = [1.0, 1.5, 2.0, 4.0, 7.0, 15.0]
    clock, scaled = ModelClock(24, 0.05), ModelClock(24, 0.05)
    assert first_reached(clock, norms, days) == first_reached(
        scaled, [scale * n for n in norms], days
    )
    assert scaled.days == clock.days
    assert scaled.pace() == pytest.approx(clock.pace(), rel=1e-5)  # eps = 1e-12 in r is absolute


def test_a_day_comes_when_its_distance_is_covered_and_not_before() -> None:
    noise = random.Random(2)
    norms = [noise.random() for _ in range(300)]
    sums = list(itertools.accumulate(norms))
    days = [1.0, 2.0, 3.7, 7.0]
    expected = [next(t for t, tau in enumerate(sums, 1) if tau >= day * sums[23]) for day in days]
    assert first_reached(ModelClock(24, 0.05), norms, days) == expected


def test_nothing_is_reached_within_the_warmup() -> None:
    for kind in (ModelClock, StepClock):
        clock = kind(5, 0.05)
        for _ in range(4):
            clock.advance(100.0)
            assert not clock.reached(1e-6)
            assert clock.days == 0
            assert clock.pace() == 1
        clock.advance(100.0)
        assert clock.reached(1.0)


def test_mu_is_the_exponential_average_from_mu0() -> None:
    noise = random.Random(3)
    norms = [noise.random() for _ in range(60)]
    clock = ModelClock(10, 0.2)
    for norm in norms:
        clock.advance(norm)
    n = 50  # closed form: (1 - l)^n mu0 + l sum_i (1 - l)^(n - i) Delta_(S+i)
    mu = 0.8**n * sum(norms[:10]) / 10 + 0.2 * sum(
        0.8 ** (n - i) * norms[9 + i] for i in range(1, n + 1)
    )
    assert clock.mu == pytest.approx(mu, rel=1e-12)


def test_constant_movement_keeps_the_pace_at_one() -> None:
    clock = ModelClock(24, 0.05)
    for _ in range(500):
        clock.advance(0.003)
    assert clock.pace() == pytest.approx(1.0, abs=1e-8)


def test_no_movement_at_all() -> None:
    still, steps = ModelClock(3, 0.05), StepClock(3, 0.05)
    for _ in range(10):
        still.advance(0.0)
        steps.advance(0.0)
    assert not still.reached(1.0)
    assert still.pace() == 0.0
    assert steps.reached(3.0)
    assert not steps.reached(4.0)
