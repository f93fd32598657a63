"""Readers of task folders, which tell the layout by what is in the folder.

1. Ours has <folder>/<task>/{train,test}.jsonl with `instruction`, `input` and `output`.
2. O-LoRA's CL_Benchmark has <folder>/<TYPE>/<task>/{train,test,labels}.json, lists of objects with
   `sentence` and `label`.
3. Super-NaturalInstructions has <folder>/<task>*.json with a `Definition`, and with `Instances` of
   `input` and `output`.

Every layout gives the same examples.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forever.data.tasks import Example
from forever.errors import InputError, unknown
from forever.seeding import permutation

Splits = tuple[tuple[Example, ...], tuple[Example, ...]]
# A row limit keeps the same rows in every run: seeds differ in training, not in what is measured.
DATA_SEED = 0

# Layout 2 ships no instructions. These are the questions of its fifteen tasks by type, from O-LoRA
# and WoodScene/bilevel.
_TOPIC = "What is the topic of the following paragraph?"
_SENTIMENT = "What is the sentiment of the following paragraph?"
_RELATION = 'What is the logical relationship between the "sentence 1" and the "sentence 2"?'
_QUESTIONS = {
    "TC": _TOPIC,
    "SC": _SENTIMENT,
    "NLI": _RELATION,
    "QQP": 'Whether the "first sentence" and the "second sentence" have the same meaning?',
    "WiC": "Given a word and two sentences, whether the word is used with the same sense in both "
    "sentence?",
    "COPA": "According to the following passage, is the question true or false?",
    "BoolQA": "According to the following passage, is the question true or false?",
    "MultiRC": "According to the following passage and question, is the candidate answer true or "
    "false?",
}
# Layout 3 has one list of instances; the paper's sizes are 1000 and 100 (docs/protocol.md).
_NI_TRAIN, _NI_TEST = 1000, 100
_NI_PARTS = 5  # of a short list a fifth is held out


def task_names(folder: Path) -> list[str]:
    """The tasks found in a benchmark folder, in alphabetical order."""
    names = {path.parent.name for path in folder.glob("*/train.jsonl")}
    names |= {path.parent.name.lower() for path in folder.glob("*/*/train.json")}
    names |= {path.stem.split("_")[0] for path in folder.glob("task*.json")}
    return sorted(names)


def read_task(folder: Path, name: str) -> Splits:
    """The train and test rows of one task.

    Raises:
        InputError: no such task, or a file that is missing, empty or malformed (with file and
            line).
    """
    if (folder / name).is_dir():
        train = _read_jsonl(folder / name / "train.jsonl", name, "train")
        return train, _read_jsonl(folder / name / "test.jsonl", name, "test")
    for path in sorted(folder.glob("*/*/train.json")):
        if path.parent.name.lower() == name.lower():
            return _read_cl_benchmark(path.parent, name)
    for path in sorted(folder.glob(f"{name}_*.json")) + sorted(folder.glob(f"{name}.json")):
        return _read_natural_instructions(path, name)
    raise unknown(f"task in {folder}", name, task_names(folder))


def limited(
    rows: tuple[Example, ...], limit: int | None, split: str, task: str
) -> tuple[Example, ...]:
    """At most `limit` rows of a split, in their order and the same ones in every run."""
    if limit is None or limit >= len(rows):
        return rows
    kept = sorted(permutation(len(rows), DATA_SEED, "rows", split, task)[:limit])
    return tuple(rows[i] for i in kept)


def _split(examples: Iterable[Example], path: Path) -> tuple[Example, ...]:
    split = tuple(examples)
    if not split:
        raise InputError(f"{path} is empty; a split needs at least one row")
    return split


def _text(record: Any, field: str, where: str) -> str:
    value = record.get(field) if isinstance(record, dict) else None
    if not isinstance(value, str):
        raise InputError(
            f"{where}: field {field!r} must be a string, but is {json.dumps(value)[:60]}"
        )
    return value


def _list(value: Any, of: type, rule: str) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(entry, of) for entry in value):
        raise InputError(rule)
    return value


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8 at byte {error.start}") from None


def _read_jsonl(path: Path, task: str, split: str) -> tuple[Example, ...]:
    if not path.is_file():
        raise InputError(f"there is no file {path}; task {task!r} needs train.jsonl and test.jsonl")

    examples: list[Example] = []
    for number, line in enumerate(_content(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{where}: not valid JSON ({error.msg}); one object a line is expected"
            ) from None
        instruction = _text(record, "instruction", where)
        text = _text(record, "input", where)
        output = _text(record, "output", where)  # an empty answer is one: it teaches EOS
        examples.append(Example(f"{task}/{split}/{number - 1}", instruction, text, output))
    return _split(examples, path)


def _read_json(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        return json.loads(_content(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from None


def _read_cl_benchmark(folder: Path, task: str) -> Splits:
    question = _QUESTIONS.get(folder.parent.name)
    if question is None:
        raise unknown("task type (parent folder)", folder.parent.name, _QUESTIONS)
    path = folder / "labels.json"
    labels = _list(_read_json(path), str, f"{path}: a list of labels is expected")
    instruction = f"{question} Choose one from the option. Option: {', '.join(labels)}.\n"

    def split(name: str) -> tuple[Example, ...]:
        path = folder / f"{name}.json"
        records = _list(_read_json(path), object, f"{path}: a list of rows is expected")
        examples: list[Example] = []
        for number, record in enumerate(records):
            where = f"{path}, row {number}"
            text = _text(record, "sentence", where) + "\nAnswer:"
            label = _text(record, "label", where)
            examples.append(Example(f"{task}/{name}/{number}", instruction, text, label))
        return _split(examples, path)

    return split("train"), split("test")


def _read_natural_instructions(path: Path, task: str) -> Splits:
    content = _read_json(path)
    definition = content.get("Definition") if isinstance(content, dict) else None
    definition = definition[0] if isinstance(definition, list) and definition else definition
    if not isinstance(definition, str):
        raise InputError(f"{path}: field 'Definition' must be a string or a list of strings")
    rule = f"{path}: field 'Instances' must be a list"
    # By input: an instance that occurs twice must not land in both splits.
    answers: dict[str, tuple[str, str]] = {}
    for number, instance in enumerate(_list(content.get("Instances"), object, rule)):
        where = f"{path}, instance {number}"
        text = _text(instance, "input", where)
        output = instance.get("output")
        first = output[0] if isinstance(output, list) and output else output
        answers.setdefault(text.strip(), (text, _text({"output": first}, "output", where)))
    pairs = list(answers.values())
    if len(pairs) < _NI_PARTS:
        raise InputError(
            f"{path} has {len(pairs)} instances of different input; a train and a test split need "
            f"{_NI_PARTS}"
        )
    order = permutation(len(pairs), 0, "split", task)
    held_out = min(_NI_TEST, len(pairs) // _NI_PARTS)

    def split(name: str, indices: list[int]) -> tuple[Example, ...]:
        examples: list[Example] = []
        for index in indices:
            text, answer = pairs[index]
            examples.append(Example(f"{task}/{name}/{index}", definition, text, answer))
        return tuple(examples)

    return split("train", order[held_out : held_out + _NI_TRAIN]), split("test", order[:held_out])
