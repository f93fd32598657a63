"""A run over its updates in a few lines: how far each moved the parameters, and its replays."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from forever.cli.view.seen import Seen
from forever.format import plural
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
    updates: dict[str, list[Mapping[str, Any]]] = {line["task"]: [] for line in seen.steps}
    for line in seen.steps:
        if line["kind"] == "task":
            updates[line["task"]].append(line)
    names = {task: shortened(visible(task), 16) for task in updates}
    beside = max(map(len, names.values()), default=0) + _BESIDE
    room = max(min(_LONGEST, width - beside), _LEAST)
    # The way of an update, or its loss in a run that has no ways.
    has_ways = any(line.get("update_norm") for line in seen.steps)
    measure = "update_norm" if has_ways else "loss"
    highest = max((line.get(measure) or 0.0 for line in seen.steps), default=0.0)
    for task, lines in updates.items():
        events = [event for event in seen.events if event["task"] == task]
        replays = [event for event in events if event["kind"] in _MARKS]
        heights = buckets([line.get(measure) or 0.0 for line in lines], room)
        record = {"task": task, "updates": len(lines), measure: heights, "replays": replays}
        table.add_row(names[task], sparkline(heights, highest), _extent(lines), record=record)
        if replays:
            marked = marks(replays, max(len(lines), 1), max(len(heights), 1))
            table.add_row("", Cell(None, marked, "bold red"), _days(replays), record={})
    moved = "how far an update moved the parameters"
    table.caption = f"Height: {moved if has_ways else 'the loss'}."
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


def _extent(lines: Sequence[Mapping[str, Any]]) -> str:
    """How long a task was, in updates and in days of the model."""
    days = lines[-1].get("days") if lines else None
    text = plural(len(lines), "update")
    return text if days is None else f"{text}, {days:.1f} days"


def _days(replays: Iterable[Mapping[str, Any]]) -> str:
    """On which days the memory was replayed."""
    days = [event["day"] for event in replays if event.get("day") is not None]
    return f"day {' '.join(f'{day:g}' for day in days)}" if days else ""
