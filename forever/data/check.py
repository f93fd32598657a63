"""`forever data check`: every task of a folder or of a run, read and checked as a run would."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
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
    def named(self) -> list[tuple[str, Task]]:
        """The tasks with their names, before which stands a benchmark's if there are several."""
        if len(self.benchmarks) > 1:
            return [(f"{benchmark}/{task.name}", task) for benchmark, task in self.tasks]
        return [(task.name, task) for _, task in self.tasks]

    @property
    def benchmarks(self) -> set[str]:
        """The benchmarks that the tasks are of."""
        return {benchmark for benchmark, _ in self.tasks}

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what is refused within, and go on behind it."""
        try:
            yield
        except InputError as error:
            self.problems.append(str(error))


def read_tasks(place: Path | RunConfig, only: Collection[str] = ()) -> Checked:
    """Read the tasks of a folder of benchmarks, or of a run's one benchmark.

    Args:
        only: names of tasks; none of them means all.

    Raises:
        InputError: nothing is found.
    """
    is_run = isinstance(place, RunConfig)
    checked = Checked("the run's data" if is_run else str(place))
    configs = [place.data] if is_run else _benchmarks_in(place, checked)
    names: set[str] = set()
    for config in configs:
        with checked.noting():
            source = find_source(config)
            for name in source.order():
                names.add(name)
                if only and name not in only:
                    continue
                with checked.noting():
                    checked.tasks.append((config.benchmark, source.task(name)))
    if not names and not checked.problems:
        raise InputError(
            f"{place} has no benchmark folder with tasks; the layouts are listed in "
            "docs/verbs/data.md"
        )
    for name in only:
        if name not in names:
            raise unknown(f"task in {checked.where}", name, names)
    return checked


def _benchmarks_in(root: Path, checked: Checked) -> Iterator[DataConfig]:
    """Yield the benchmarks in `root`, which may be one's folder itself, with all their tasks."""
    if not is_folder(root):
        raise InputError(f"there is no folder {root}")
    folders: list[Path] = []
    with checked.noting():
        inside = sorted(path for path in root.iterdir() if is_folder(path))
        folders = [root.absolute()] if find_tasks(root) else inside
    for folder in folders:
        with checked.noting():
            if tasks := find_tasks(folder):
                yield _benchmark(folder, tuple(tasks))


def _benchmark(folder: Path, tasks: tuple[str, ...]) -> DataConfig:
    """The tasks of a benchmark's folder."""
    # A folder that several benchmarks share is read by the rules of the last, which has all tasks.
    shared = {folders[0]: name for name, folders in FOLDERS.items() if len(folders) == 1}
    benchmark = shared.get(folder.name, folder.name)
    # In the folder itself a task of the benchmark's name would be taken for its folder.
    home = folder if benchmark in FOLDERS else folder.parent
    try:
        return DataConfig(benchmark=benchmark, order=tasks, root=str(home))
    except ValidationError:
        raise InputError(
            f"{folder}: a benchmark's name is UTF-8 and has at most 100 characters; rename it"
        ) from None


def tasks_table(checked: Checked) -> PlainTable:
    """Sizes, metric, overlap and digest of each task, titled by where they are, and by the one
    benchmark whose rules hold for them."""
    title = f"tasks in {checked.where}"
    if len(checked.benchmarks) == 1:
        title += f" (benchmark {min(checked.benchmarks)})"
    table = PlainTable(title=title)
    table.add_column("task", no_wrap=True)
    for column in ("train", "test", "metric", "labels", "overlap", "digest"):
        table.add_column(column, justify="right")
    for (name, task), overlap in zip(checked.named, _overlaps(checked), strict=True):
        labels = Cell(len(task.labels), str(len(task.labels))) if task.labels else Cell(None, "-")
        sizes = (len(task.train), len(task.test))
        table.add_row(name, *sizes, task.metric, labels, _marked(overlap), task.digest())
    table.caption = (
        "Overlap: test rows that some task of the benchmark has as a training row, but for case "
        "and blanks."
    )
    return table


def _marked(count: int) -> Cell:
    """A number that should be zero."""
    return Cell(count, str(count), "bold" if count else "")


def _overlaps(checked: Checked) -> list[int]:
    """How many test rows of each task are training rows of any task of its benchmark."""
    trained: defaultdict[str, set[str]] = defaultdict(set)
    for benchmark, task in checked.tasks:
        trained[benchmark].update(map(_question, task.train))
    overlaps: list[int] = []
    for benchmark, task in checked.tasks:
        overlaps.append(sum(_question(example) in trained[benchmark] for example in task.test))
    return overlaps


def _question(example: Example) -> str:
    return " ".join(f"{example.instruction} \0 {example.input}".lower().split())


def balance_table(checked: Checked) -> PlainTable:
    """How often each answer comes, in training and in test."""
    table = PlainTable(title="answers: training rows + test rows")
    table.add_column("task", no_wrap=True)
    table.add_column("different", justify="right")
    table.add_column("most frequent")
    for name, task in checked.named:
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
    for name, task in checked.named:
        if encoder is None:
            table.add_row(name, *_words(task), Cell(None, "-"), Cell(None, "-"))
            continue
        with checked.noting():
            encoder.encode_all(task, config.evaluation.max_new_tokens)
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
    return [_median(prompts), max(prompts), answer, *map(_marked, cut)]


def _median(counts: list[int]) -> Cell:
    value = median(counts)
    return Cell(value, f"{value:.0f}")
