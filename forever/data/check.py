"""`forever data check`: every task of a folder or of a run, read and checked as a run would."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from forever.config.parts import DataConfig
from forever.config.run import RunConfig
from forever.data.benchmarks import FOLDERS, find_source
from forever.data.encoding import Encoder
from forever.data.prompts import prompt
from forever.data.sources import find_tasks
from forever.data.tasks import Example, Task
from forever.errors import InputError, unknown
from forever.reading import is_folder
from forever.text import Cell, PlainTable, shortened

_MOST_LABELS = 4  # that are shown with their numbers
_LONGEST_LABEL = 24


@dataclass
class Checked:
    """The tasks that can be read, each with its benchmark, and what a run would refuse."""

    where: str
    tasks: list[tuple[str, Task]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def several(self) -> bool:
        """Whether the tasks are of more than one benchmark."""
        return len({benchmark for benchmark, _ in self.tasks}) > 1

    @property
    def title(self) -> str:
        """Where the tasks are, and of which benchmark, whose rules hold for them."""
        names = {benchmark for benchmark, _ in self.tasks}
        one = f" (benchmark {names.pop()})" if len(names) == 1 else ""
        return f"tasks in {self.where}{one}"

    def called(self, benchmark: str, task: Task) -> str:
        """What a task is called in a table."""
        return f"{benchmark}/{task.name}" if self.several else task.name


def read_tasks(place: Path | RunConfig, only: Collection[str] = ()) -> Checked:
    """Read the tasks of a folder of benchmarks, or of a run's one benchmark.

    Args:
        only: names of tasks; none of them means all.

    Raises:
        InputError: nothing is found.
    """
    where = str(place) if isinstance(place, Path) else "the run's data"
    checked = Checked(where)
    if isinstance(place, RunConfig):
        configs = iter([place.data])
    else:
        configs = _benchmarks_in(place, checked.problems)
    names: set[str] = set()
    for config in configs:
        for name, task in _tasks(config, checked.problems, only):
            names.add(name)
            if task is not None:
                checked.tasks.append((config.benchmark, task))
    if not names and not checked.problems:
        raise InputError(
            f"{place} has no benchmark folder with tasks; the layouts are listed in "
            "docs/verbs/data.md"
        )
    for name in only:
        if name not in names:
            raise unknown(f"task in {where}", name, names)
    return checked


def _tasks(
    config: DataConfig, problems: list[str], only: Collection[str]
) -> Iterator[tuple[str, Task | None]]:
    """Yield the names of a benchmark's tasks, each with the task if that is asked for and can be
    read, and add what is wrong with the others."""
    try:
        source = find_source(config)
        names = source.order()
    except InputError as error:
        problems.append(str(error))
        return
    for name in names:
        task = None
        try:
            if not only or name in only:
                task = source.task(name)
        except InputError as error:
            problems.append(str(error))
        yield name, task


def _benchmarks_in(root: Path, problems: list[str]) -> Iterator[DataConfig]:
    """Yield each benchmark in `root`, which may be a benchmark's folder itself, with its tasks, and
    add what is wrong with the others."""
    if not is_folder(root):
        raise InputError(f"there is no folder {root}")
    try:
        if find_tasks(root):
            yield _benchmark(root.absolute())
            return
    except InputError as error:
        problems.append(str(error))
        return
    for folder in sorted(path for path in root.iterdir() if is_folder(path)):
        try:
            if find_tasks(folder):
                yield _benchmark(folder)
        except InputError as error:
            problems.append(str(error))


def _benchmark(folder: Path) -> DataConfig:
    """All tasks of a benchmark's folder."""
    # A folder that several benchmarks share is read by the rules of the last, which has all tasks.
    shared = {folders[0]: name for name, folders in FOLDERS.items() if len(folders) == 1}
    benchmark = shared.get(folder.name, folder.name)
    # In the folder itself a task of the benchmark's name would be taken for its folder.
    home = folder if benchmark in FOLDERS else folder.parent
    names = tuple(find_tasks(folder))
    try:
        return DataConfig(benchmark=benchmark, order=names, root=str(home))
    except ValidationError:
        raise InputError(
            f"{folder}: a benchmark's name is UTF-8 and has at most 100 characters; rename it"
        ) from None


def tasks_table(checked: Checked) -> PlainTable:
    """Sizes, metric, overlap and digest of each task."""
    table = PlainTable(title=checked.title)
    table.add_column("task", no_wrap=True)
    for column in ("train", "test", "metric", "labels", "overlap", "digest"):
        table.add_column(column, justify="right")
    overlaps = _overlaps(checked)
    for benchmark, task in checked.tasks:
        overlap = overlaps[benchmark, task.name]
        labels = len(task.labels) if task.labels else None
        table.add_row(
            checked.called(benchmark, task), len(task.train), len(task.test), task.metric,
            Cell(labels, str(labels or "-")), Cell(overlap, str(overlap), "bold" * bool(overlap)),
            task.digest(),
        )  # fmt: skip
    table.caption = (
        "Overlap: test rows that some task of the benchmark has as a training row, but for case "
        "and blanks."
    )
    return table


def _overlaps(checked: Checked) -> Counter[tuple[str, str]]:
    """How many test rows of each task are training rows of any task of its benchmark."""
    trained: dict[str, set[str]] = {}
    for benchmark, task in checked.tasks:
        trained.setdefault(benchmark, set()).update(map(_question, task.train))
    counts = Counter[tuple[str, str]]()
    for benchmark, task in checked.tasks:
        seen = trained[benchmark]
        counts[benchmark, task.name] = sum(_question(example) in seen for example in task.test)
    return counts


def _question(example: Example) -> str:
    return " ".join(f"{example.instruction} \0 {example.input}".lower().split())


def balance_table(checked: Checked) -> PlainTable:
    """How often each answer comes, in training and in test."""
    table = PlainTable(title="answers: training rows + test rows")
    table.add_column("task", no_wrap=True)
    table.add_column("different", justify="right")
    table.add_column("most frequent")
    for benchmark, task in checked.tasks:
        train = Counter(example.output.strip() for example in task.train)
        test = Counter(example.output.strip() for example in task.test)
        answers = [answer for answer, _ in (train + test).most_common()]
        texts: list[str] = []
        for answer in answers[:_MOST_LABELS]:
            label = shortened(answer, _LONGEST_LABEL) or "(nothing)"
            texts.append(f"{label} {train[answer]} + {test[answer]}")
        if len(answers) > _MOST_LABELS:
            texts.append("...")
        if len(answers) == len(task.train) + len(task.test):
            texts = ["none comes twice"]
        unseen = sorted(test.keys() - train.keys()) if task.labels else []
        if unseen:
            texts.append(f"in test only: {', '.join(unseen[:_MOST_LABELS])}")
        counts = {answer: [train[answer], test[answer]] for answer in answers}
        name = checked.called(benchmark, task)
        record = {"task": name, "answers": counts if task.labels else None, "unseen": unseen}
        table.add_row(name, len(answers), ", ".join(texts), record=record)
    return table


def lengths_table(checked: Checked, encoder: Encoder | None, config: RunConfig) -> PlainTable:
    """How long prompts and answers are, and how many are cut: in tokens with an encoder, else in
    words. What a run would refuse is added to the problems."""
    unit = "words" if encoder is None else f"tokens of {config.model.name}"
    table = PlainTable(title=f"lengths in {unit}")
    table.add_column("task", no_wrap=True)
    for column in ("prompt, median", "longest", "answer, longest", "cut in training", "in test"):
        table.add_column(column, justify="right")
    for benchmark, task in checked.tasks:
        name = checked.called(benchmark, task)
        if encoder is None:
            table.add_row(name, *_words(task), Cell(None, "-"), Cell(None, "-"))
            continue
        try:
            encoder.encode_all(task, config.evaluation.max_new_tokens)
        except InputError as error:
            checked.problems.append(str(error))
            continue
        table.add_row(name, *_tokens(task, encoder))
    if encoder is not None:
        table.caption = (
            f"Cut: prompts that lose the middle of their input, to stay within model.max_length="
            f"{config.model.max_length} with their answer."
        )
    return table


def _words(task: Task) -> list[Cell | int]:
    examples = (*task.train, *task.test)
    prompts = [len(prompt(example).split()) for example in examples]
    answer = max(len(example.output.split()) for example in examples)
    return [_median(prompts), max(prompts), answer]


def _tokens(task: Task, encoder: Encoder) -> list[Cell | int]:
    """What of a task is long, and what is cut; a test prompt has no answer to leave room for."""
    tests = [encoder.encode_prompt(example) for example in task.test]
    cut = [encoder.truncated(task.train), sum(encoded.truncated for encoded in tests)]
    examples = (*task.train, *task.test)
    prompts = [encoder.count(prompt(example)) for example in examples]
    answer = max(map(encoder.answer_length, examples))
    cells = [Cell(count, str(count), "bold" * bool(count)) for count in cut]
    return [_median(prompts), max(prompts), answer, *cells]


def _median(counts: list[int]) -> Cell:
    value = median(counts)
    return Cell(value, f"{value:.0f}")
