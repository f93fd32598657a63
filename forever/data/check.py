"""`forever data check`: every task of a folder, read and checked as a run would."""

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
    if root is None:
        for task in load_benchmark(DataConfig(benchmark="mini", order="1")).tasks:
            table.add_row("mini", *_cells(task))
        return table
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    found = 0
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        names = tuple(task_names(folder))
        if not names:
            continue
        # A folder that several benchmarks share is read by the rules of the last, which has all of
        # its tasks.
        benchmark = next(
            (b for b, f in reversed(FOLDERS.items()) if f == (folder.name,)), folder.name
        )
        for task in load_benchmark(
            DataConfig(benchmark=benchmark, order=names, root=str(root))
        ).tasks:
            table.add_row(folder.name, *_cells(task))
            found += 1
    if not found:
        raise InputError(
            f"{root} has no benchmark folder with tasks; the layouts are listed in the README, "
            "under Data"
        )
    return table


def _cells(task: Task) -> list[str]:
    words = [len(prompt(example).split()) for example in (*task.train, *task.test)]
    labels = str(len(task.labels)) if task.labels else "-"
    counts = [str(len(task.train)), str(len(task.test))]
    return [
        task.name,
        *counts,
        task.metric,
        labels,
        f"{median(words):.0f}",
        str(max(words)),
        task.digest(),
    ]
