"""How fast earlier tasks are forgotten while a task is learned, from a run's looks at the loss."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

PHASES = 5


def rates(tasks: Sequence[str], events: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """By task, the rise of the mean loss on the tasks before it per update, in each phase that it
    reaches.

    Args:
        tasks: the names in the order in which they were learned. A third of them is left out at the
            beginning, as in the paper, where few tasks can be forgotten yet: 5 of 15.
        events: the lines of events.jsonl.
    """
    looks: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        if event["kind"] == "look":
            mean = sum(event["losses"].values()) / len(event["losses"])
            looks.setdefault(event["task"], []).append((event["step"], mean))
    return {
        task: [(b - a) / (end - start) for (start, a), (end, b) in pairwise(points)][:PHASES]
        for task, points in looks.items()
        if task in tasks[len(tasks) // 3 :]
    }
