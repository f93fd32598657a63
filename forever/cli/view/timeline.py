"""A run over its updates in a few lines: how far each moved the parameters, and its replays."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from forever.cli.view.seen import Seen
from forever.text import Cell, PlainTable, shortened, visible

_BARS = "▁▂▃▄▅▆▇█"
_MARKS = {"replay": "▲", "consolidation": "◆"}
_LONGEST, _LEAST, _BESIDE = 64, 12, 34  # columns: a line's most and least, and what stands beside


def timeline(seen: Seen, width: int = 120) -> PlainTable:
    """Two rows a task: a sparkline of its updates, and under it where the memory was replayed."""
    table = PlainTable(
        title="timeline: ▲ replay, ◆ replay at the end of the task", show_header=False
    )
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    tasks = list(dict.fromkeys(line["task"] for line in seen.steps))
    names = [shortened(visible(task), 16) for task in tasks]
    beside = max(map(len, names), default=0) + _BESIDE
    room = max(min(_LONGEST, width - beside), _LEAST)
    updates = {task: _of(seen.steps, task, "task") for task in tasks}
    measure = _measure(line for lines in updates.values() for line in lines)
    highest = max((line.get(measure) or 0.0 for line in seen.steps), default=0.0)
    for task, name in zip(tasks, names, strict=True):
        lines = updates[task]
        events = [event for event in seen.events if event["task"] == task]
        replays = [event for event in events if event["kind"] in _MARKS]
        heights = buckets([line.get(measure) or 0.0 for line in lines], room)
        record = {"task": task, "updates": len(lines), measure: heights, "replays": replays}
        table.add_row(name, sparkline(heights, highest), _extent(lines), record=record)
        if replays:
            marked = marks(replays, max(len(lines), 1), len(heights))
            days = _days(replays)
            table.add_row("", Cell(None, marked, "bold red"), days, record={})
    moved = "how far an update moved the parameters"
    table.caption = f"Height: {moved if measure == 'update_norm' else 'the loss'}."
    return table


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


def marks(events: Iterable[Mapping[str, Any]], updates: int, room: int) -> str:
    """A line as long as the sparkline with a mark where a replay was; the end's is the last one.

    >>> marks([{"kind": "replay", "step": 5}, {"kind": "consolidation", "step": 10}], 10, 5)
    '  ▲ ◆'
    """
    line = [" "] * room
    for event in events:
        place = min(event["step"] * room // updates, room - 1)
        line[place] = _MARKS[event["kind"]]
    return "".join(line).rstrip()


def _of(steps: Iterable[Mapping[str, Any]], task: str, kind: str) -> list[Mapping[str, Any]]:
    return [line for line in steps if line["task"] == task and line["kind"] == kind]


def _measure(lines: Iterable[Mapping[str, Any]]) -> str:
    """What the sparkline shows: the way of an update, or its loss in a run that has no ways."""
    return "update_norm" if any(line.get("update_norm") for line in lines) else "loss"


def _extent(lines: Sequence[Mapping[str, Any]]) -> str:
    """How long a task was, in updates and in days of the model."""
    days = lines[-1].get("days") if lines else None
    text = f"{len(lines)} updates"
    return text if days is None else f"{text}, {days:.1f} days"


def _days(replays: Iterable[Mapping[str, Any]]) -> str:
    """On which days the memory was replayed."""
    days = [event["day"] for event in replays if event.get("day") is not None]
    return f"day {' '.join(f'{day:g}' for day in days)}" if days else ""
