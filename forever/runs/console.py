"""What a person sees of a run: a live line on a terminal, a plain line a stage elsewhere."""

import time
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from forever.data.tasks import Benchmark
from forever.runs.directory import RunDirectory
from forever.runs.tracking import Tracker

_REFRESH_S = 0.1  # between updates of the live line; more often costs time and shows nothing


class ConsoleTracker(Tracker):
    """Progress of one run: task, step, loss, model days, next replay, and time left in the task.

    Args:
        console: where to print; if it is no terminal, one line a stage is printed and nothing
            moves.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._progress: Progress | None = None
        self._shown = 0.0

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        self.benchmark = benchmark
        self._began = time.perf_counter()
        self.console.print(f"run {directory.path.name} in {directory.path.parent}", highlight=False)
        if not self.console.is_terminal:
            return
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[reading]}"),
            console=self.console,
            transient=True,
        )
        self._progress.start()
        self._bar = self._progress.add_task("", total=None, reading="")
        self._task = ""

    def step(self, line: Mapping[str, Any]) -> None:
        if self._progress is None:
            return
        if line["task"] != self._task:
            self._task = line["task"]
            names = [task.name for task in self.benchmark.stages]
            label = f"{names.index(self._task) + 1}/{len(names)} {self._task}"
            self._progress.reset(self._bar, total=line["planned"], description=label)
        now = time.perf_counter()
        if now - self._shown >= _REFRESH_S:
            self._shown = now
            self._progress.update(self._bar, completed=line["step"], reading=reading(line))

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        count = len(self.benchmark.stages)
        name = self.benchmark.stages[number].name
        bwt = "" if scores["bwt"] is None else f"  BWT {scores['bwt']:+6.1f}"
        time_ = f"{time.perf_counter() - self._began:6.0f} s"
        text = f"  after {number + 1}/{count} {name:<16} OP {scores['op']:5.1f}{bwt}  {time_}"
        self.console.print(text, highlight=False)

    def finished(self, result: Mapping[str, Any]) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back. Safe to call at any time."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def reading(line: Mapping[str, Any]) -> str:
    """The numbers of one update, such as `loss 0.412  day 3.1, next at 4  replay`."""
    parts = [f"loss {line['loss']:.3f}"]
    if line.get("days") is not None:
        waiting = f", next at {line['next_day']:g}" if line.get("next_day") is not None else ""
        parts.append(f"day {line['days']:.1f}{waiting}")
    if line["kind"] != "task":
        parts.append(line["kind"])
    return "  ".join(parts)


def matrix_table(result: Mapping[str, Any]) -> Table:
    """Return the performance matrix of a finished run with its summary, in percent.

    It has a row for each task and a column for each stage.
    """
    table = Table(
        title=f"{result['method']}, seed {result['seed']}", title_justify="left", box=box.SIMPLE
    )
    table.add_column("score on, after", no_wrap=True)
    for name in result["stages"]:
        table.add_column(name, justify="right")
    for name, row in zip(result["tasks"], result["matrix"], strict=True):
        table.add_row(name, *("" if value is None else f"{value:.1f}" for value in row))
    names = {"op": "OP", "bwt": "BWT", "forgetting": "forgetting", "fwt": "FWT"}
    words = [f"{names[key]} {result[key]:.1f}" for key in names if result[key] is not None]
    words.append(f"{sum(result['seconds'].values()):.0f} s")
    table.caption = "   ".join(words)
    table.caption_justify = "left"
    return table
