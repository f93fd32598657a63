"""One run on a page of the terminal, finished or not, from the files in its folder."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from forever.config.overrides import flatten
from forever.data.benchmarks import find_source
from forever.data.tasks import Example
from forever.errors import InputError
from forever.format import duration, plural
from forever.launch.copies import bring
from forever.runs.console import matrix_table
from forever.runs.directory import RunDirectory
from forever.runs.progress import stage_scores
from forever.storage.address import portable
from forever.text import Cell, Page, PlainTable, shortened, visible

SCORES = ("op", "bwt", "fwt", "forgetting")
_MARKS = {"replay": "▲", "consolidation": "◆"}
_BARS = "▁▂▃▄▅▆▇█"
_WRONG_SHOWN = 3  # answers of each task
_LONGEST_INPUT, _LONGEST_ANSWER = 240, 80  # characters that are shown
_LUCK = 1.645  # standard errors: 95 % of a normal number lie below

Line = Mapping[str, Any]  # of a file of JSON lines


@dataclass(frozen=True)
class RunView:
    """What the folder of a run says."""

    directory: RunDirectory
    settings: Mapping[str, Any]  # the configuration by dotted keys
    finished: bool
    state: str
    result: Mapping[str, Any]  # of an unfinished run what is known so far
    steps: Sequence[Line]
    events: Sequence[Line]  # replays alone
    answers: Mapping[str, Sequence[Line]]  # the last ones by task, where they were kept


def read_run(path: Path) -> RunView:
    """Read the run in a folder, which may stand for an address.

    Raises:
        InputError: there is no run, or one of its files is damaged.
    """
    bring(path)
    directory = RunDirectory(path)
    if not directory.config.is_file():
        inside = sorted(file.parent.name for file in directory.path.glob("*/config.yaml"))
        rule = f"give one of its runs: {', '.join(inside[:3])}" if inside else "give a run's folder"
        raise InputError(f"{portable(path)} has no config.yaml; {rule}")
    directory.verify(complete=False)
    finished = directory.finished()
    result = finished or _result_so_far(directory)
    if finished:
        state = "finished"
    elif ended := directory.end_without_result():
        state = f"{ended['state']}: {ended['reason']}"
    else:
        state = f"unfinished, {plural(len(result['stages']), 'task')} scored; --resume continues it"
    answers: dict[str, list[dict[str, Any]]] = {}
    last = len(result["stages"]) - 1
    for number, task in enumerate(result["tasks"]):
        if directory.predictions(last, number).is_file():
            answers[task] = directory.read_answers(last, number)
    events = [event for event in directory.read_events() if event["kind"] in _MARKS]
    settings = flatten(directory.read_settings())
    steps = directory.read_steps()
    return RunView(directory, settings, bool(finished), state, result, steps, events, answers)


def _result_so_far(directory: RunDirectory) -> dict[str, Any]:
    """What result.json would say of the stages that are scored."""
    config, stages = directory.read_config(), stage_scores(directory)
    last = stages[-1] if stages else {}
    tasks = [key.removeprefix("acc/") for key in last if key.startswith("acc/")]
    return {
        "method": config.method.name,
        "seed": config.seed,
        "tasks": tasks,
        "stages": tasks,
        "matrix": [[scores.get(f"acc/{task}") for scores in stages] for task in tasks],
        "op": last.get("op"),
        "bwt": last.get("bwt"),
    }


def run_page(run: RunView, width: int = 120) -> Page:
    """The run's matrix, timeline, events, budget and wrong answers, as far as they were kept.

    Args:
        width: columns of the terminal.
    """
    page, result, settings = Page(), run.result, run.settings
    page.say(f"{run.directory.path.name}: {run.state}", "bold")
    order = settings["data.order"]
    if not isinstance(order, str):
        order = " ".join(order)
    page.say(
        f"{settings['data.benchmark']} (order {order}), {settings['method.name']}, "
        f"seed {settings['seed']}, {settings['model.name']}"
    )
    page.tell(run=portable(run.directory.path), state=run.state, settings=settings)
    page.tell(scores={name: result.get(name) for name in SCORES})
    if result["stages"]:
        page.add("matrix", matrix_table(result, width))
    if run.steps:
        page.add("timeline", _timeline(run, width))
    if run.events:
        page.add("events", _events_table(run.events))
    if run.finished:
        page.add("budget", _budget_table(result))
    for task, answers in run.answers.items():
        if any(map(_is_wrong, answers)):
            page.add(task, _answers_table(run, task, answers), "answers")
        else:
            page.say(f"{task}: all {len(answers)} answers are right")
    lost = lost_tasks(result, run.answers)
    for line in ("", *lost) if lost else ():
        page.say(line, "bold")
    page.tell(lost=lost)
    return page


def lost_tasks(result: Mapping[str, Any], answers: Mapping[str, Sequence[Line]]) -> list[str]:
    """A line for each task that ends at zero or at chance.

    Chance is the score of one answer for all examples, the most frequent right one. A score above
    it by less than the luck of so many examples, one-sided at 5 %, counts as chance.
    """
    lines: list[str] = []
    for task, row in zip(result["tasks"], result["matrix"], strict=True):
        score, of_task = row[-1] if row else None, answers.get(task)
        if score is None or not of_task:
            continue
        if score == 0:
            lines.append(f"{visible(task)} ends at zero: none of {len(of_task)} answers is right")
            continue
        right = Counter(answer.get("reference", "").strip().lower() for answer in of_task)
        label, count = right.most_common(1)[0]
        share = count / len(of_task)
        are_labels = len(right) > 1 and count > 1 and all(a["score"] in (0, 1) for a in of_task)
        if are_labels and score / 100 <= share + _LUCK * sqrt(share * (1 - share) / len(of_task)):
            guess = f"{shortened(visible(label), 40)!r} for every answer scores {100 * share:.1f}"
            lines.append(f"{visible(task)} ends at {score:.1f}, no better than chance: {guess}")
    return lines


# ---- the tables


def _timeline(run: RunView, width: int) -> PlainTable:
    """A sparkline of each task's updates, and under it the replays of the memory."""
    title = "timeline: ▲ replay, ◆ replay at the end of the task"
    table = PlainTable(title=title, show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column()
    field, meaning = "update_norm", "how far an update moved the parameters"
    if not any(line.get(field) for line in run.steps):
        field, meaning = "loss", "the loss"
    highest = max(line.get(field) or 0.0 for line in run.steps)
    room = max(12, min(64, width - 50))
    for task in dict.fromkeys(line["task"] for line in run.steps):
        lines = [line for line in run.steps if line["task"] == task and line["kind"] == "task"]
        events = [event for event in run.events if event["task"] == task]
        count = max(len(lines), 1)
        bars = min(count, room)
        # A bar is the mean of the updates in its part of the task.
        heights: list[float] = []
        for bar in range(bars if lines else 0):
            part = lines[bar * count // bars : (bar + 1) * count // bars]
            heights.append(fmean(line.get(field) or 0.0 for line in part))
        bar_text = "".join(_BARS[round(7 * height / (highest or 1))] for height in heights)
        extent = plural(len(lines), "update")
        if lines and lines[-1].get("days") is not None:
            extent += f", {lines[-1]['days']:.1f} days"
        record = {"task": task, "updates": len(lines), field: heights, "replays": events}
        table.add_row(shortened(visible(task), 16), bar_text, extent, record=record)
        if events:
            marks = [" "] * bars
            for event in events:
                marks[min(event["step"] * bars // count, bars - 1)] = _MARKS[event["kind"]]
            days = [f"{event['day']:g}" for event in events if event.get("day") is not None]
            day_text = f"day {' '.join(days)}" if days else ""
            table.add_row("", Cell(None, "".join(marks), "bold red"), day_text, record={})
    table.caption = f"Height: {meaning}."
    return table


def _events_table(events: Sequence[Line]) -> PlainTable:
    """The replays of each task: how many, how strong, and what they did to the loss."""
    table = PlainTable(title="events")
    table.add_column("task", no_wrap=True)
    for head in ("replays", "examples", "updates", "beta", "loss"):
        table.add_column(head, justify="right")
    for task in dict.fromkeys(event["task"] for event in events):
        of_task = [event for event in events if event["task"] == task]
        kinds = Counter(event["kind"] for event in of_task)
        means: dict[str, float | None] = {}
        for name in ("beta", "loss_before", "loss_after"):
            values = [event[name] for event in of_task if event.get(name) is not None]
            means[name] = fmean(values) if values else None
        record = {
            "task": task,
            "replays": kinds["replay"],
            "at_end": kinds["consolidation"],
            "rows": sum(event.get("rows", 0) for event in of_task),
            "updates": sum(event.get("updates", 0) for event in of_task),
            **means,
        }
        beta, before, after = ("" if x is None else f"{x:.3g}" for x in means.values())
        replays = f"{record['replays']} + {record['at_end']}"
        cells = (replays, record["rows"], record["updates"], beta, f"{before} → {after}")
        table.add_row(shortened(task, 24), *cells, record=record)
    table.caption = (
        "Replays: in mid-task + at its end. Loss: on an event's first batch, before and after it; "
        "means over events."
    )
    return table


def _budget_table(result: Mapping[str, Any]) -> PlainTable:
    """What the run did, and what that took."""
    table = PlainTable("what", "how much", title="budget")
    kept = {"exact": "kept in each task", "over": "exceeded in a task", "under": "not spent"}
    seconds = dict(sorted(result["seconds"].items(), key=lambda phase: -phase[1]))
    phases = [f"{name} {duration(time)}" for name, time in seconds.items() if time >= 0.5]
    time = ": ".join(filter(None, (duration(sum(seconds.values())), ", ".join(phases))))
    memory, workers = result.get("peak_memory_bytes"), result.get("world_size", 1)
    rows = [
        ("updates", result["updates"], _parts(result["updates"])),
        ("examples", result.get("examples"), _parts(result.get("examples") or {})),
        (
            "budget of replay",
            result.get("budget"),
            kept.get(str(result.get("budget")), "none was set"),
        ),
        ("tokens trained", result.get("tokens"), f"{result.get('tokens', 0):,}"),
        ("time", seconds, time),
        ("memory at most", memory, f"{(memory or 0) / 2**30:.2f} GiB"),
        ("parameters", result.get("parameters"), _parts(result.get("parameters") or {})),
        ("workers", workers, str(workers)),
    ]
    for name, value, text in rows:
        table.add_row(name, Cell(value, text))
    return table


def _parts(counts: Mapping[str, float]) -> str:
    """The counts that are not zero, each with its name."""
    return ", ".join(f"{count:,.0f} {name}" for name, count in counts.items() if count) or "none"


# ---- wrong answers


def _is_wrong(answer: Line) -> bool:
    """Whether an answer counts as wrong, which may be right in part."""
    return answer["score"] <= 0.5


def _answers_table(run: RunView, task: str, answers: Sequence[Line]) -> PlainTable:
    """Some wrong answers to a task, the most frequent ways to be wrong first."""
    wrong = list(filter(_is_wrong, answers))

    def way(answer: Line) -> tuple[str, str]:
        return answer.get("reference", ""), answer.get("prediction", "")

    # The first answer of each way to be wrong, then the second ones.
    times, before = Counter(map(way, wrong)), Counter[tuple[str, str]]()
    ranked: list[tuple[int, int, Line]] = []
    for answer in wrong:
        ranked.append((before[way(answer)], -times[way(answer)], answer))
        before[way(answer)] += 1
    ranked.sort(key=lambda rank: rank[:2])
    chosen = [answer for _, _, answer in ranked[:_WRONG_SHOWN]]

    questions, why_none = _questions(run, task)
    table = PlainTable(title=f"{task}: {len(wrong)} of {len(answers)} wrong")
    for column in ("asked", "expected", "answered"):
        table.add_column(column, overflow="fold")
    table.add_column("times", justify="right")
    instructions = {questions[a["id"]].instruction for a in chosen if a["id"] in questions}
    for answer in chosen:
        question, (expected, answered) = questions.get(answer["id"]), way(answer)
        record = {
            "id": answer["id"],
            "score": answer["score"],
            "times": times[expected, answered],
            "expected": expected,
            "answered": answered,
            "instruction": question.instruction if question else None,
            "input": question.input if question else None,
        }
        text = answer["id"]
        if question:  # its instruction is shown once where all have the same
            alone = len(instructions) == 1 and question.input
            text = question.input if alone else f"{question.instruction} {question.input}"
        said = shortened(answered, _LONGEST_ANSWER) if answered.strip() else "(nothing)"
        table.add_row(
            shortened(" ".join(text.split()), _LONGEST_INPUT),
            Cell(None, shortened(expected, _LONGEST_ANSWER), "green"),
            Cell(None, said + ("…" if answer.get("cut") else ""), "red"),
            times[expected, answered],
            record=record,
        )
    if len(instructions) == 1:
        table.caption = f"Instruction: {shortened(instructions.pop(), _LONGEST_INPUT)}"
    if why_none:
        table.caption = f"The questions are not shown: {why_none}"
    return table


def _questions(run: RunView, task: str) -> tuple[Mapping[str, Example], str]:
    """The test examples of a task by their ids, or why they are not shown."""
    try:
        data = find_source(run.directory.read_config().data).task(task)
    except InputError as error:
        return {}, str(error)
    if run.result.get("data", {}).get(task, data.digest()) != data.digest():
        return {}, "the data have changed since the run was scored"
    return {example.id: example for example in data.test}, ""
