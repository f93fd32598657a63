"""At which days of a task the memory is replayed. Each schedule is a list of days; the clock says
how long a day is.

Except for `ebbinghaus` and `end_only`, each has the six entries that the standard list reaches in a
task of 1250 updates of equal length, so that the spacing ablation compares equal budgets (FOREVER,
"increasing spacing"; docs/protocol.md, A21, A22, A29).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, takewhile

Days = Iterator[float]


def ebbinghaus() -> Days:
    """1, 2, 4, 7, 15, 30 (paper), then doubling: 60, 120, ... (A7: the paper prints an open
    end)."""
    return chain([1.0, 2.0, 4.0, 7.0, 15.0, 30.0], (30.0 * 2**n for n in count(1)))


def exponential() -> Days:
    """2^n: 1, 2, 4, 8, 16, 32."""
    return (2.0**n for n in range(6))


def polynomial() -> Days:
    """n^2: 1, 4, 9, 16, 25, 36."""
    return (float(n**2) for n in range(1, 7))


def uniform() -> Days:
    """Every second day: 2, 4, 6, 8, 10, 12."""
    return (2.0 * n for n in range(1, 7))


def fixed_interval() -> Days:
    """Every day: 1, 2, 3, 4, 5, 6 (ablation +FIR). A21 says why this is not the list that the paper
    prints."""
    return (float(n) for n in range(1, 7))


def decreasing() -> Days:
    """Sparse, then dense: the gaps of 1, 2, 4, 7, 15, 30 in reverse order, so 15, 23, 26, 28, 29,
    30 (ablation +RR).

    The gaps are 1, 1, 2, 3, 8, 15. A22: the paper's literal list, 30, 15, 7, ..., would be six
    events in a row at day 30; give it as an explicit list to run that.
    """
    return iter([15.0, 23.0, 26.0, 28.0, 29.0, 30.0])


def end_only() -> Days:
    """No replay before the task is over (ablation +ER)."""
    return iter(())


SCHEDULES: dict[str, Callable[[], Days]] = {
    f.__name__: f
    for f in (ebbinghaus, exponential, polynomial, uniform, fixed_interval, decreasing, end_only)
}


def days(schedule: str | Sequence[float]) -> Days:
    """The days of a named schedule, or of an explicit list in the order given."""
    return SCHEDULES[schedule]() if isinstance(schedule, str) else iter(schedule)


def standard_events(updates: int, warmup_steps: int) -> int:
    """J: how many replays the standard list would fire in `updates` updates of equal length
    (docs/protocol.md)."""
    return sum(1 for _ in takewhile(lambda day: day * warmup_steps <= updates, ebbinghaus()))
