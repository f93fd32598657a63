"""`forever show`: one run on a page of the terminal."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from forever.cli.view.answers import add_answers
from forever.cli.view.chance import lost_tasks
from forever.cli.view.seen import Seen
from forever.cli.view.timeline import timeline
from forever.format import duration, plural
from forever.runs.console import matrix_table
from forever.storage.address import portable
from forever.text import Cell, Page, PlainTable, shortened

_REPLAYS = ("replay", "consolidation")


def run_page(seen: Seen, width: int = 120) -> Page:
    """The run's matrix, timeline, events, budget and wrong answers, as far as they are there.

    Args:
        width: columns of the terminal.

    Raises:
        InputError: a file of the run is damaged.
    """
    page, result = Page(), seen.result
    page.say(f"{seen.directory.path.name}: {seen.state}", "bold")
    page.say(_what(seen))
    page.tell(run=portable(seen.directory.path), state=seen.state, settings=seen.settings)
    page.tell(scores={name: result.get(name) for name in ("op", "bwt", "fwt", "forgetting")})
    if result["stages"]:
        page.add("matrix", matrix_table(result, width))
    if seen.steps:
        page.add("timeline", timeline(seen, width))
    else:
        page.say(f"No timeline: {seen.directory.steps} is not there.")
    if any(event["kind"] in _REPLAYS for event in seen.events):
        page.add("events", events_table(seen))
    if seen.finished:
        page.add("budget", budget_table(seen))
    add_answers(page, seen)
    lost = lost_tasks(seen)
    for line in ("", *lost) if lost else ():
        page.say(line, "bold")
    page.tell(lost=lost)
    return page


def _what(seen: Seen) -> str:
    """The run in a line: benchmark, order, method, seed, model."""
    settings = seen.settings
    order = settings["data.order"]
    order = order if isinstance(order, str) else " ".join(map(str, order))
    return (
        f"{settings['data.benchmark']} (order {order}), {settings['method.name']}, "
        f"seed {settings['seed']}, {settings['model.name']}"
    )


def events_table(seen: Seen) -> PlainTable:
    """The replays of each task: how many, how strong, and what they did to the loss."""
    table = PlainTable(title="events")
    table.add_column("task", no_wrap=True)
    for head in ("replays", "examples", "updates", "beta", "loss"):
        table.add_column(head, justify="right")
    by_task: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for event in seen.events:
        if event["kind"] in _REPLAYS:
            by_task[event["task"]].append(event)
    for task, events in by_task.items():
        kinds = Counter(event["kind"] for event in events)
        replays, at_end = kinds["replay"], kinds["consolidation"]
        rows, updates = _total(events, "rows"), _total(events, "updates")
        beta, before, after = (
            _mean(events, name) for name in ("beta", "loss_before", "loss_after")
        )
        record = {
            "task": task,
            "replays": replays,
            "at_end": at_end,
            "rows": rows,
            "updates": updates,
            "beta": beta.value,
            "loss_before": before.value,
            "loss_after": after.value,
        }
        loss = f"{before.text} → {after.text}"
        name = shortened(task, 24)
        table.add_row(name, f"{replays} + {at_end}", rows, updates, beta, loss, record=record)
    table.caption = (
        "Replays: in mid-task + at its end. Loss: on an event's first batch, before and after it; "
        "means over events."
    )
    return table


def _total(events: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """The sum of a field; None in runs of releases that did not write it."""
    values = [event[name] for event in events if name in event]
    return sum(values) if values else None


def _mean(events: Sequence[Mapping[str, Any]], name: str) -> Cell:
    values = [event[name] for event in events if event.get(name) is not None]
    return Cell(fmean(values), f"{fmean(values):.3g}") if values else Cell(None, "")


def budget_table(seen: Seen) -> PlainTable:
    """What the run did and took."""
    table = PlainTable("what", "how much", title="budget")
    for name, value, text in _costs(seen.result):
        table.add_row(name, Cell(value, text))
    return table


def _costs(result: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Each cost with its value and how a person reads that."""
    yield "updates", result["updates"], _parts(result["updates"])
    if examples := result.get("examples"):
        yield "examples", examples, _parts(examples)
    kept = {"exact": "kept in each task", "over": "exceeded in a task", "under": "not spent"}
    state = result.get("budget")
    yield "budget of replay", state, kept.get(state or "", "none was set")
    if tokens := result.get("tokens"):
        yield "tokens trained", tokens, f"{tokens:,}"
    seconds = dict(sorted(result["seconds"].items(), key=lambda phase: -phase[1]))
    phases = [f"{name} {duration(time)}" for name, time in seconds.items() if time >= 0.5]
    whole = duration(sum(seconds.values()))
    yield "time", seconds, f"{whole}: {', '.join(phases)}" if phases else whole
    if memory := result.get("peak_memory_bytes"):
        yield "memory at most", memory, f"{memory / 2**30:.2f} GiB"
    if parameters := result.get("parameters"):
        yield "parameters", parameters, _parts(parameters)
    workers = result.get("world_size", 1)
    if workers > 1:
        yield "workers", workers, plural(workers, "worker")


def _parts(counts: Mapping[str, float]) -> str:
    """The counts that are not zero, each with its name."""
    parts = [f"{count:,.0f} {name}" for name, count in counts.items() if count]
    return ", ".join(parts) or "none"
