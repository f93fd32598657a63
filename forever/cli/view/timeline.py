"""A run over its updates in a few lines: how far each moved the parameters, and its replays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from forever.cli.view.seen import Seen
from forever.format import plural
from forever.text import Cell, PlainTable, shortened, visible

_BARS = "▁▂▃▄▅▆▇█"
_MARKS = {"replay": "▲", "consolidation": "◆"}
_LONGEST, _LEAST = 64, 12  # columns of a line
_BESIDE = 34  # columns that stand beside a line and its name
_LONGEST_NAME = 16

Line = Mapping[str, Any]  # of a journal


@dataclass(frozen=True)
class Measure:
    """What the height of an update is."""

    field: str  # of a journal's line
    meaning: str

    def of(self, line: Line) -> float:
        """The height of an update; 0 for one that was left out."""
        return line.get(self.field) or 0.0


WAY = Measure("update_norm", "how far an update moved the parameters")
LOSS = Measure("loss", "the loss")  # of runs that have no ways


def timeline(seen: Seen, width: int = 120) -> PlainTable:
    """Two rows a task: a sparkline of its updates, and under it where the memory was replayed."""
    table = PlainTable(
        title="timeline: ▲ replay, ◆ replay at the end of the task", show_header=False
    )
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    updates = _by_task(seen.steps)
    names = {task: shortened(visible(task), _LONGEST_NAME) for task in updates}
    room = _room(names.values(), width)
    measure = WAY if any(map(WAY.of, seen.steps)) else LOSS
    highest = max(map(measure.of, seen.steps), default=0.0)
    for task, lines in updates.items():
        heights = buckets([measure.of(line) for line in lines], room)
        replays = _replays(seen.events, task)
        record = {"task": task, "updates": len(lines), measure.field: heights, "replays": replays}
        table.add_row(names[task], sparkline(heights, highest), _extent(lines), record=record)
        if replays:
            marked = marks(replays, max(len(lines), 1), max(len(heights), 1))
            table.add_row("", Cell(None, marked, "bold red"), _days(replays), record={})
    table.caption = f"Height: {measure.meaning}."
    return table


def _by_task(steps: Iterable[Line]) -> dict[str, list[Line]]:
    """The updates on each task, without those of replays."""
    updates: dict[str, list[Line]] = {}
    for line in steps:
        of_task = updates.setdefault(line["task"], [])
        if line["kind"] == "task":
            of_task.append(line)
    return updates


def _room(names: Iterable[str], width: int) -> int:
    """How many columns of the terminal a line may take."""
    beside = max(map(len, names), default=0) + _BESIDE
    return max(_LEAST, min(_LONGEST, width - beside))


def _replays(events: Iterable[Line], task: str) -> list[Line]:
    """The replays within a task and at its end."""
    return [event for event in events if event["task"] == task and event["kind"] in _MARKS]


def buckets(values: Sequence[float], most: int) -> list[float]:
    """The values if they are at most so many, else the means of so many parts of them."""
    if len(values) <= most:
        return list(values)
    ends = [round(place * len(values) / most) for place in range(most + 1)]
    return [fmean(values[start:end]) for start, end in pairwise(ends)]


def sparkline(values: Iterable[float], highest: float) -> str:
    """One character a value, the higher the nearer it is to the highest.

    >>> sparkline([0, 1, 2], 2)
    '▁▅█'
    """
    top = len(_BARS) - 1
    heights = [round(top * min(value / highest, 1.0)) if highest else 0 for value in values]
    return "".join(_BARS[height] for height in heights)


def marks(events: Iterable[Line], updates: int, room: int) -> str:
    """A line as long as the sparkline with a mark where a replay was; the end's is the last one.

    >>> marks([{"kind": "replay", "step": 5}, {"kind": "consolidation", "step": 10}], 10, 5)
    '  ▲ ◆'
    """
    line = [" "] * room
    for event in events:
        place = min(event["step"] * room // updates, room - 1)
        line[place] = _MARKS[event["kind"]]
    return "".join(line).rstrip()


def _extent(lines: Sequence[Line]) -> str:
    """How long a task was, in updates and in days of the model."""
    days = lines[-1].get("days") if lines else None
    text = plural(len(lines), "update")
    return text if days is None else f"{text}, {days:.1f} days"


def _days(replays: Iterable[Line]) -> str:
    """On which days the memory was replayed."""
    days = [f"{event['day']:g}" for event in replays if event.get("day") is not None]
    return f"day {' '.join(days)}" if days else ""
