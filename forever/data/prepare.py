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
from forever.data.sources import DATA_SEED, WHOLE, TaskFiles, find_tasks, limited
from forever.data.tasks import Example
from forever.errors import InputError

TRAIN = 1000
TEST_PER_CLASS = 500  # a generation task is one class
_TASKS = {"long_sequence": LONG_TASKS, "superni": ORDERS["superni"]["7"]}
_UNLABELLED = "-"  # in O-LoRA's MNLI
_TOO_MANY = "more than needed"


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

    A folder appears when it is complete. Its `sources.json` says where each task came from.

    Yields:
        A line about each task and each folder.

    Raises:
        InputError: nothing is found, a task is found twice, a file is malformed, or a folder exists
            already.
    """
    tasks = _find(source)
    found = {name: sorted(tasks.keys() & {*_TASKS[name]}) for name in _TASKS}
    found = {benchmark: names for benchmark, names in found.items() if names}
    for benchmark in found:
        if (to / benchmark).exists():
            raise InputError(
                f"{to / benchmark} exists and is never overwritten; remove it or give another --to"
            )
    to.mkdir(parents=True, exist_ok=True)
    for benchmark, names in found.items():
        with TemporaryDirectory(prefix=".prepare-", dir=to) as scratch:
            folder = Path(scratch, benchmark)
            records: dict[str, Any] = {}
            for name in names:
                train, test = _splits(tasks[name])
                _write(folder / name / "train.jsonl", train.examples)
                _write(folder / name / "test.jsonl", test.examples)
                records[name] = {"train": _record(train, source), "test": _record(test, source)}
                if "labels" in tasks[name].files:
                    records[name]["labels"] = _origin(tasks[name].files["labels"], source)
                yield f"{benchmark}/{name}: {_counts(train)}, {_counts(test)}"
            sizes = {"train": TRAIN, "test_per_class": TEST_PER_CLASS, "seed": DATA_SEED}
            text = json.dumps({**sizes, "tasks": records}, indent=2, ensure_ascii=False)
            (folder / "sources.json").write_text(text + "\n", encoding="utf-8")
            folder.rename(to / benchmark)
        missing = sorted({*_TASKS[benchmark]} - {*names})
        note = f", without {', '.join(missing)}" if missing else ""
        yield f"{to / benchmark} has {len(names)} tasks{note}"


def _find(source: Path) -> dict[str, TaskFiles]:
    """The paper's tasks in `source`, or else in its folders, or in theirs."""
    if not source.is_dir():
        raise InputError(f"there is no folder {source}; give one with data in it")
    tasks: dict[str, TaskFiles] = {}
    for folders in ([source], sorted(source.glob("*/")), sorted(source.glob("*/*/"))):
        for folder in folders:
            here = find_tasks(folder)
            for name in sorted(here.keys() & {*LONG_TASKS, *_TASKS["superni"]}):
                if name in tasks:
                    files = [next(iter(task.files.values())) for task in (tasks[name], here[name])]
                    raise InputError(
                        f"task {name} is found twice, in {files[0]} and in {files[1]}; give a "
                        "folder that has one of them"
                    )
                tasks[name] = here[name]
        if tasks:
            return tasks
    raise InputError(
        f"{source} has no task of Long Sequence or SuperNI; docs/verbs/data.md lists the layouts "
        "that are read"
    )


def _splits(task: TaskFiles) -> tuple[_Split, _Split]:
    """A task's training and test rows: those with a label, each in one split, not too many."""
    if WHOLE in task.files:
        examples, tests = task.splits()
        train = _Split("train", task.files[WHOLE], examples)
        test = _Split("test", task.files[WHOLE], tests)
    else:
        name = _test_split(task)
        train = _Split("train", task.files["train"], task.examples("train"))
        test = _Split(name, task.files[name], task.examples(name))
    for split in (train, test):
        labelled = [example for example in split.examples if example.output.strip() != _UNLABELLED]
        split.keep(labelled, "unlabelled")
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


def _test_split(task: TaskFiles) -> str:
    """The split that is tested: dev where a release has no rows for that, as O-LoRA of yahoo."""
    path = task.files["test"]
    has_rows = path.is_file() and path.read_bytes().strip() not in (b"", b"[]")
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
    path.parent.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for example in examples:
        row = {"instruction": example.instruction, "input": example.input, "output": example.output}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


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
    faults = {reason: count for reason, count in split.left_out.items() if reason != _TOO_MANY}
    costs = [f"{count} {reason}" for reason, count in faults.items() if count]
    note = f" ({', '.join(costs)} left out)" if costs else ""
    return f"{len(split.examples)} {split.name}{note}"
