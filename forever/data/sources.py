"""Readers of task folders, which tell the layout by what is in the folder.

1. Ours: <folder>/<task>/{train,test}.jsonl with `instruction`, `input` and `output`.
2. O-LoRA's CL_Benchmark: <folder>/<TYPE>/<task>/{train,test,labels}.json, lists of objects with
   `sentence` and `label`.
3. Super-NaturalInstructions: <folder>/<task>*.json with a `Definition`, and with `Instances` of
   `input` and `output`.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from forever.data.tasks import Example, Splits
from forever.errors import InputError, unknown
from forever.seeding import permutation

# A row limit keeps the same rows in every run: seeds differ in training, not in what is measured.
DATA_SEED = 0

# Layout 2 ships no instructions. These are the questions of its fifteen tasks by type, from O-LoRA
# and WoodScene/bilevel.
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
# Layout 3 has one list of instances; the paper's sizes are 1000 and 100 (docs/protocol.md).
_NI_TRAIN, _NI_TEST = 1000, 100
_NI_PARTS = 5  # of a short list a fifth is held out


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


_FirstText = Annotated[str, BeforeValidator(_first)]


class _Row(BaseModel):
    instruction: str
    input: str
    output: str  # an empty answer is one: it teaches EOS


class _Sentence(BaseModel):
    sentence: str
    label: str


class _Instance(BaseModel):
    input: str
    output: _FirstText


class _NaturalTask(BaseModel):
    Definition: _FirstText
    Instances: list[_Instance]


def task_names(folder: Path) -> list[str]:
    """The tasks found in a benchmark folder, in alphabetical order."""
    names = {path.parent.name for path in folder.glob("*/train.jsonl")}
    names |= {path.parent.name.lower() for path in folder.glob("*/*/train.json")}
    names |= {path.stem.split("_")[0] for path in folder.glob("task*.json")}
    return sorted(names)


def read_task(folder: Path, name: str) -> Splits:
    """The training and test examples of one task.

    Raises:
        InputError: no such task, or a file that is missing, empty or malformed (with its line).
    """
    if (folder / name).is_dir():
        return _read_jsonl(folder / name, name, "train"), _read_jsonl(folder / name, name, "test")
    for path in sorted(folder.glob("*/*/train.json")):
        if path.parent.name.lower() == name.lower():
            return _read_cl_benchmark(path.parent, name)
    for path in [*sorted(folder.glob(f"{name}_*.json")), *folder.glob(f"{name}.json")]:
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


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise InputError(f"there is no file {path}; the layouts are listed in docs/verbs/data.md")
    return path.read_bytes()


def _parsed(kind: Any, content: bytes, where: str) -> Any:
    """Read JSON that must hold `kind`.

    Raises:
        InputError: it does not; the message has the place, the rule and the value.
    """
    try:
        return TypeAdapter(kind).validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ", ".join([where, *(str(part) for part in problem["loc"])])
        rule = problem["msg"][0].lower() + problem["msg"][1:]
        raise InputError(f"{place}: {rule} ({str(problem['input'])[:60]!r})") from None


def _nonempty(examples: list[Example], path: Path) -> tuple[Example, ...]:
    if not examples:
        raise InputError(f"{path} is empty; a split needs at least one row")
    return tuple(examples)


def _read_jsonl(folder: Path, task: str, split: str) -> tuple[Example, ...]:
    path = folder / f"{split}.jsonl"
    examples: list[Example] = []
    for number, line in enumerate(_content(path).split(b"\n")):
        if line.strip():
            row = _parsed(_Row, line, f"{path}, line {number + 1}")
            place = f"{task}/{split}/{number}"
            examples.append(Example(place, row.instruction, row.input, row.output))
    return _nonempty(examples, path)


def _read_cl_benchmark(folder: Path, task: str) -> Splits:
    question = _QUESTIONS.get(folder.parent.name)
    if question is None:
        raise unknown("task type (parent folder)", folder.parent.name, _QUESTIONS)
    path = folder / "labels.json"
    labels = _parsed(list[str], _content(path), str(path))
    instruction = f"{question} Choose one from the option. Option: {', '.join(labels)}.\n"

    def split(name: str) -> tuple[Example, ...]:
        path = folder / f"{name}.json"
        examples: list[Example] = []
        for number, row in enumerate(_parsed(list[_Sentence], _content(path), str(path))):
            text = f"{row.sentence}\nAnswer:"
            examples.append(Example(f"{task}/{name}/{number}", instruction, text, row.label))
        return _nonempty(examples, path)

    return split("train"), split("test")


def _read_natural_instructions(path: Path, task: str) -> Splits:
    content = _parsed(_NaturalTask, _content(path), str(path))
    # By input: an instance that occurs twice must not land in both splits.
    by_input: dict[str, _Instance] = {}
    for instance in content.Instances:
        by_input.setdefault(instance.input.strip(), instance)
    instances = list(by_input.values())
    if len(instances) < _NI_PARTS:
        raise InputError(
            f"{path} has {len(instances)} instances of different input; a train and a test split "
            f"need {_NI_PARTS}"
        )
    order = permutation(len(instances), 0, "split", task)
    held_out = min(_NI_TEST, len(instances) // _NI_PARTS)

    def split(name: str, indices: list[int]) -> tuple[Example, ...]:
        examples: list[Example] = []
        for index in indices:
            row = instances[index]
            place = f"{task}/{name}/{index}"
            examples.append(Example(place, content.Definition, row.input, row.output))
        return tuple(examples)

    return split("train", order[held_out : held_out + _NI_TRAIN]), split("test", order[:held_out])
