"""A task to begin with: two files of examples, and a run that learns it.

The examples ask something about the small world that the embedded backbone `tiny` knows, so that
the run shows something; the user puts other questions into their place.
"""

import re
from pathlib import Path

from forever.cli.starters.run import as_yaml
from forever.data.orders import ORDERS
from forever.data.sources import find_tasks
from forever.errors import InputError, shown
from forever.files import json_lines

_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,60}")
_NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry")
_THINGS = ("soup", "song", "race", "trip", "pizza", "tune", "match", "flight")
_EATEN = ("soup", "pizza", "cake")
_LIKED = ("wonderful", "lovely", "great", "superb")
_DISLIKED = ("awful", "boring", "horrible", "dull")
_TRAIN, _TEST = 24, 8

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


def check_folder(folder: Path) -> None:
    """Refuse a folder whose name is no benchmark's of one's own, by an InputError."""
    if folder.resolve().name in ("", *ORDERS):
        raise InputError(
            f"--to {shown(str(folder))}: the folder's name is that of a benchmark, and none of "
            f"{', '.join(ORDERS)}, which have tasks of their own; give another folder"
        )


def task_files(folder: Path, name: str) -> dict[Path, str]:
    """The files of a task in a benchmark's folder, by path; every other task asks the same."""
    ask = (_liked, _served)[len(_tasks_in(folder)) % 2]
    rows = [ask(number) for number in range(_TRAIN + _TEST)]
    home = folder / name
    train, test = json_lines(rows[:_TRAIN]), json_lines(rows[_TRAIN:])
    return {home / "train.jsonl": train, home / "test.jsonl": test}


def run_text(folder: Path, name: str, file: str) -> str:
    """The text of a run on all tasks of a benchmark's folder, a new one last."""
    order = [*(task for task in _tasks_in(folder) if task != name), name]
    if folder.name in ("", ".."):  # of the working folder or the one above
        folder = folder.resolve()
    root = as_yaml(str(folder.parent))
    return RUN.format(file=file, benchmark=as_yaml(folder.name), root=root, order=as_yaml(order))


def _tasks_in(folder: Path) -> list[str]:
    return sorted(find_tasks(folder)) if folder.is_dir() else []


def _liked(number: int) -> dict[str, str]:
    """An example about an opinion; no two are the same."""
    person, thing = _NAMES[number % 8], _THINGS[(number * 3 + number // 8) % 8]
    words, answer = (_DISLIKED, "no") if number % 2 else (_LIKED, "yes")
    text = f"{person} found the {thing} {words[number // 2 % 4]}."
    return _row("Does the person like it? Options: yes, no.", text, answer)


def _served(number: int) -> dict[str, str]:
    """An example about food; no two are the same."""
    person, word = _NAMES[number // 2 % 8], (*_LIKED, *_DISLIKED)[(number + number // 16) % 8]
    things, answer = (_THINGS[1:4], "no") if number % 2 else (_EATEN, "yes")
    text = f"{person} remembered the {word} {things[number // 2 % 3]}."
    return _row("Is it about food? Options: yes, no.", text, answer)


def _row(instruction: str, text: str, answer: str) -> dict[str, str]:
    return {"instruction": instruction, "input": text, "output": answer}
