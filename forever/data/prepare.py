"""`forever data prepare`: the paper's benchmarks in its sizes, from what the field has on disk."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forever.config.orders import LONG_TASKS, ORDERS
from forever.data.benchmarks import SUPERNI_CLASSIFICATION
from forever.data.sources import DATA_SEED, WHOLE, TaskFiles, add_once, find_tasks, limited
from forever.data.tasks import Example
from forever.errors import InputError
from forever.files import writing

TRAIN = 1000
TEST_PER_CLASS = 500  # a generation task is one class
_TASKS = {"long_sequence": LONG_TASKS, "superni": ORDERS["superni"]["7"]}
_UNLABELLED = "-"  # in O-LoRA's MNLI
_TOO_MANY = "more than needed"
_OTHER_SPLIT = "in the other split"  # of a file that has both


@dataclass
class _Split:
    """The rows of a split that are kept, their file, and the number left out by reason."""

    name: str
    file: Path
    examples: Sequence[Example]
    left_out: dict[str, int] = field(default_factory=dict)

    def keep(self, examples: Sequence[Example], reason: str) -> None:
        """Leave out, for a reason, all rows but these."""
        self.left_out[reason] = len(self.examples) - len(examples)
        self.examples = examples

    def record(self, source: Path) -> dict[str, Any]:
        """Return what `sources.json` says of the split."""
        rows = len(self.examples) + sum(self.left_out.values())
        return {**_origin(self.file, source), "rows": rows, "left_out": self.left_out,
                "written": len(self.examples)}  # fmt: skip

    def __str__(self) -> str:
        """Say how many rows there are, and how many a fault has cost."""
        costs = [f"{count} {reason}" for reason, count in self.left_out.items()
                 if count and reason not in (_TOO_MANY, _OTHER_SPLIT)]  # fmt: skip
        note = f" ({', '.join(costs)} left out)" if costs else ""
        return f"{len(self.examples)} {self.name}{note}"


def prepare(source: Path, to: Path) -> Iterator[str]:
    """Write each of the paper's benchmarks that has tasks in `source` as a folder of `to`.

    The folders appear when all are complete. Their `sources.json` say where each task came from.

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
                f"{to / benchmark} exists and is never overwritten; remove it or give another --to",
                path=to / benchmark,
            )
    with writing(to):
        to.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".prepare-", dir=to) as scratch:
        for benchmark, names in found.items():
            yield from _write(Path(scratch, benchmark), [tasks[name] for name in names], source)
        for benchmark in found:
            Path(scratch, benchmark).rename(to / benchmark)
    for benchmark, names in found.items():
        missing = sorted({*_TASKS[benchmark]} - {*names})
        note = f", without {', '.join(missing)}" if missing else ""
        yield f"{to / benchmark} has {len(names)} tasks{note}"


def _find(source: Path) -> dict[str, TaskFiles]:
    """Return the paper's tasks in `source`, or else in its folders, or in theirs."""
    tasks: dict[str, TaskFiles] = {}
    for folders in ([source], sorted(source.glob("*/")), sorted(source.glob("*/*/"))):
        for folder in folders:
            here = find_tasks(folder)
            for name in sorted(here.keys() & {*LONG_TASKS, *_TASKS["superni"]}):
                add_once(tasks, here[name])
        if tasks:
            return tasks
    raise InputError(
        f"{source} has no task of Long Sequence or SuperNI; docs/verbs/data.md lists the layouts",
        path=source,
    )


def _write(folder: Path, tasks: Sequence[TaskFiles], source: Path) -> Iterator[str]:
    """Write a benchmark's folder; yields a line about each task."""
    records: dict[str, Any] = {}
    for task in tasks:
        train, test = _parted(task) if WHOLE in task.files else _splits(task)
        for split, part in (("train", train), ("test", test)):
            rows = [{"instruction": each.instruction, "input": each.input, "output": each.output}
                    for each in part.examples]  # fmt: skip
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
            with writing(folder / task.name):
                (folder / task.name).mkdir(parents=True, exist_ok=True)
                (folder / task.name / f"{split}.jsonl").write_text("".join(lines), "utf-8")
        records[task.name] = {"train": train.record(source), "test": test.record(source)}
        if "labels" in task.files:
            records[task.name]["labels"] = _origin(task.files["labels"], source)
        yield f"{folder.name}/{task.name}: {train}, {test}"
    sizes = {"train": TRAIN, "test_per_class": TEST_PER_CLASS, "seed": DATA_SEED}
    text = json.dumps({**sizes, "tasks": records}, indent=2, ensure_ascii=False)
    with writing(folder):
        (folder / "sources.json").write_text(text + "\n", "utf-8")


def _splits(task: TaskFiles) -> tuple[_Split, _Split]:
    """Return a task's training and test rows: labelled, each in one split, and not too many."""
    # A release may have no rows to test, as O-LoRA's of yahoo: dev stands in.
    path, dev = task.files["test"], task.files["dev"]
    is_empty = not path.is_file() or path.stat().st_size < 4  # [] is a list without rows
    tested = "dev" if is_empty and dev.is_file() else "test"
    train = _Split("train", task.files["train"], task.examples("train"))
    test = _Split(tested, task.files[tested], task.examples(tested))
    for split in (train, test):
        split.keep(_labelled(split.examples), "unlabelled")
    questions = {example.question for example in test.examples}
    train.keep([each for each in train.examples if each.question not in questions], "in test")
    train.keep(limited(tuple(train.examples), TRAIN, "train", task.name), _TOO_MANY)
    # At most so many test rows of each class.
    is_classification = task.name in LONG_TASKS or task.name in SUPERNI_CLASSIFICATION
    classes: dict[str, list[Example]] = {}
    for example in test.examples:
        label = example.output.strip() if is_classification else ""
        classes.setdefault(label, []).append(example)
    kept: set[Example] = set()
    for label, members in classes.items():
        kept.update(limited(tuple(members), TEST_PER_CLASS, f"test {label}", task.name))
    test.keep([example for example in test.examples if example in kept], _TOO_MANY)
    for split in (train, test):
        if not split.examples:
            problem = "has no labelled row that is not in the other split"
            raise InputError(f"{split.file}: {problem}", path=split.file)
    return train, test


def _parted(task: TaskFiles) -> tuple[_Split, _Split]:
    """Return the splits of a file that has both; each record is about all of its rows."""
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


def _origin(file: Path, source: Path) -> dict[str, str]:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"file": file.relative_to(source).as_posix(), "sha256": digest}
