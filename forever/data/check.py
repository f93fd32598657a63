"""`forever data check`: every task of a folder, read and checked as a run would."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from rich import box
from rich.table import Table

from forever.config.parts import DataConfig
from forever.data.benchmarks import FOLDERS, load_benchmark
from forever.data.prompts import prompt
from forever.data.sources import task_names
from forever.data.tasks import Task
from forever.errors import InputError


def data_table(root: Path | None) -> Table:
    """One row a task.

    Raises:
        InputError: nothing is found, or a task that a run would refuse.
    """
    title = f"tasks in {root}" if root else "tasks of the embedded benchmark"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("benchmark")
    table.add_column("task", no_wrap=True)
    for column in ("train", "test", "metric", "labels", "words", "longest", "digest"):
        table.add_column(column, justify="right")
    for name, task in _embedded() if root is None else _tasks_in(root):
        table.add_row(name, *_cells(task))
    if not table.rows:
        raise InputError(
            f"{root} has no benchmark folder with tasks; the layouts are listed in the README, "
            "under Data"
        )
    return table


def _embedded() -> Iterator[tuple[str, Task]]:
    for task in load_benchmark(DataConfig(benchmark="mini", order="1")).tasks:
        yield "mini", task


def _tasks_in(root: Path) -> Iterator[tuple[str, Task]]:
    """Read all tasks in the benchmark folders of `root`, each with its folder's name."""
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    # A folder that several benchmarks share is read by the rules of the last, which has all tasks.
    shared = {folders[0]: name for name, folders in FOLDERS.items() if len(folders) == 1}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        names = tuple(task_names(folder))
        if names:
            benchmark = shared.get(folder.name, folder.name)
            config = DataConfig(benchmark=benchmark, order=names, root=str(root))
            for task in load_benchmark(config).tasks:
                yield folder.name, task


def _cells(task: Task) -> list[str]:
    words = [len(prompt(example).split()) for example in (*task.train, *task.test)]
    labels = str(len(task.labels)) if task.labels else "-"
    counts = [str(len(task.train)), str(len(task.test))]
    length = [f"{median(words):.0f}", str(max(words))]
    return [task.name, *counts, task.metric, labels, *length, task.digest()]
