"""What the overview of a run in MLflow says: Markdown in its notes, and the names of runs.

MLflow turns Markdown into a page. Names of tasks and variants pass `forever.text.markdown`, so that
none of them is markup there.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.format import duration, plural
from forever.launch.mlflow.place import Place
from forever.report.format import markdown_table, number
from forever.runs.directory import RunDirectory
from forever.text import markdown, without_credentials

NOTE = "mlflow.note.content"
OVERVIEW = "overview.png"  # the matrix, in a size that fits in a note
LONGEST = 8000  # characters that a store takes
_POINTS, _PERCENT = "{:+.1f}", "{:.1f}"
_MOST_STAGES = 15  # of a matrix that is a table; a larger one is a picture only


def run_name(config: RunConfig, origin: Mapping[str, Any] | None) -> str:
    """A run that is in no sweep, as people say it: "forever on mini, seed 0".

    Args:
        origin: which run's stage it began from, if it is a fork.
    """
    data, method = config.data, config.method.name
    if origin is not None:
        method += f" from {origin['run']}@{origin['stage']}"
    place = f"{method} on {data.benchmark}"
    if isinstance(data.order, str) and data.order not in ("", "1"):
        place += f", order {data.order}"
    return f"{place}, seed {config.seed}"


def trial_name(trial: Mapping[str, Any]) -> str:
    """A run of a sweep, as people say it: "+IAR&PIR, order 1, seed 0"."""
    return f"{trial['variant']}, order {trial['order']}, seed {trial['seed']}"


def compared_with(
    manifest: Mapping[str, Any], trial: Mapping[str, Any], folder: Path
) -> RunDirectory | None:
    """The run of a sweep that a trial is compared with: the reference's, alike in all else.

    None for the reference itself, and in a folder that was used again with another base: there the
    reference has several, and nothing says which of them a trial differs from.
    """
    reference = manifest["references"].get(trial["variant"], manifest["reference"])
    if reference == trial["variant"]:
        return None
    twin = {**trial, "variant": reference, "key": ""}
    found = [other["key"] for other in manifest["trials"] if {**other, "key": ""} == twin]
    return RunDirectory(folder / found[0]) if len(found) == 1 else None


def run_note(result: Mapping[str, Any], run: str, other: RunDirectory | None = None) -> str:
    """What a finished run has reached: scores, matrix, budget, and less what it is compared with.

    Args:
        result: the content of result.json.
        run: its identity in MLflow, under which its pictures are found.
        other: the run that it is compared with, which may not be finished.
    """
    reference = None
    if other is not None:
        with suppress(InputError):  # it is damaged, which is said where that run is sent
            reference = other.finished()
    # One paragraph: MLflow folds up what is more than some lines, and the matrix should be seen.
    told = [_scores(result)]
    if reference is not None and reference["tasks"] == result["tasks"]:
        told.append(_difference(result, reference))
    told.append(_budget(result))
    picture = f"![matrix](get-artifact?path={OVERVIEW}&run_uuid={run})"
    texts = map(without_credentials, [" ".join(told), *_matrix(result)])
    return _fitted([*texts, picture])


def sweep_note(tables: Mapping[str, str], about: str, place: Place) -> str:
    """What a sweep has shown so far.

    Args:
        tables: Markdown tables of its variants, by benchmark.
        about: what its question is, and on what it was asked; plain text.
        place: its run in MLflow, beside whose page those lie that the note links to.
    """
    report, comparison = place.artifact(".", "report.html"), place.comparison(".")
    links = f"[Whole report]({report}) · [trials compared]({comparison})"
    parts = [f"{markdown(without_credentials(about))} {links}"]
    for benchmark, table in tables.items():
        if len(tables) > 1:
            parts.append(markdown(benchmark))
        parts.append(spaced(without_credentials(table)))
    return _fitted(parts)


def _fitted(parts: Sequence[str]) -> str:
    """As much of the parts as a store takes; a table that is too long loses rows."""
    text = ""
    for part in parts:
        room = LONGEST - len(text) - 2
        if len(part) > room:
            lines = part[: max(room - 40, 0)].split("\n")[:-1]
            part = "\n".join([*lines, "", "*The rest is in the artifacts.*"]) if lines else ""
        text += f"{part}\n\n" if part else ""
    return text.strip()


def _scores(result: Mapping[str, Any]) -> str:
    told = f"**OP {number(result['op'], _PERCENT)} %**"
    if result["bwt"] is not None:
        told += f", **BWT {number(result['bwt'], _POINTS)} points**"
    tasks = plural(len(result["tasks"]), "task")
    method, benchmark = markdown(result["method"]), markdown(result["benchmark"])
    return f"{told}: {method} on {benchmark}, {tasks}."


def _difference(result: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    less = number(result["op"] - other["op"], _POINTS)
    told = f"Less the reference with this order and seed: OP {less}"
    if result["bwt"] is not None and other["bwt"] is not None:
        told += f", BWT {number(result['bwt'] - other['bwt'], _POINTS)}"
    return f"{told} points (one run judges nothing: see the parent run)."


def _budget(result: Mapping[str, Any]) -> str:
    """What was replayed, in how many events, and what it cost."""
    events = [0, 0]
    for kinds in result["events"].values():
        events[0] += kinds.get("replay", 0)
        events[1] += kinds.get("consolidation", 0)
    told = f"Replays: {events[0]} mid-task + {events[1]} end of task"
    if counted := result.get("examples"):
        told += f", {counted['replayed']:,} examples"
    if result.get("budget"):
        told += f"; budget {result['budget']}"
    seconds = sum(result["seconds"].values())
    updates = sum(result["updates"].values())
    return f"{told}; {updates:,} updates in {duration(seconds)}."


def _matrix(result: Mapping[str, Any]) -> list[str]:
    stages = result["stages"]
    if len(stages) > _MOST_STAGES:
        return []
    head = ["score (%) after", *map(markdown, stages)]
    rows: list[list[str]] = []
    for task, scores in zip(result["tasks"], result["matrix"], strict=True):
        rows.append([markdown(task), *(number(score, _PERCENT) for score in scores)])
    align = [":---", *["---:"] * len(stages)]
    return [spaced("\n".join(markdown_table(head, rows, align)))]


def spaced(table: str) -> str:
    """A Markdown table with room between its columns, for which MLflow has no style."""
    head, rule, *rows = table.split("\n")
    return "\n".join([_wide(head), rule, *map(_wide, rows)])


def _wide(row: str) -> str:
    return row.replace(" | ", "&ensp; | ")
