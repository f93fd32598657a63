"""`forever diff`: in what two runs differ, a table for each kind of thing."""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from forever.cli.view.seen import Seen
from forever.config.overrides import flatten
from forever.errors import InputError
from forever.format import plural
from forever.storage.address import portable
from forever.text import Cell, Page, PlainTable

_SCORES = {"op": "OP", "bwt": "BWT", "fwt": "FWT", "forgetting": "forgetting"}
_NOT_SHOWN = ("argv", "resumed")  # the command says what the configuration says


def difference_page(left: Seen, right: Seen) -> Page:
    """The differences of two runs, A and B.

    Raises:
        InputError: a file of one of them is damaged.
    """
    page = Page()
    for name, seen in (("A", left), ("B", right)):
        page.say(f"{name}  {portable(seen.directory.path)}: {seen.state}", "bold")
    page.tell(a=portable(left.directory.path), b=portable(right.directory.path))
    page.say(_beginning(left, right))
    for line in _warnings(left, right):
        page.say(line, "bold")
    parts = {
        "configuration": _settings(left, right),
        "scores": _scores(left, right),
        "matrix": _matrix(left, right),
        "events": _counts(left, right),
        "environment": _environment(left, right),
    }
    same: list[str] = []
    for name, table in parts.items():
        if table.rows:
            page.add(name, table)
        else:
            page.tell(**{name: table.data()})
            same.append(name)
    if same:
        page.say(f"The same: {', '.join(same)}.")
    return page


def _beginning(left: Seen, right: Seen) -> str:
    """How long the two runs did the same."""
    if not (left.steps and right.steps):
        return "Updates are not compared: a run has no steps.jsonl."
    pairs = zip(left.steps, right.steps, strict=False)
    same = sum(1 for _ in takewhile(_alike, pairs))
    if same == len(left.steps) == len(right.steps):
        return f"All {plural(same, 'update')} are the same."
    return f"The first {plural(same, 'update')} are the same." if same else "No update is the same."


def _alike(pair: tuple[Mapping[str, Any], Mapping[str, Any]]) -> bool:
    """Whether an update of one run was an update of the other."""
    fields = ("task", "step", "kind", "loss", "update_norm")
    return all(pair[0].get(field) == pair[1].get(field) for field in fields)


def _warnings(left: Seen, right: Seen) -> list[str]:
    """What makes scores of the two no fair comparison."""
    here, there = left.result.get("data", {}), right.result.get("data", {})
    changed = [task for task, digest in here.items() if there.get(task, digest) != digest]
    if changed:
        return [f"Scores are of other data: {', '.join(changed)} differ between the two."]
    if left.result["tasks"] != right.result["tasks"]:
        return ["Scores are of other tasks, or of another order."]
    return []


def _settings(left: Seen, right: Seen) -> PlainTable:
    return _differing("configuration", left.settings, right.settings)


def _environment(left: Seen, right: Seen) -> PlainTable:
    return _differing("environment", _place(left), _place(right))


def _place(seen: Seen) -> dict[str, Any]:
    """Where a run was trained, under dotted keys; the last place if it went on."""
    try:
        first = seen.directory.read_environment()
    except (InputError, OSError):  # it was not kept, or is damaged, and no number comes from it
        return {}
    last = (first.get("resumed") or [first])[-1]
    return flatten({key: value for key, value in last.items() if key not in _NOT_SHOWN})


def _differing(title: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> PlainTable:
    """A row for each key whose values are not equal."""
    table = PlainTable("key", title=title)
    for head in ("A", "B"):
        table.add_column(head, key=head.lower(), overflow="fold")
    for key in dict.fromkeys((*left, *right)):
        if left.get(key) != right.get(key):
            table.add_row(key, *[_value(side, key) for side in (left, right)])
    return table


def _value(side: Mapping[str, Any], key: str) -> Cell:
    if key not in side:
        return Cell(None, "–", "dim")
    value = side[key]
    if isinstance(value, list):
        return Cell(value, " ".join(map(str, value)) or "[]")
    return Cell(value, "none" if value is None else str(value))


def _scores(left: Seen, right: Seen) -> PlainTable:
    """OP, BWT and the others, and what B has more."""
    table = _numbers("score", "scores")
    for name, label in _SCORES.items():
        pair = (left.result.get(name), right.result.get(name))
        if pair[0] != pair[1]:
            _add(table, label, *pair)
    return table


def _matrix(left: Seen, right: Seen) -> PlainTable:
    """The scores on each task when it was learned, and at the end."""
    table = _numbers("score on", "matrix")
    ours, theirs = _ends(left.result), _ends(right.result)
    for key in dict.fromkeys((*ours, *theirs)):
        if ours.get(key) != theirs.get(key):
            _add(table, key, ours.get(key), theirs.get(key))
    return table


def _ends(result: Mapping[str, Any]) -> dict[str, float]:
    """The diagonal and the last column of a matrix; joint training has a column only."""
    scores: dict[str, float] = {}
    stages = len(result["stages"])
    for number, task in enumerate(result["tasks"]):
        row = result["matrix"][number]
        if number < stages - 1 and row[number] is not None:
            scores[f"{task}, when learned"] = row[number]
        if row and row[-1] is not None:
            scores[f"{task}, at the end"] = row[-1]
    return scores


def _counts(left: Seen, right: Seen) -> PlainTable:
    """Replays of each task, and updates and examples by kind."""
    table = _numbers("number of", "events")
    ours, theirs = _counted(left.result), _counted(right.result)
    for key in dict.fromkeys((*ours, *theirs)):
        if ours.get(key, 0) != theirs.get(key, 0):
            _add(table, key, ours.get(key, 0), theirs.get(key, 0), "{:,.0f}")
    return table


def _counted(result: Mapping[str, Any]) -> dict[str, float]:
    """The counts of a result, by what was counted."""
    counts: dict[str, float] = {}
    for task, events in result.get("events", {}).items():
        counts[f"events in {task}"] = sum(events.values())
    for name in ("updates", "examples"):
        kinds: Mapping[str, float] = result.get(name) or {}
        counts |= {f"{name}, {kind}": count for kind, count in kinds.items()}
    return counts


def _numbers(head: str, title: str) -> PlainTable:
    table = PlainTable(head, title=title)
    for name in ("A", "B", "B less A"):
        table.add_column(name, justify="right", key=name.lower())
    return table


def _add(
    table: PlainTable, name: str, left: float | None, right: float | None, form: str = "{:.1f}"
) -> None:
    """Add a row of numbers; one that got smaller is marked by its sign, not by its colour alone."""
    cells = [Cell(value, _number(value, form)) for value in (left, right)]
    if left is None or right is None:
        table.add_row(name, *cells, Cell(None, "–"))
        return
    more = right - left
    table.add_row(name, *cells, Cell(more, _number(more, form.replace("{:", "{:+"))))


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value).replace("-", "−")
