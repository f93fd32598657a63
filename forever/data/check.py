"""`forever data check`: every task of a folder or of a run, read and checked as a run would."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from forever.config.parts import DataConfig
from forever.data.benchmarks import FOLDERS, load_benchmark
from forever.data.prompts import prompt
from forever.data.sources import find_tasks
from forever.data.tasks import Task
from forever.errors import InputError
from forever.text import PlainTable

COLUMNS = ("train", "test", "metric", "labels", "words", "longest", "digest")


def data_table(place: Path | DataConfig) -> PlainTable:
    """Show one row a task of a folder of benchmarks, or of a run's one benchmark.

    Raises:
        InputError: nothing is found, or a task that a run would refuse.
    """
    where = place if isinstance(place, Path) else f"benchmark {place.benchmark}"
    table = PlainTable("benchmark", title=f"tasks in {where}")
    table.add_column("task", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    configs = _benchmarks_in(place) if isinstance(place, Path) else [place]
    for config in configs:
        for task in load_benchmark(config).tasks:
            table.add_row(config.benchmark, *_cells(task))
    if not table.rows:
        raise InputError(
            f"{place} has no benchmark folder with tasks; the layouts are listed in "
            "docs/verbs/data.md"
        )
    return table


def _benchmarks_in(root: Path) -> Iterator[DataConfig]:
    """Yield each benchmark in `root`, which may be a benchmark's folder itself, with its tasks."""
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    # A folder that several benchmarks share is read by the rules of the last, which has all tasks.
    shared = {folders[0]: name for name, folders in FOLDERS.items() if len(folders) == 1}
    inside = sorted(path for path in root.iterdir() if path.is_dir())
    if find_tasks(root):
        inside = [root.absolute()]
    for folder in inside:
        names = tuple(find_tasks(folder))
        if names:
            benchmark = shared.get(folder.name, folder.name)
            # In the folder itself a task of the benchmark's name would be taken for its folder.
            home = folder if benchmark in FOLDERS else folder.parent
            yield DataConfig(benchmark=benchmark, order=names, root=str(home))


def _cells(task: Task) -> list[str]:
    words = [len(prompt(example).split()) for example in (*task.train, *task.test)]
    labels = len(task.labels or ()) or "-"
    counts = [len(task.train), len(task.test), task.metric, labels]
    return [task.name, *map(str, counts), f"{median(words):.0f}", str(max(words)), task.digest()]
