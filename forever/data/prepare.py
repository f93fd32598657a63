"""`forever data prepare`: the paper's benchmarks in its sizes, from what the field has on disk."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forever.data.benchmarks import SUPERNI_CLASSIFICATION
from forever.data.orders import LONG_TASKS, ORDERS
from forever.data.sources import DATA_SEED, WHOLE, TaskFiles, add_once, find_tasks, limited
from forever.data.tasks import Example
from forever.errors import InputError
from forever.files import write_text, writing

TRAIN = 1000
TEST_PER_CLASS = 500  # a generation task is one class
_TASKS = {"long_sequence": LONG_TASKS, "superni": ORDERS["superni"]["7"]}
_UNLABELLED = "-"  # in O-LoRA's MNLI
_TOO_MANY = "more than needed"
_OTHER_SPLIT = "in the other split"  # of a file that has both


@dataclass
class _Split:
    """What is kept of a split's rows, from which of the task's files, and what was left out why."""

    name: str
    file: Path
    examples: Sequence[Example]
    left_out: dict[str, int] = field(default_factory=dict)

    def keep(self, examples: Sequence[Example], reason: str) -> None:
        """Leave out, for a reason, all rows but these."""
        self.left_out[reason] = len(self.examples) - len(examples)
        self.examples = examples


def prepare(source: Path, to: Path) -> Iterator[str]:
    """Write each of the paper's benchmarks that has tasks in `source` as a folder of `to`.

    The folders appear when all are complete. Their `sources.json` say where each task came from.

    Yields:
        A line about each task and each folder.

    Raises:
        InputError: nothing is found, a task is found twice, a file is malformed, a folder exists
            already, or `to` cannot be one.
    """
    tasks = _find(source)
    found = {name: sorted(tasks.keys() & {*_TASKS[name]}) for name in _TASKS}
    found = {benchmark: names for benchmark, names in found.items() if names}
    for benchmark in found:
        if (to / benchmark).exists():
            raise InputError(
                f"{to / benchmark} exists and is never overwritten; remove it or give another --to"
            )
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--to {to} cannot be made a folder ({error.strerror}); give another"
        ) from None
    with TemporaryDirectory(prefix=".prepare-", dir=to) as scratch:
        for benchmark, names in found.items():
            yield from _benchmark(Path(scratch, benchmark), [tasks[name] for name in names], source)
        for benchmark in found:
            Path(scratch, benchmark).rename(to / benchmark)
    for benchmark, names in found.items():
        missing = sorted({*_TASKS[benchmark]} - {*names})
        note = f", without {', '.join(missing)}" if missing else ""
        yield f"{to / benchmark} has {len(names)} tasks{note}"


def _benchmark(folder: Path, tasks: Sequence[TaskFiles], source: Path) -> Iterator[str]:
    """Write a benchmark's folder; yields a line about each task."""
    records: dict[str, Any] = {}
    for task in tasks:
        train, test = _splits(task)
        _write(folder / task.name / "train.jsonl", train.examples)
        _write(folder / task.name / "test.jsonl", test.examples)
        records[task.name] = {"train": _record(train, source), "test": _record(test, source)}
        if "labels" in task.files:
            records[task.name]["labels"] = _origin(task.files["labels"], source)
        yield f"{folder.name}/{task.name}: {_counts(train)}, {_counts(test)}"
    sizes = {"train": TRAIN, "test_per_class": TEST_PER_CLASS, "seed": DATA_SEED}
    text = json.dumps({**sizes, "tasks": records}, indent=2, ensure_ascii=False)
    write_text(folder / "sources.json", text + "\n")


def _find(source: Path) -> dict[str, TaskFiles]:
    """The paper's tasks in `source`, or else in its folders, or in theirs."""
    if not source.is_dir():
        raise InputError(f"there is no folder {source}; give one with data in it")
    tasks: dict[str, TaskFiles] = {}
    for folders in ([source], sorted(source.glob("*/")), sorted(source.glob("*/*/"))):
        for folder in folders:
            here = find_tasks(folder)
            for name in sorted(here.keys() & {*LONG_TASKS, *_TASKS["superni"]}):
                add_once(tasks, here[name])
        if tasks:
            return tasks
    raise InputError(
        f"{source} has no task of Long Sequence or SuperNI; docs/verbs/data.md lists the layouts "
        "that are read"
    )


def _splits(task: TaskFiles) -> tuple[_Split, _Split]:
    """A task's training and test rows: those with a label, each in one split, not too many."""
    if WHOLE in task.files:
        return _parted(task)
    name = _test_split(task)
    train = _Split("train", task.files["train"], task.examples("train"))
    test = _Split(name, task.files[name], task.examples(name))
    for split in (train, test):
        split.keep(_labelled(split.examples), "unlabelled")
    tested = {example.question for example in test.examples}
    train.keep([example for example in train.examples if example.question not in tested], "in test")
    train.keep(limited(tuple(train.examples), TRAIN, "train", task.name), _TOO_MANY)
    test.keep(_some_of_each_class(test.examples, task.name), _TOO_MANY)
    for split in (train, test):
        if not split.examples:
            raise InputError(
                f"{split.file}: no row with a label is left that the other split has not"
            )
    return train, test


def _parted(task: TaskFiles) -> tuple[_Split, _Split]:
    """The splits of a file that has both; each record is about all of its rows."""
    instances = task.examples(WHOLE)
    labelled = _labelled(instances)
    train, test = task.parted(labelled)
    different = len({example.question for example in labelled})
    left_out = {
        "unlabelled": len(instances) - len(labelled),
        "duplicate": len(labelled) - different,
        _TOO_MANY: different - len(train) - len(test),
    }
    return (
        _Split("train", task.files[WHOLE], train, {**left_out, _OTHER_SPLIT: len(test)}),
        _Split("test", task.files[WHOLE], test, {**left_out, _OTHER_SPLIT: len(train)}),
    )


def _labelled(examples: Sequence[Example]) -> list[Example]:
    return [example for example in examples if example.output.strip() != _UNLABELLED]


def _test_split(task: TaskFiles) -> str:
    """The split that is tested: dev where a release has no rows for that, as O-LoRA of yahoo."""
    path = task.files["test"]
    has_rows = False
    if path.is_file():
        with path.open("rb") as file:
            has_rows = file.read(64).strip() not in (b"", b"[]")
    return "test" if has_rows or not task.files["dev"].is_file() else "dev"


def _some_of_each_class(examples: Sequence[Example], task: str) -> list[Example]:
    is_classification = task in LONG_TASKS or task in SUPERNI_CLASSIFICATION
    classes: dict[str, list[Example]] = {}
    for example in examples:
        label = example.output.strip() if is_classification else ""
        classes.setdefault(label, []).append(example)
    kept: set[Example] = set()
    for label, members in classes.items():
        kept.update(limited(tuple(members), TEST_PER_CLASS, f"test {label}", task))
    return [example for example in examples if example in kept]


def _write(path: Path, examples: Sequence[Example]) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for example in examples:
        row = {"instruction": example.instruction, "input": example.input, "output": example.output}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))


def _record(split: _Split, source: Path) -> dict[str, Any]:
    return {
        **_origin(split.file, source),
        "rows": len(split.examples) + sum(split.left_out.values()),
        "left_out": split.left_out,
        "written": len(split.examples),
    }


def _origin(file: Path, source: Path) -> dict[str, str]:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"file": file.relative_to(source).as_posix(), "sha256": digest}


def _counts(split: _Split) -> str:
    """How many rows a split has, and how many a fault has cost it."""
    no_faults = (_TOO_MANY, _OTHER_SPLIT)
    faults = {reason: count for reason, count in split.left_out.items() if reason not in no_faults}
    costs = [f"{count} {reason}" for reason, count in faults.items() if count]
    note = f" ({', '.join(costs)} left out)" if costs else ""
    return f"{len(split.examples)} {split.name}{note}"
