"""Readers of task folders, which tell the layout by what is in the folder.

1. Ours: <folder>/<task>/{train,test}.jsonl with `instruction`, `input` and `output`.
2. O-LoRA's CL_Benchmark: <folder>/<TYPE>/<task>/{train,test,labels}.json, lists of objects with
   `sentence` and `label`.
3. SAPT's CL_Benchmark: <folder>/<task>/{train,test}.json with a `Definition`, and with `Instances`
   of `input` and `output`; in Long Sequence with labels.json.
4. CL_Memory and bilevel: <folder>/{train,test}/<task>.json, lists of objects with the fields of 1.
5. Super-NaturalInstructions: <folder>/<task>*.json, one file a task, with the fields of 3.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, TypeAdapter

from forever.data.tasks import Example, Splits
from forever.errors import InputError, shown, unknown
from forever.files import Entries
from forever.reading import Text, decode, fault_of, is_folder, parse_json, read_file
from forever.seeding import permutation

# A row limit keeps the same rows in every run: seeds differ in training, not in what is measured.
DATA_SEED = 0

# Layout 2 ships no instructions. These are the questions of its fifteen tasks by type, from O-LoRA
# and WoodScene/bilevel. WoodScene/AimMerging asks them of layout 3, too, which has others.
_QUESTIONS = {
    "TC": "What is the topic of the following paragraph?",
    "SC": "What is the sentiment of the following paragraph?",
    "NLI": 'What is the logical relationship between the "sentence 1" and the "sentence 2"?',
    "QQP": 'Whether the "first sentence" and the "second sentence" have the same meaning?',
    "WiC": "Given a word and two sentences, whether the word is used with the same sense in both "
    "sentence?",
    "COPA": "According to the following passage, is the question true or false?",
    "BoolQA": "According to the following passage, is the question true or false?",
    "MultiRC": "According to the following passage and question, is the candidate answer true or "
    "false?",
}
_TYPES = {
    "TC": ("dbpedia", "yahoo", "agnews"),
    "SC": ("yelp", "amazon", "sst-2", "imdb"),
    "NLI": ("mnli", "rte", "cb"),
    "QQP": ("qqp",),
    "WiC": ("wic",),
    "COPA": ("copa",),
    "BoolQA": ("boolqa",),
    "MultiRC": ("multirc",),
}
_TYPE_OF = {task: kind for kind, tasks in _TYPES.items() for task in tasks}
# Layout 5 has one list of instances; the paper's sizes are 1000 and 100 (docs/protocol.md).
_NI_TRAIN, _NI_TEST = 1000, 100
_NI_PARTS = 5  # of a short list a fifth is held out
WHOLE = "instances"  # the key of a file that has all of a task
_OTHER_NAMES = {"boolq": "boolqa", "sst2": "sst-2"}  # SAPT's
_LONGEST_FILE, _LONGEST_LINE = 2**28, 2**22  # bytes


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


_FirstText = Annotated[Text, BeforeValidator(_first)]


class _Row(BaseModel):
    instruction: Text
    input: Text
    output: Text  # an empty answer is one: it teaches EOS


class _Sentence(BaseModel):
    sentence: Text
    label: Text


class _Instance(BaseModel):
    input: Text
    output: _FirstText


class _Instances(BaseModel):
    Instances: Entries[_Instance]


class _NaturalTask(_Instances):
    Definition: _FirstText


_ROW, _ROWS = TypeAdapter(_Row), TypeAdapter(Entries[_Row])
_SENTENCES = TypeAdapter(Entries[_Sentence])
_INSTANCES, _NATURAL = TypeAdapter(_Instances), TypeAdapter(_NaturalTask)
_LABELS = TypeAdapter(Entries[Text])


@dataclass(frozen=True)
class TaskFiles:
    """The files of a task by split (train, dev, test), or one under `WHOLE`; some may not exist."""

    name: str
    files: Mapping[str, Path]
    read: Callable[[Path], dict[int, _Row]]  # the rows of a file by their number

    def splits(self) -> Splits:
        """The training and test examples.

        Raises:
            InputError: a file that is missing, empty or malformed (with its line).
        """
        if WHOLE in self.files:
            return self.parted(self.examples(WHOLE))
        return self.examples("train"), self.examples("test")

    def examples(self, split: str) -> tuple[Example, ...]:
        """The examples of a split; InputError as in `splits`."""
        examples: list[Example] = []
        for number, row in self.read(self.files[split]).items():
            place = f"{self.name}/{split}/{number}"
            examples.append(Example(place, row.instruction, row.input, row.output))
        if not examples:
            raise InputError(f"{self.files[split]} is empty; a split needs at least one row")
        return tuple(examples)

    def parted(self, instances: Sequence[Example]) -> Splits:
        """Part the instances of one file by a fixed seed, each input once.

        Raises:
            InputError: they are too few.
        """
        # By input: an instance that occurs twice must not land in both splits.
        by_input: dict[str, Example] = {}
        for example in instances:
            by_input.setdefault(example.input.strip(), example)
        different = list(by_input.values())
        if len(different) < _NI_PARTS:
            raise InputError(
                f"{self.files[WHOLE]} has {len(different)} instances of different input; a "
                f"train and a test split need {_NI_PARTS}"
            )
        order = permutation(len(different), 0, "split", self.name)
        held_out = min(_NI_TEST, len(different) // _NI_PARTS)
        train: list[Example] = []
        test: list[Example] = []
        for position, index in enumerate(order[: held_out + _NI_TRAIN]):
            split, examples = ("test", test) if position < held_out else ("train", train)
            examples.append(replace(different[index], id=f"{self.name}/{split}/{index}"))
        return tuple(train), tuple(test)


def find_tasks(folder: Path) -> dict[str, TaskFiles]:
    """The tasks in a benchmark folder by name, in alphabetical order.

    Raises:
        InputError: a name is no text, or comes twice, from different files.
    """
    tasks: list[TaskFiles] = []
    if not is_folder(folder):
        return {}
    for path in sorted(folder.glob("*/train.jsonl")):
        tasks.append(TaskFiles(path.parent.name, _beside(path), _read_jsonl))
    for path in sorted(folder.glob("*/*/train.json")):
        files = _beside(path) | {"labels": path.with_name("labels.json")}
        # Otherwise it is layout 3, seen from the folder above.
        if path.parent.parent.name in _TYPES or (files["labels"].is_file() and _is_list(path)):
            tasks.append(TaskFiles(path.parent.name.lower(), files, _read_sentences))
    for path in sorted(folder.glob("*/train.json")):
        name, files, read = _name(path.parent.name), _beside(path), _read_instances
        if name in _TYPE_OF and path.with_name("labels.json").is_file():
            files, read = files | {"labels": path.with_name("labels.json")}, _read_labelled
        tasks.append(TaskFiles(name, files, read))
    for path in sorted(folder.glob("train/*.json")):
        files = {split: folder / split / path.name for split in ("train", "dev", "test")}
        tasks.append(TaskFiles(_name(path.stem), files, _read_list))
    for path in sorted(folder.glob("task*.json")):
        tasks.append(TaskFiles(_name(path.stem), {WHOLE: path}, _read_instances))
    by_name: dict[str, TaskFiles] = {}
    for task in tasks:
        if fault_of(task.name):  # the system allows any bytes
            raise InputError(
                f"{folder}: the task's name {shown(task.name)} is not UTF-8; rename it"
            )
        add_once(by_name, task)
    return dict(sorted(by_name.items()))


def add_once(tasks: dict[str, TaskFiles], task: TaskFiles) -> None:
    """Add a task by its name, which may be there already if its files are the same.

    Raises:
        InputError: a task of this name has other files.
    """
    other = tasks.setdefault(task.name, task)
    files = [next(iter(found.files.values())) for found in (other, task)]
    if files[0].resolve() != files[1].resolve():
        raise InputError(
            f"task {task.name} is found twice, in {files[0]} and in {files[1]}; keep one of them, "
            "or give a folder that has one"
        )


def limited(
    rows: tuple[Example, ...], limit: int | None, split: str, task: str
) -> tuple[Example, ...]:
    """At most `limit` rows of a split, in their order and the same ones in every run."""
    if limit is None or limit >= len(rows):
        return rows
    kept = sorted(permutation(len(rows), DATA_SEED, "rows", split, task)[:limit])
    return tuple(rows[i] for i in kept)


def _beside(train: Path) -> dict[str, Path]:
    """The files of the splits that are beside the training file."""
    return {split: train.with_stem(split) for split in ("train", "dev", "test")}


def _is_list(path: Path) -> bool:
    """Whether a JSON file begins as a list does."""
    try:
        with path.open("rb") as file:
            return file.read(100).lstrip().startswith(b"[")
    except OSError:  # a folder, or nothing that may be read
        return False


def _name(name: str) -> str:
    """The name of a task in the orders: task363 of task363_sst2_polarity_classification."""
    numbered = re.match(r"task\d+(?=_)", name)
    return numbered[0] if numbered else _OTHER_NAMES.get(name, name)


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise InputError(f"there is no file {path}; the layouts are listed in docs/verbs/data.md")
    return read_file(path, _LONGEST_FILE)


def _parsed(kind: TypeAdapter[Any], path: Path) -> Any:
    return parse_json(decode(_content(path), path), kind, str(path))


def _read_jsonl(path: Path) -> dict[int, _Row]:
    rows: dict[int, _Row] = {}
    for number, line in enumerate(_content(path).split(b"\n")):
        where = f"{path}, line {number + 1}"
        if len(line) > _LONGEST_LINE:
            raise InputError(f"{where} has {len(line)} bytes, of {_LONGEST_LINE} that are read")
        if line.strip():
            rows[number] = parse_json(decode(line, path, number + 1), _ROW, where)
    return rows


def _read_list(path: Path) -> dict[int, _Row]:
    return dict(enumerate(_parsed(_ROWS, path)))


def _read_instances(path: Path) -> dict[int, _Row]:
    content = _parsed(_NATURAL, path)
    rows: dict[int, _Row] = {}
    for number, instance in enumerate(content.Instances):
        rows[number] = _Row(
            instruction=content.Definition, input=instance.input, output=instance.output
        )
    return rows


def _read_labelled(path: Path) -> dict[int, _Row]:
    instruction = _asked(_TYPE_OF[_name(path.parent.name)], path.with_name("labels.json"))
    rows: dict[int, _Row] = {}
    for number, row in enumerate(_parsed(_INSTANCES, path).Instances):
        text = f"{row.input}\nAnswer:"
        rows[number] = _Row(instruction=instruction, input=text, output=row.output)
    return rows


def _read_sentences(path: Path) -> dict[int, _Row]:
    instruction = _asked(path.parent.parent.name, path.with_name("labels.json"))
    rows: dict[int, _Row] = {}
    for number, row in enumerate(_parsed(_SENTENCES, path)):
        text = f"{row.sentence}\nAnswer:"
        rows[number] = _Row(instruction=instruction, input=text, output=row.label)
    return rows


def _asked(kind: str, labels: Path) -> str:
    """The instruction of a type of tasks with the labels in a file."""
    if kind not in _QUESTIONS:
        raise unknown("task type (parent folder)", kind, _QUESTIONS)
    options = ", ".join(_parsed(_LABELS, labels))
    return f"{_QUESTIONS[kind]} Choose one from the option. Option: {options}.\n"
