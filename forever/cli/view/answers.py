"""Answers that were wrong, beside what was asked and what was expected."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forever.cli.view.seen import Seen
from forever.data.tasks import Example
from forever.errors import InputError
from forever.text import Cell, Page, PlainTable, shortened, visible

SHOWN = 3  # of each task
_LONGEST_INPUT, _LONGEST_ANSWER = 240, 80  # characters that are shown

Answer = Mapping[str, Any]


def wrong_answers(answers: Iterable[Answer], most: int = SHOWN) -> list[tuple[Answer, int]]:
    """Some answers that are wrong, each with how many were wrong in the same way.

    The most frequent ways come first with their first rows, then their second rows. Of answers that
    may be right in part those are wrong that have no more than half.
    """
    ways: defaultdict[tuple[str, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        if is_wrong(answer):
            ways[answer.get("reference", ""), answer.get("prediction", "")].append(answer)
    by_size = sorted(ways.values(), key=len, reverse=True)
    rows: list[tuple[Answer, int]] = []
    for place in range(most):
        rows += [(way[place], len(way)) for way in by_size if place < len(way)]
    return rows[:most]


def is_wrong(answer: Answer) -> bool:
    """Whether an answer counts as wrong."""
    return answer["score"] <= 0.5


def said(answer: Answer) -> str:
    """An answer as it was given, short; one that was cut short ends with dots."""
    text = answer.get("prediction", "")
    if not text.strip():
        return "(nothing)"
    return shortened(text, _LONGEST_ANSWER) + ("…" if answer.get("cut") else "")


def add_answers(page: Page, seen: Seen) -> None:
    """Add a table of wrong answers for each task that has some, and say which have none."""
    spotless: list[str] = []
    absent = [task for task in seen.result["tasks"] if task not in seen.answers]
    for task, answers in seen.answers.items():
        chosen = wrong_answers(answers)
        if chosen:
            page.add(task, _table(seen, task, answers, chosen), "answers")
        else:
            spotless.append(task)
    if spotless or absent:
        page.say("")
    if spotless:
        page.say(f"No answer is wrong: {', '.join(map(visible, spotless))}.")
    if absent:
        folder = seen.directory.path / "predictions"
        page.say(f"Answers are not shown, {folder} has none: {', '.join(map(visible, absent))}.")


def _table(
    seen: Seen, task: str, answers: Sequence[Answer], chosen: Sequence[tuple[Answer, int]]
) -> PlainTable:
    """The wrong answers of one task."""
    wrong = sum(map(is_wrong, answers))
    table = PlainTable(title=f"{task}: {wrong} of {len(answers)} wrong")
    questions, why = _questions(seen, task)
    asked = [questions.get(answer["id"]) for answer, _ in chosen]
    instructions = {example.instruction for example in asked if example is not None}
    for column in ("asked", "expected", "answered"):
        table.add_column(column, overflow="fold")
    table.add_column("times", justify="right")
    for (answer, count), example in zip(chosen, asked, strict=True):
        right = answer.get("reference", "")
        record = {
            "id": answer["id"],
            "score": answer["score"],
            "times": count,
            "expected": right,
            "answered": answer.get("prediction"),
            "instruction": example.instruction if example else None,
            "input": example.input if example else None,
        }
        text = _asked(example, alone=len(instructions) == 1) if example else answer["id"]
        expected = Cell(None, shortened(right, _LONGEST_ANSWER), "green")
        table.add_row(text, expected, Cell(None, said(answer), "red"), count, record=record)
    if len(instructions) == 1:
        table.caption = f"Instruction: {shortened(instructions.pop(), _LONGEST_INPUT)}"
    if why:
        table.caption = f"The questions are not shown: {why}"
    return table


def _asked(example: Example, alone: bool) -> str:
    """What was asked; the instruction is left out where it stands below the table."""
    text = example.input
    if not (alone and text):
        text = f"{example.instruction} {text}"
    return shortened(" ".join(text.split()), _LONGEST_INPUT)


def _questions(seen: Seen, task: str) -> tuple[Mapping[str, Example], str]:
    """The questions of a task by their ids, or why there are none."""
    try:
        return seen.questions(task), ""
    except InputError as error:
        return {}, str(error)
