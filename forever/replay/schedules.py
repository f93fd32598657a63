"""At which days of a task the memory is replayed; the clock says how long a day is.

Every schedule but `ebbinghaus` and `end_only` has six days, as many as the standard list reaches in
a task of 1250 updates of equal length. So the spacing ablation compares equal budgets (FOREVER,
"increasing spacing"; docs/protocol.md#schedules).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, count, islice, pairwise, takewhile

from forever.seeding import derive, permutation

Days = Iterator[float]


def ebbinghaus() -> Days:
    """1, 2, 4, 7, 15, 30 (paper), then doubling: 60, 120, ...; the paper leaves the end open."""
    return chain([1.0, 2.0, 4.0, 7.0, 15.0, 30.0], (30.0 * 2**n for n in count(1)))


def exponential() -> Days:
    """2^n: 1, 2, 4, 8, 16, 32."""
    return iter([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])


def polynomial() -> Days:
    """n^2: 1, 4, 9, 16, 25, 36."""
    return iter([1.0, 4.0, 9.0, 16.0, 25.0, 36.0])


def uniform() -> Days:
    """Every second day: 2, 4, 6, 8, 10, 12."""
    return iter([2.0, 4.0, 6.0, 8.0, 10.0, 12.0])


def fixed_interval() -> Days:
    """Every day: 1, 2, 3, 4, 5, 6 (ablation +FIR; what the paper prints is `exponential`)."""
    return iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def decreasing() -> Days:
    """The gaps of the standard list in reverse order: 15, 23, 26, 28, 29, 30 (ablation +RR).

    The list that the paper prints, 30, 15, 7, ..., would be six events in a row at day 30; an
    explicit list of days runs that.
    """
    return iter([15.0, 23.0, 26.0, 28.0, 29.0, 30.0])


def end_only() -> Days:
    """No day at all: the memory is replayed when the task is over (ablation +ER)."""
    return iter(())


_ALL = (ebbinghaus, exponential, polynomial, uniform, fixed_interval, decreasing, end_only)
SCHEDULES: dict[str, Callable[[], Days]] = {schedule.__name__: schedule for schedule in _ALL}


def days(schedule: str | Sequence[float]) -> Days:
    """Return the days of a named schedule, or those of an explicit list in its order."""
    if isinstance(schedule, str):
        return SCHEDULES[schedule]()
    return iter(schedule)


# ---- Controls: schedules that know the task. Each has J events, as many as the standard list fires
# in so many updates of equal length, and the same ones whenever a seed learns a task.


def evenly(updates: int, day_steps: int, seed: int, task: str) -> Days:
    """Return J days at equal distances, over all of the task: one every floor(T / J) updates."""
    events = standard_events(updates, day_steps)
    interval = updates // max(events, 1)
    return (number * interval / day_steps for number in range(1, events + 1))


def random_times(updates: int, day_steps: int, seed: int, task: str) -> Days:
    """Draw J updates from all of the task but its first day, which no schedule can use.

    It is the control of the days' order and number, and a schedule of its own: no named one reaches
    as far into a task.
    """
    order = permutation(max(updates - day_steps + 1, 0), seed, "random times", task)
    drawn = sorted(order[: standard_events(updates, day_steps)])
    return ((day_steps + place) / day_steps for place in drawn)


def permuted_gaps(updates: int, day_steps: int, seed: int, task: str) -> Days:
    """Put the gaps between the standard days in random order: 1, 1, 2, 3, 8 and 15 end at day 30
    in each. It is the control of the spacing's growth, all else equal."""
    standard = list(islice(ebbinghaus(), standard_events(updates, day_steps)))
    gaps = [day - before for before, day in pairwise([0.0, *standard])]
    order = permutation(len(gaps), seed, "permuted gaps", task)
    return accumulate(gaps[place] for place in order)


def log_uniform_times(updates: int, day_steps: int, seed: int, task: str) -> Days:
    """Draw J updates, no two alike, whose logarithms are uniform from the first day to the end of
    the task: about as dense at each time as the standard list, whose days double."""
    stream = random.Random(derive(seed, "log-uniform times", task))
    drawn = set[int]()
    while len(drawn) < standard_events(updates, day_steps):
        drawn.add(round(day_steps * (updates / day_steps) ** stream.random()))
    return (update / day_steps for update in sorted(drawn))


def standard_events(updates: int, day_steps: int) -> int:
    """Return J, how many replays the standard list fires in `updates` updates of equal length."""
    return sum(1 for _ in takewhile(lambda day: day * day_steps <= updates, ebbinghaus()))


CONTROLS: dict[str, Callable[[int, int, int, str], Days]] = {
    "evenly": evenly,
    "random": random_times,
    "permuted": permuted_gaps,
    "log_uniform": log_uniform_times,
}
