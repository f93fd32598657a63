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
_COUNTED = {"events": "events in ", "updates": "updates, ", "examples": "examples, "}
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
    same_updates, warnings = _same_updates(left, right), _warnings(left, right)
    page.tell(same_updates=same_updates, warnings=warnings)
    page.say(_beginning(same_updates, left, right))
    for line in warnings:
        page.say(line, "bold")
    ours, theirs = _counts(left.result, right.result), _counts(right.result, left.result)
    parts = {
        "configuration": _values("configuration", left.settings, right.settings),
        "scores": _numbers("scores", "score", _scores(left), _scores(right)),
        "matrix": _numbers("matrix", "score on", _ends(left.result), _ends(right.result)),
        "events": _numbers("events", "number of", ours, theirs, "{:,.0f}"),
        "environment": _values("environment", _place(left), _place(right)),
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


def _same_updates(left: Seen, right: Seen) -> int | None:
    """How many updates at the beginning are the same; None if a run has no journal."""
    if not (left.steps and right.steps):
        return None
    pairs = zip(left.steps, right.steps, strict=False)
    return sum(1 for _ in takewhile(_alike, pairs))


def _beginning(same: int | None, left: Seen, right: Seen) -> str:
    """How long the two runs did the same."""
    if same is None:
        return "Updates are not compared: a run has no steps.jsonl."
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


def _place(seen: Seen) -> dict[str, Any]:
    """Where a run was trained, under dotted keys; the last place if it went on."""
    try:
        first = seen.directory.read_environment()
    except (InputError, OSError):  # it was not kept, or is damaged, and no number comes from it
        return {}
    last = (first.get("resumed") or [first])[-1]
    return flatten({key: value for key, value in last.items() if key not in _NOT_SHOWN})


def _scores(seen: Seen) -> dict[str, float | None]:
    """OP, BWT and the others."""
    return {label: seen.result.get(name) for name, label in _SCORES.items()}


def _ends(result: Mapping[str, Any]) -> dict[str, float | None]:
    """The score on each task when it was learned, if not by joint training, and at the end."""
    scores: dict[str, float | None] = {}
    stages = len(result["stages"])
    for number, task in enumerate(result["tasks"]):
        row = result["matrix"][number]
        if number < stages - 1:
            scores[f"{task}, when learned"] = row[number]
        if row:
            scores[f"{task}, at the end"] = row[-1]
    return scores


def _counts(result: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float | None]:
    """Replays of each task, and updates and examples by kind, as far as the run counted them: a
    zero is what it counted none of and the other run some."""
    counts: dict[str, float | None] = {}
    for name, label in _COUNTED.items():
        counted: Mapping[str, Any] | None = result.get(name)
        if counted is None:  # an unfinished run, or one of a release that did not count
            continue
        for key in (*counted, *(other.get(name) or {})):
            count = counted.get(key, 0)
            counts[label + key] = sum(count.values()) if isinstance(count, Mapping) else count
    return counts


def _values(title: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> PlainTable:
    """A row for each key whose values are not equal."""
    table = PlainTable("key", title=title)
    for head in ("A", "B"):
        table.add_column(head, key=head.lower(), overflow="fold")
    for key in dict.fromkeys((*left, *right)):
        if left.get(key) != right.get(key):
            table.add_row(key, _value(left, key), _value(right, key))
    return table


def _value(side: Mapping[str, Any], key: str) -> Cell:
    if key not in side:
        return Cell(None, "–", "dim")
    value = side[key]
    if isinstance(value, list):
        return Cell(value, " ".join(map(str, value)) or "[]")
    return Cell(value, "none" if value is None else str(value))


def _numbers(
    title: str,
    head: str,
    left: Mapping[str, float | None],
    right: Mapping[str, float | None],
    form: str = "{:z.1f}",
) -> PlainTable:
    """A row for each number that is not equal, with what B has more."""
    table = PlainTable(head, title=title)
    for name in ("A", "B", "B less A"):
        table.add_column(name, justify="right", key=name.lower())
    for key in dict.fromkeys((*left, *right)):
        ours, theirs = left.get(key), right.get(key)
        if ours == theirs:
            continue
        more = None if ours is None or theirs is None else theirs - ours
        cells = [_number(ours, form), _number(theirs, form)]
        table.add_row(key, *cells, _number(more, form.replace("{:", "{:+")))
    return table


def _number(value: float | None, form: str) -> Cell:
    """A number; a negative one is marked by its sign, not by its colour alone."""
    return Cell(value, "–" if value is None else form.format(value).replace("-", "−"))
