"""Task folders in the layouts of the field: a task's files are found, and read as examples.

Each layout is one function that yields the tasks of a folder, and one that reads a file's rows; to
add a layout, write both and name the first in `LAYOUTS`. `rows` has the shapes that a row may have.

1. Ours: <folder>/<task>/{train,test}.jsonl with a row of `rows` in each line, or in another
   format of `formats`; <folder>/{train,test}.jsonl is one task, and so is <folder>/<task>.jsonl
   in a folder of such files.
2. O-LoRA's CL_Benchmark: <folder>/<TYPE>/<task>/{train,test,labels}.json, lists of objects with
   `sentence` and `label`.
3. SAPT's CL_Benchmark: <folder>/<task>/{train,test}.json with a `Definition`, and with `Instances`
   of `input` and `output`; in Long Sequence with labels.json.
4. CL_Memory and bilevel: <folder>/{train,test}/<task>.json, lists of the rows of 1.
5. Super-NaturalInstructions: <folder>/<task>*.json, one file a task, with the fields of 3.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, FailFast, TypeAdapter

from forever.data.formats import ENDINGS, LARGEST_FILE, Rows, read_rows
from forever.data.rows import Row
from forever.data.tasks import Example, Splits
from forever.errors import InputError, Missing, unknown
from forever.reading import Text, is_folder, parse_json, read_text
from forever.seeding import permutation

# A row limit keeps the same rows in every run: seeds differ in training, not in what is measured.
DATA_SEED = 0
WHOLE = "instances"  # the key of a file that has all of a task
# Layout 5 has one list of instances; the paper's sizes are 1000 and 100 (docs/protocol.md).
_NI_TRAIN, _NI_TEST = 1000, 100
_NI_PARTS = 5  # of a short list a fifth is held out


@dataclass(frozen=True)
class TaskFiles:
    """The files of a task by split (train, dev, test), or one under `WHOLE`; some may not exist."""

    name: str
    files: Mapping[str, Path]
    read: Callable[[Path], Rows]
    most: int | None = None  # training examples that are taken of a file that has all

    @property
    def has_train(self) -> bool:
        """Whether there are training examples, and not test examples alone."""
        return next(iter(self.files.values())).is_file()

    def splits(self, needs_test: bool = True) -> Splits:
        """Read the training and test examples.

        Raises:
            InputError: a file is empty or malformed; the message has its row or line.
            Missing: a file does not exist.
        """
        if WHOLE in self.files:
            return self.parted(self.examples(WHOLE))
        train, test = self.examples("train"), self.files["test"]
        if test.is_file():
            return train, self.examples("test")
        if needs_test:
            raise Missing(
                f"{test} does not exist; put the examples there that are to be scored, or hold "
                "out a share of those of train by data.validation=0.1",
                path=test,
            )
        return train, ()

    def origin(self) -> str:
        """Say which files are read, and by which keys."""
        _, row = next(self.read(next(iter(self.files.values()))))
        if WHOLE in self.files:
            return f"{self.files[WHOLE].name}, of which a part is held out: {row.shape}"
        files = (self.files["train"], self.files["test"])
        names = [path.name for path in files if path.is_file()]
        return f"{' and '.join(names)}: {row.shape}"

    def examples(self, split: str) -> tuple[Example, ...]:
        """Read the examples of a split; raises as `splits`."""
        examples: list[Example] = []
        for number, row in self.read(self.files[split]):
            examples.append(row.example(f"{self.name}/{split}/{number}"))
        if not examples:
            path = self.files[split]
            raise InputError(f"{path} is empty; a split needs at least one row", path=path)
        return tuple(examples)

    def parted(self, instances: Sequence[Example]) -> Splits:
        """Divide the instances of one file by a fixed seed, each input once."""
        # By question: an instance that occurs twice must not land in both splits.
        by_question: dict[tuple[str, ...], Example] = {}
        for example in instances:
            by_question.setdefault(example.question, example)
        different = list(by_question.values())
        if len(different) < _NI_PARTS:
            path = self.files[WHOLE]
            raise InputError(
                f"{path} has {len(different)} instances of different input; a train and a test "
                f"split need {_NI_PARTS}",
                path=path,
            )
        order = permutation(len(different), 0, "split", self.name)
        held_out = min(_NI_TEST, len(different) // _NI_PARTS)
        train: list[Example] = []
        test: list[Example] = []
        count = len(order) if self.most is None else held_out + self.most
        for position, index in enumerate(order[:count]):
            split, examples = ("test", test) if position < held_out else ("train", train)
            examples.append(replace(different[index], id=f"{self.name}/{split}/{index}"))
        return tuple(train), tuple(test)


def find_tasks(folder: Path, past: bool = False) -> dict[str, TaskFiles]:
    """Return the tasks in a benchmark folder by name, in alphabetical order; a file is one task.

    Args:
        past: whether tasks count of which there are test examples alone.

    Raises:
        InputError: two different files have a task of one name.
    """
    if folder.name.endswith(ENDINGS) and folder.is_file():
        return {_stem(folder): TaskFiles(_stem(folder), {WHOLE: folder}, read_rows)}
    tasks: dict[str, TaskFiles] = {}
    tested: dict[str, TaskFiles] = {}
    for layout in LAYOUTS if is_folder(folder) else ():
        for task in layout(folder):
            if task.has_train:
                add_once(tasks, task)
            elif past:
                tested.setdefault(task.name, task)
    return dict(sorted((tested | tasks).items()))


def add_once(tasks: dict[str, TaskFiles], task: TaskFiles) -> None:
    """Add a task by its name; a task of this name with other files is an InputError."""
    other = tasks.setdefault(task.name, task)
    ours, theirs = (next(iter(each.files.values())) for each in (task, other))
    if ours.resolve() != theirs.resolve():
        raise InputError(
            f"task {task.name} is found twice, in {theirs} and in {ours}; keep one of them, or "
            "give a folder that has one",
            path=ours,
        )


def limited(
    rows: tuple[Example, ...], limit: int | None, split: str, task: str
) -> tuple[Example, ...]:
    """Return at most `limit` rows of a split, in their order and the same ones in every run."""
    if limit is None or limit >= len(rows):
        return rows
    kept = sorted(permutation(len(rows), DATA_SEED, "rows", split, task)[:limit])
    return tuple(rows[i] for i in kept)


# ---- layout 1: ours


_TESTS = ("test", "validation", "valid", "val", "eval", "dev")  # the first that is there
_NO_TASKS = {"train", *_TESTS, "labels", "sources", "index", "dataset_infos"}  # names of files


def _ours(folder: Path) -> Iterator[TaskFiles]:
    for home in (folder, *sorted(filter(is_folder, folder.iterdir()))):
        tests = list(chain.from_iterable(_named(home, name) for name in _TESTS))
        for path in [*_named(home, "train")] or tests[:1]:
            # A list beside labels is of layout 2, and an object with instances of layout 3.
            if not (home / "labels.json").is_file() and _holds_rows(path):
                ending = path.name.removeprefix(_stem(path))
                test = next(iter(tests), home / f"test{ending}")
                dev = next(_named(home, "dev"), home / f"dev{ending}")
                files = {"train": home / f"train{ending}", "dev": dev, "test": test}
                yield TaskFiles(home.absolute().name, files, read_rows)


def _files_of_tasks(folder: Path) -> Iterator[TaskFiles]:
    """Yield the files of a folder that has no folders, each of them a task."""
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if any(map(is_folder, paths)) or any(_named(folder, "train")):
        return
    for path in paths:
        # JSON that is not a list may be anything.
        is_table = path.name.endswith(ENDINGS) and (path.suffix != ".json" or _is_list(path))
        if is_table and _stem(path) not in _NO_TASKS:
            yield TaskFiles(_stem(path), {WHOLE: path}, read_rows)


def _named(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files of a name, whatever their format."""
    return filter(Path.is_file, (folder / f"{name}{ending}" for ending in ENDINGS))


def _stem(path: Path) -> str:
    """Return a file's name without the ending of its format."""
    return path.name.removesuffix(".gz").rpartition(".")[0]


def _holds_rows(path: Path) -> bool:
    """Return whether a file has rows, not one object with all of a task."""
    if path.suffix != ".json":
        return True
    with path.open("rb") as file:
        start = file.read(4096)
    return not start.lstrip().startswith(b"{") or not _OF_RELEASES.search(start)


# ---- layout 2: O-LoRA's CL_Benchmark

# It ships no instructions. These are the questions of its fifteen tasks by type, from O-LoRA and
# WoodScene/bilevel. WoodScene/AimMerging asks them of layout 3, too, which has others.
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


class _Sentence(BaseModel):
    sentence: Text
    label: Text


def _by_type(folder: Path) -> Iterator[TaskFiles]:
    for path in _releases(folder, "*/*"):
        files = _beside(path, "labels")
        # Otherwise it is layout 3, seen from the folder above.
        if path.parent.parent.name in _TYPES or (files["labels"].is_file() and _is_list(path)):
            yield TaskFiles(path.parent.name.lower(), files, _read_sentences)


def _read_sentences(path: Path) -> Rows:
    question = _question(path.parent.parent.name, path.with_name("labels.json"))
    for number, row in enumerate(_parsed(_SENTENCES, path)):
        text = f"{row.sentence}\nAnswer:"
        yield number, Row(instruction=question, input=text, output=row.label)


def _question(kind: str, labels: Path) -> str:
    """Return the instruction of a type of tasks, with the labels in a file."""
    if kind not in _QUESTIONS:
        raise unknown("task type (parent folder)", kind, _QUESTIONS)
    options = ", ".join(_parsed(_LABELS, labels))
    return f"{_QUESTIONS[kind]} Choose one from the option. Option: {options}.\n"


def _is_list(path: Path) -> bool:
    """Return whether a JSON file begins as a list does."""
    with path.open("rb") as file:
        return file.read(100).lstrip().startswith(b"[")


# ---- layouts 3 and 5: SAPT's CL_Benchmark and Super-NaturalInstructions


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


_FirstText = Annotated[Text, BeforeValidator(_first)]


class _Instance(BaseModel):
    input: Text
    output: _FirstText


class _Instances(BaseModel):
    Instances: Annotated[list[_Instance], FailFast()]


class _NaturalTask(_Instances):
    Definition: _FirstText


def _by_task(folder: Path) -> Iterator[TaskFiles]:
    for path in _releases(folder, "*"):
        name, files = _name(path.parent.name), _beside(path, "labels")
        if not files["labels"].is_file() and _holds_rows(path):
            continue  # of layout 1
        if name in _TYPE_OF and files["labels"].is_file():
            yield TaskFiles(name, files, _read_labelled)
        else:
            yield TaskFiles(name, _beside(path), _read_instances)


def _one_file(folder: Path) -> Iterator[TaskFiles]:
    for path in sorted(folder.glob("task*.json")):
        yield TaskFiles(_name(path.stem), {WHOLE: path}, _read_instances, _NI_TRAIN)


def _read_instances(path: Path) -> Rows:
    task = _parsed(_NATURAL, path)
    for number, each in enumerate(task.Instances):
        yield number, Row(instruction=task.Definition, input=each.input, output=each.output)


def _read_labelled(path: Path) -> Rows:
    question = _question(_TYPE_OF[_name(path.parent.name)], path.with_name("labels.json"))
    for number, each in enumerate(_parsed(_INSTANCES, path).Instances):
        text = f"{each.input}\nAnswer:"
        yield number, Row(instruction=question, input=text, output=each.output)


# ---- layout 4: CL_Memory and bilevel


def _by_split(folder: Path) -> Iterator[TaskFiles]:
    paths = chain.from_iterable(folder.glob(f"{split}/*.json") for split in ("train", "test"))
    for name in sorted({path.name for path in paths}):
        files = {split: folder / split / name for split in ("train", "dev", "test")}
        yield TaskFiles(_name(Path(name).stem), files, read_rows)


# ---- what layouts share

LAYOUTS = (_ours, _by_type, _by_task, _by_split, _one_file, _files_of_tasks)
_OF_RELEASES = re.compile(rb'"(Definition|Instances)"')
_SENTENCES = TypeAdapter(Annotated[list[_Sentence], FailFast()])
_INSTANCES, _NATURAL = TypeAdapter(_Instances), TypeAdapter(_NaturalTask)
_LABELS = TypeAdapter(list[Text])
_OTHER_NAMES = {"boolq": "boolqa", "sst2": "sst-2"}  # SAPT's


def _releases(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the training file of each folder of a task, or its test file if that is gone."""
    for task in sorted(folder.glob(pattern)):
        paths = (task / "train.json", task / "test.json")
        yield from [path for path in paths if path.is_file()][:1]


def _beside(path: Path, *others: str) -> dict[str, Path]:
    """Return the files of the splits, and others, that are in the folder of one of them."""
    return {name: path.with_stem(name) for name in ("train", "dev", "test", *others)}


def _name(name: str) -> str:
    """Return the name of a task in the orders: task363 of task363_sst2_polarity_classification."""
    numbered = re.match(r"task\d+(?=_)", name)
    return numbered[0] if numbered else _OTHER_NAMES.get(name, name)


def _parsed(kind: TypeAdapter[Any], path: Path) -> Any:
    return parse_json(read_text(path, LARGEST_FILE), kind, path)
