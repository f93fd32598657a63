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
from forever.launch.copies import download
from forever.launch.local import load_prompt
from forever.runs.console import matrix_table
from forever.runs.directory import RunDirectory
from forever.runs.progress import stage_scores
from forever.storage.address import portable
from forever.text import Cell, Page, PlainTable, shortened, visible

SCORES = ("op", "bwt", "fwt", "forgetting")
_MARKS = {"replay": "▲", "consolidation": "◆"}
_BARS = "▁▂▃▄▅▆▇█"
_WRONG_SHOWN = 3  # answers of each task, each wrong in another way
_LONGEST_INPUT, _LONGEST_ANSWER = 240, 80  # characters that are shown
_LUCK = 1.645  # standard errors: 95 % of a normal number lie below

Line = Mapping[str, Any]  # of a file of JSON lines


@dataclass(frozen=True)
class RunView:
    """What the folder of a run says."""

    directory: RunDirectory
    settings: Mapping[str, Any]  # the configuration by dotted keys
    state: str
    result: Mapping[str, Any]  # of an unfinished run what is known so far
    steps: Sequence[Line]
    events: Sequence[Line]  # replays alone
    answers: Mapping[str, Sequence[Line]]  # the last ones by task, where they were kept


def read_run(path: Path) -> RunView:
    """Read the run in a folder, which may stand for an address.

    Raises:
        InputError: the folder holds no run, or one of its files is damaged.
    """
    download(path)
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
    return RunView(directory, settings, state, result, steps, events, answers)


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
    page.note(run=portable(run.directory.path), state=run.state, settings=settings)
    page.note(scores={name: result.get(name) for name in SCORES})
    if why := run.directory.why_no_bwt():
        page.say(f"It has {why}", "bold")
    if result["stages"]:
        page.add("matrix", matrix_table(result, width))
    if run.steps:
        page.add("timeline", _timeline(run, width))
    if run.events:
        page.add("events", _events_table(run.events))
    if run.state == "finished":
        page.add("budget", _budget_table(result))
    for task, answers in run.answers.items():
        wrong = [answer for answer in answers if answer["score"] <= 0.5]
        if wrong:
            page.add(task, _wrong_table(run, task, wrong, len(answers)), "answers")
        else:
            page.say(f"{task}: all {len(answers)} answers are right")
    lost = lost_tasks(result, run.answers)
    for line in ("", *lost) if lost else ():
        page.say(line, "bold")
    page.note(lost=lost)
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
    """A sparkline of each task's update norms, and under it the replays of the memory."""
    table = PlainTable(title="timeline: ▲ replay, ◆ replay at a task's end", show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column()
    highest = max(line["update_norm"] or 0.0 for line in run.steps) or 1.0
    room = max(12, min(64, width - 50))
    for task in dict.fromkeys(line["task"] for line in run.steps):
        lines = [line for line in run.steps if line["task"] == task and line["kind"] == "task"]
        events = [event for event in run.events if event["task"] == task]
        count, bars = max(len(lines), 1), min(len(lines), room)
        # A bar is the mean of the updates in its part of the task.
        heights: list[float] = []
        for bar in range(bars):
            part = lines[bar * count // bars : (bar + 1) * count // bars]
            heights.append(fmean(line["update_norm"] or 0.0 for line in part))
        extent = plural(len(lines), "update")
        if lines and lines[-1].get("days") is not None:
            extent += f", {lines[-1]['days']:.1f} days"
        record = {"task": task, "updates": len(lines), "update_norm": heights, "replays": events}
        bar_text = "".join(_BARS[round(7 * height / highest)] for height in heights)
        table.add_row(shortened(visible(task), 16), bar_text, extent, record=record)
        if events:
            marks = [" "] * max(bars, 1)
            for event in events:
                marks[min(event["step"] * bars // count, len(marks) - 1)] = _MARKS[event["kind"]]
            days = " ".join(f"{event['day']:g}" for event in events if event.get("day") is not None)
            day_text = f"day {days}" if days else ""
            table.add_row("", Cell(None, "".join(marks), "bold red"), day_text, record={})
    table.caption = "Height: how far an update moved the parameters."
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
        sums = {key: sum(event.get(key, 0) for event in of_task) for key in ("rows", "updates")}
        means: dict[str, float | None] = {}
        for name in ("beta", "loss_before", "loss_after"):
            values = [event[name] for event in of_task if event.get(name) is not None]
            means[name] = fmean(values) if values else None
        beta, before, after = ("" if x is None else f"{x:.3g}" for x in means.values())
        during, at_end = kinds["replay"], kinds["consolidation"]
        cells = (f"{during} + {at_end}", *sums.values(), beta, f"{before} → {after}")
        record = {"task": task, "replays": during, "at_end": at_end, **sums, **means}
        table.add_row(shortened(task, 24), *cells, record=record)
    table.caption = (
        "Replays: in mid-task + at its end. Loss: on an event's first batch, before and after it; "
        "means over events."
    )
    return table


def _budget_table(result: Mapping[str, Any]) -> PlainTable:
    """What the run did, and what that took."""
    table = PlainTable("what", "how much", title="budget")
    for name in ("updates", "examples", "parameters"):
        counts = result.get(name) or {}
        text = ", ".join(f"{count:,.0f} {kind}" for kind, count in counts.items() if count)
        table.add_row(name, Cell(result.get(name), text or "none"))
    seconds = dict(sorted(result["seconds"].items(), key=lambda phase: -phase[1]))
    phases = [f"{name} {duration(time)}" for name, time in seconds.items() if time >= 0.5]
    kept = {"exact": "kept in each task", "over": "exceeded in a task", "under": "not spent"}
    budget, memory = result.get("budget"), result.get("peak_memory_bytes")
    rows = {
        "budget of replay": Cell(budget, kept.get(str(budget), "none was set")),
        "tokens trained": Cell(result.get("tokens"), f"{result.get('tokens', 0):,}"),
        "time": Cell(seconds, f"{duration(sum(seconds.values()))}: {', '.join(phases)}"),
        "memory at most": Cell(memory, f"{(memory or 0) / 2**30:.2f} GiB"),
        "workers": result.get("world_size", 1),
    }
    for name, cell in rows.items():
        table.add_row(name, cell)
    return table


def _wrong_table(run: RunView, task: str, wrong: Sequence[Line], count: int) -> PlainTable:
    """Some of a task's wrong answers, the most frequent ways to be wrong first."""

    def way(answer: Line) -> tuple[str, str]:
        return answer.get("reference", ""), answer.get("prediction", "")

    # The questions, if the data are still here and are those that were scored.
    questions: Mapping[str, Example] = {}
    note = ""
    try:
        config = run.directory.read_config()
        data = find_source(config.data, load_prompt(config)).task(task)
        if run.result.get("data", {}).get(task, data.digest()) != data.digest():
            raise InputError("the data have changed since the run was scored")
        questions = {example.id: example for example in data.test}
    except InputError as error:
        note = f"The questions are not shown: {error}"

    table = PlainTable(title=f"{task}: {len(wrong)} of {count} wrong", caption=note)
    for column in ("question", "expected", "answered"):
        table.add_column(column, overflow="fold")
    table.add_column("times", justify="right")
    first_of_each = {way(answer): answer for answer in reversed(wrong)}
    for (expected, answered), times in Counter(map(way, wrong)).most_common(_WRONG_SHOWN):
        answer = first_of_each[expected, answered]
        question = questions.get(answer["id"])
        record = {
            "id": answer["id"],
            "score": answer["score"],
            "times": times,
            "expected": expected,
            "answered": answered,
            "instruction": question.instruction if question else None,
            "input": question.input if question else None,
        }
        # The instruction is mostly that of all examples of the task.
        text = question.shown if question else answer["id"]
        prediction = shortened(answered, _LONGEST_ANSWER) if answered.strip() else "(nothing)"
        table.add_row(
            shortened(" ".join(text.split()), _LONGEST_INPUT),
            Cell(None, shortened(expected, _LONGEST_ANSWER), "green"),
            Cell(None, prediction + ("…" if answer.get("cut") else ""), "red"),
            times,
            record=record,
        )
    return table
