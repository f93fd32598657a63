"""Tasks that end at zero or at chance: a line on each, with what was answered and what helps.

Chance is the score of one answer for all rows, the most frequent one among those that are right. A
task is above it if its score is by more than the luck of so many rows, one-sided at 5 %.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from forever.cli.view.answers import Answer, said, wrong_answers
from forever.cli.view.seen import Seen
from forever.format import plural
from forever.text import shortened, visible

_LUCK = 1.645  # standard errors: 95 % of a normal number lie below
_MOST_LINES = 3
_CUT_OFTEN = 0.2  # of the training rows
_SHORT_TRAINING = 100  # updates of a task


@dataclass(frozen=True)
class Chance:
    """One answer for all rows, and the score in percent that it would have."""

    answer: str
    score: float

    def reaches(self, score: float, rows: int) -> bool:
        """Whether a score in percent may be this chance."""
        share = self.score / 100
        return score <= 100 * (share + _LUCK * sqrt(share * (1 - share) / rows))


def chance(answers: Sequence[Answer]) -> Chance | None:
    """The chance of a task whose answers are labels: some right answer is that of several rows."""
    counts = Counter(answer.get("reference", "").strip().lower() for answer in answers)
    label, times = counts.most_common(1)[0]
    exact = all(answer["score"] in (0, 1) for answer in answers)
    if not exact or len(counts) < 2 or times < 2:
        return None
    return Chance(label, 100 * times / len(answers))


def lost_tasks(seen: Seen) -> list[str]:
    """A line for each task that ends at zero or at chance, of which the first are told whole."""
    lines: list[str] = []
    others: list[str] = []
    result = seen.result
    for number, task in enumerate(result["tasks"]):
        answers = seen.answers.get(task)  # none if its file was not kept
        if answers is None:
            continue
        end = _end(result["matrix"][number][-1], answers)
        if end and len(lines) < _MOST_LINES:
            helps = _help(seen, number, task, answers)
            lines.append(f"{visible(task)} {end}{_told(answers)} Usually helps: {helps}.")
        elif end:
            others.append(visible(task))
    if others:
        lines.append(f"At zero or at chance, too: {', '.join(others)}.")
    return lines


def _end(score: float | None, answers: Sequence[Answer]) -> str:
    """Where a task ended, if that is no better than guessing."""
    if score is None:
        return ""
    if score == 0:
        return f"ends at 0 of {len(answers)} right:"
    guess = chance(answers)
    if guess is None or not guess.reaches(score, len(answers)):
        return ""
    label = shortened(visible(guess.answer), 40)
    luck = f", which {len(answers)} rows cannot tell apart" if score > guess.score else ""
    return f"ends at chance, {score:.1f} (always {label!r}: {guess.score:.1f}{luck}):"


def _told(answers: Sequence[Answer]) -> str:
    """Some wrong answers, such as `'red' where 'blue' was right (7 times)`."""
    told: list[str] = []
    for answer, count in wrong_answers(answers):
        right = shortened(visible(answer.get("reference", "")), 40)
        told.append(f" {shortened(visible(said(answer)), 40)!r} for {right!r} ({count}x)")
    return ",".join(dict.fromkeys(told)) + "."


def _help(seen: Seen, number: int, task: str, answers: Sequence[Answer]) -> str:
    """What helps most often, by how the run got there."""
    result = seen.result
    note: Mapping[str, Any] = result.get("notes", {}).get(task, {})
    rows = result.get("rows", {}).get(task, {}).get("train", 0)
    settings = seen.settings
    if rows and note.get("truncated", 0) > _CUT_OFTEN * rows:
        return f"a larger model.max_length (its prompts are cut at {settings['model.max_length']})"
    if _was_learned(result["matrix"][number], number, answers):
        if "forever" in str(settings["method.name"]):
            return "more memory (memory.fraction), or replay at more days (method.days)"
        return "replay, such as method.name=forever; the task was learned and is forgotten"
    updates = sum(line["task"] == task and line["kind"] == "task" for line in seen.steps)
    had = plural(updates, "update") if updates else "few updates"
    more = f"more updates (optim.epochs; it has {had}) or a larger optim.lr"
    if updates >= _SHORT_TRAINING:
        more = "another optim.lr, or a larger model"
    if settings["model.name"] == "tiny":
        more += "; `tiny` knows the words of the embedded benchmark only, so a real model.name"
    if not _are_labels(answers):
        more = f"{more}; `forever data check` shows what the model sees"
    return more


def _was_learned(row: Sequence[float | None], number: int, answers: Sequence[Answer]) -> bool:
    """Whether a task was above chance when it had just been trained."""
    learned = row[number] if number < len(row) - 1 else None
    guess = chance(answers)
    if learned is None:
        return False
    return learned > 0 if guess is None else not guess.reaches(learned, len(answers))


def _are_labels(answers: Iterable[Answer]) -> bool:
    """Whether what is answered are answers of the task, if wrong ones."""
    answers = list(answers)
    known = {answer.get("reference", "").strip().lower() for answer in answers}
    hits = sum(answer.get("prediction", "").strip().lower() in known for answer in answers)
    return hits >= len(answers) / 2
