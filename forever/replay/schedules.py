"""At which days of a task the memory is replayed; the clock says how long a day is.

Every schedule but `ebbinghaus` and `end_only` has six days, as many as the standard list reaches in
a task of 1250 updates of equal length. So the spacing ablation compares equal budgets (FOREVER,
"increasing spacing"; docs/protocol.md#schedules).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, takewhile

from forever.seeding import permutation

RANDOM = "random"
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


def random_times(updates: int, day_steps: int, seed: int, task: str) -> Days:
    """As many days as the standard list has in so many updates, each after an update that is drawn.

    The first day of the standard list is over after `day_steps`; before that nothing is drawn. A
    schedule that does not beat this one is no schedule.
    """
    order = permutation(max(updates - day_steps + 1, 0), seed, "random times", task)
    drawn = sorted(order[: standard_events(updates, day_steps)])
    return ((day_steps + place) / day_steps for place in drawn)


def standard_events(updates: int, day_steps: int) -> int:
    """Return J, how many replays the standard list fires in `updates` updates of equal length."""
    return sum(1 for _ in takewhile(lambda day: day * day_steps <= updates, ebbinghaus()))
