"""`forever diff`: how two runs differ, a table for each kind of thing."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from forever.cli.view.run import SCORES, RunView
from forever.config.overrides import flatten
from forever.errors import InputError
from forever.format import plural
from forever.storage.address import portable
from forever.text import Cell, Page, PlainTable

_COUNTED = {"events": "events in ", "updates": "updates, ", "examples": "examples, "}
_UPDATE = itemgetter("task", "step", "kind", "loss", "update_norm")

Numbers = Mapping[str, float | None]


def difference_page(a: RunView, b: RunView) -> Page:
    """The differences of two runs."""
    page = Page()
    for name, run in (("A", a), ("B", b)):
        page.say(f"{name}  {portable(run.directory.path)}: {run.state}", "bold")
    page.note(a=portable(a.directory.path), b=portable(b.directory.path))

    # How many updates from the beginning are the same, bit by bit.
    same_updates: int | None = None
    if not (a.steps and b.steps):
        page.say("Updates are not compared: a run has no steps.jsonl.")
    else:
        pairs = list(zip(a.steps, b.steps, strict=False))
        unlike = (n for n, (x, y) in enumerate(pairs) if _UPDATE(x) != _UPDATE(y))
        same_updates = next(unlike, len(pairs))
        which = "All" if same_updates == len(a.steps) == len(b.steps) else "The first"
        page.say(f"{which} {plural(same_updates, 'update')} are the same.")

    # What makes their scores no fair comparison.
    warnings: list[str] = []
    data_a, data_b = a.result.get("data", {}), b.result.get("data", {})
    changed = [task for task in data_a.keys() & data_b.keys() if data_a[task] != data_b[task]]
    if changed:
        warnings.append(f"Scores are on different data: {', '.join(sorted(changed))}.")
    elif a.result["tasks"] != b.result["tasks"]:
        warnings.append("Scores are on different tasks, or in another order.")
    for line in warnings:
        page.say(line, "bold")
    page.note(same_updates=same_updates, warnings=warnings)

    tables = {
        "configuration": _table("configuration", "key", a.settings, b.settings),
        "scores": _table("scores", "score", _scores(a), _scores(b), "{:z.1f}"),
        "matrix": _table("matrix", "score on", _task_scores(a), _task_scores(b), "{:z.1f}"),
        "events": _table("events", "number of", _counts(a, b), _counts(b, a), "{:,.0f}"),
        "environment": _table("environment", "key", _environment(a), _environment(b)),
    }
    for name, table in tables.items():
        if table.records:
            page.add(name, table)
        else:
            page.note(**{name: table.data()})
    same = [name for name, table in tables.items() if not table.records]
    if same:
        page.say(f"The same: {', '.join(same)}.")
    return page


def _environment(run: RunView) -> dict[str, Any]:
    """Where a run was trained last, by dotted keys, without the command."""
    try:
        last = run.directory.read_lives()[-1]
    except (InputError, OSError):  # it was not kept, and no number comes from it
        return {}
    return flatten({key: value for key, value in last.items() if key not in ("argv", "resumed")})


def _scores(run: RunView) -> Numbers:
    return {name.upper() if len(name) < 4 else name: run.result.get(name) for name in SCORES}


def _task_scores(run: RunView) -> Numbers:
    """The score on each task when it was learned, if not by joint training, and at the end."""
    scores: dict[str, float | None] = {}
    for number, task in enumerate(run.result["tasks"]):
        row = run.result["matrix"][number]
        if number < len(row) - 1:
            scores[f"{task}, when learned"] = row[number]
        if row:
            scores[f"{task}, at the end"] = row[-1]
    return scores


def _counts(run: RunView, other: RunView) -> Numbers:
    """Replays of each task, and updates and examples by kind.

    A kind that only the other run counted is zero here, if this run has counted at all.
    """
    counts: dict[str, float | None] = {}
    for name, label in _COUNTED.items():
        counted: Mapping[str, Any] | None = run.result.get(name)
        if counted is None:  # the run is unfinished
            continue
        for key in (*counted, *(other.result.get(name) or {})):
            count = counted.get(key, 0)
            counts[label + key] = sum(count.values()) if isinstance(count, Mapping) else count
    return counts


def _table(
    title: str, head: str, a: Mapping[str, Any], b: Mapping[str, Any], form: str = ""
) -> PlainTable:
    """A row for each key whose values differ; of numbers of this form with how far B is above A."""
    table = PlainTable(head, title=title)
    for name in ("A", "B", "B less A") if form else ("A", "B"):
        justify: Any = "right" if form else "left"
        table.add_column(name, key=name.lower(), justify=justify, overflow="fold")
    for key in dict.fromkeys((*a, *b)):
        left, right = a.get(key), b.get(key)
        if left == right:
            continue
        cells = [_cell(left, form), _cell(right, form)]
        if form:
            less = None if left is None or right is None else right - left
            cells.append(_cell(less, form.replace("{:", "{:+")))
        table.add_row(key, *cells)
    return table


def _cell(value: Any, form: str) -> Cell:
    if value is None:
        return Cell(None, "–")
    if form:
        return Cell(value, form.format(value).replace("-", "−"))
    return Cell(value, " ".join(map(str, value)) if isinstance(value, list) else str(value))
