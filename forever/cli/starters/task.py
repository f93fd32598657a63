"""A task to begin with: two files of examples, and a run that learns it.

The examples ask something about the small world that the embedded backbone `tiny` knows, so that
the run shows something; the user puts other questions into their place.
"""

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from random import Random

from forever.cli.starters.run import as_yaml
from forever.data.sources import find_tasks
from forever.errors import InputError, shown
from forever.files import json_lines

_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,60}")
_TRAIN, _TEST = 24, 8
Words = Mapping[str, tuple[tuple[str, ...], ...]]

_PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry")
_THINGS = ("soup", "song", "race", "trip", "pizza", "tune", "match", "flight")
_GOOD = ("wonderful", "lovely", "great", "superb")
_BAD = ("awful", "boring", "horrible", "dull")
# Each question with its sentence and, by the answer, the words that fill that.
_QUESTIONS = (
    (
        "Does the person like it? Options: yes, no.",
        "{} found the {} {}.",
        {"yes": (_PEOPLE, _THINGS, _GOOD), "no": (_PEOPLE, _THINGS, _BAD)},
    ),
    (
        "Is it something to eat? Options: yes, no.",
        "{} had the {} {}.",
        {
            "yes": (_PEOPLE, _GOOD + _BAD, ("soup", "pizza", "cake")),
            "no": (_PEOPLE, _GOOD + _BAD, ("song", "race", "trip")),
        },
    ),
)

RUN = """\
# A run on your own tasks: forever run {file}
# What the model sees of them: forever data check {file}
#
# A task is a folder with train.jsonl and test.jsonl; each line has an instruction, an input (which
# may be "") and the output that is to be learned. Tasks are learned in the order given here.
data: {{benchmark: {benchmark}, root: {root}, order: {order}}}

# `tiny` is embedded and knows the words of these examples only. For your own words take a real
# model, such as Qwen/Qwen3-0.6B or a folder with one, and leave out `optim` for the paper's values.
model: {{name: tiny, dropout: 0.0}}
optim: {{lr: 0.002, epochs: 20, warmup_steps: 6}}
memory: {{fraction: 0.1}} # of each task's training examples, kept for replay
evaluation: {{max_new_tokens: 16}} # tokens of the longest answer
method: {{name: forever, warmup_steps: 2}} # or another one: docs/methods.md
"""


def check_name(name: str) -> None:
    """Refuse a name that is no folder's, by an InputError."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"--task {shown(name)}: a task's name is that of a folder: letters, digits, _ and -"
        )


def task_files(folder: Path, name: str) -> dict[Path, str]:
    """The files of a task in a benchmark's folder, by path; every other task asks the same."""
    rows = _rows(*_QUESTIONS[len(_tasks_in(folder)) % 2])
    home = folder / name
    train, test = json_lines(rows[:_TRAIN]), json_lines(rows[_TRAIN:])
    return {home / "train.jsonl": train, home / "test.jsonl": test}


def run_text(folder: Path, name: str, file: str) -> str:
    """The text of a run on all tasks of a benchmark's folder, a new one last."""
    order = [*(task for task in _tasks_in(folder) if task != name), name]
    root = as_yaml(str(folder.parent))
    return RUN.format(file=file, benchmark=as_yaml(folder.name), root=root, order=as_yaml(order))


def _tasks_in(folder: Path) -> list[str]:
    return sorted(find_tasks(folder)) if folder.is_dir() else []


def _rows(instruction: str, sentence: str, words: Words) -> list[dict[str, str]]:
    """The examples of a question, no two of them the same, whose answers take turns."""
    each = (_TRAIN + _TEST) // len(words)
    chosen = {answer: Random(0).sample([*product(*kinds)], each) for answer, kinds in words.items()}
    rows: list[dict[str, str]] = []
    for number in range(each):
        for answer, fillings in chosen.items():
            text = sentence.format(*fillings[number])
            rows.append({"instruction": instruction, "input": text, "output": answer})
    return rows
