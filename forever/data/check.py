"""`forever data check`: every task of a folder or of a run, read and checked as a run would."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from forever.config.parts import DataConfig
from forever.config.run import RunConfig
from forever.data.benchmarks import FOLDERS, find_source
from forever.data.encoding import Encoder
from forever.data.prompts import prompt
from forever.data.sources import find_tasks
from forever.data.tasks import Task
from forever.errors import InputError
from forever.models.tokenizer import load_tokenizer
from forever.reading import is_folder
from forever.text import PlainTable

COLUMNS = ("train", "test", "metric", "labels", "words", "longest", "digest")


def data_table(place: Path | RunConfig) -> tuple[PlainTable, list[str]]:
    """Show one row a task of a folder of benchmarks, or of a run's one benchmark.

    Returns:
        The table, and a line for each task or benchmark that a run would refuse.

    Raises:
        InputError: nothing is found.
    """
    where = place if isinstance(place, Path) else f"benchmark {place.data.benchmark}"
    table = PlainTable("benchmark", title=f"tasks in {where}")
    table.add_column("task", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    problems: list[str] = []
    encoder = None
    if isinstance(place, RunConfig):
        configs, longest = iter([place.data]), place.evaluation.max_new_tokens
        try:
            encoder = Encoder(load_tokenizer(place.model.name), place.model.max_length)
        except InputError as error:
            table.caption = f"Lengths in tokens were not checked. {error}"
    else:
        configs, longest = _benchmarks_in(place, problems), 0
        table.caption = "Lengths in tokens are checked with a run's file in the folder's place."
    for config in configs:
        for task in _tasks(config, problems):
            try:
                if encoder is not None:
                    encoder.encode_all(task, longest)
            except InputError as error:
                problems.append(str(error))
            table.add_row(config.benchmark, *_cells(task))
    if not table.rows and not problems:
        raise InputError(
            f"{place} has no benchmark folder with tasks; the layouts are listed in "
            "docs/verbs/data.md"
        )
    return table, problems


def _tasks(config: DataConfig, problems: list[str]) -> Iterator[Task]:
    """Yield the tasks of a benchmark that can be read, and add what is wrong with the others."""
    try:
        source = find_source(config)
        names = source.order()
    except InputError as error:
        problems.append(str(error))
        return
    for name in names:
        try:
            yield source.task(name)
        except InputError as error:
            problems.append(str(error))


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


def _cells(task: Task) -> list[str]:
    words = [len(prompt(example).split()) for example in (*task.train, *task.test)]
    labels = len(task.labels or ()) or "-"
    counts = [len(task.train), len(task.test), task.metric, labels]
    return [task.name, *map(str, counts), f"{median(words):.0f}", str(max(words)), task.digest()]
