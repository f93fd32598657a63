"""What a person sees of a run: a live line on a terminal, a plain line a stage elsewhere."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from forever.data.tasks import Benchmark
from forever.runs.directory import RunDirectory
from forever.runs.tracking import Tracker
from forever.text import PlainTable, terminal, visible


class ConsoleTracker(Tracker):
    """Progress of one run: task, step, loss, model days, next replay, and time left in the task.

    If the console is no terminal, one line a stage is printed and nothing moves.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[reading]}", markup=False),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=None, reading="")
        self._task = ""

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        self._stages = [stage.name for stage in benchmark.stages]
        self._began = time.perf_counter()
        line = f"run {directory.path.name} in {directory.path.parent}"
        self.console.print(terminal(line), soft_wrap=True)
        self._progress.start()

    def step(self, line: Mapping[str, Any]) -> None:
        if line["task"] != self._task:
            self._task = line["task"]
            place = f"{self._stages.index(self._task) + 1}/{len(self._stages)}"
            label = f"{place} {visible(self._task)}"
            self._progress.reset(self._bar, total=line["planned"], description=label)
        self._progress.update(self._bar, completed=line["step"], reading=reading(line))

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        place = f"{number + 1}/{len(self._stages)} {self._stages[number]:<16}"
        bwt = "" if scores["bwt"] is None else f"  BWT {scores['bwt']:+6.1f}"
        seconds = time.perf_counter() - self._began
        text = f"  after {place} OP {scores['op']:5.1f}{bwt}  {seconds:6.0f} s"
        self.console.print(terminal(text), soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._progress.stop()


def reading(line: Mapping[str, Any]) -> str:
    """The numbers of one update, such as `loss 0.412  day 3.1, next at 4  replay`."""
    loss = line["loss"]
    parts = ["update left out" if loss is None else f"loss {loss:.3f}"]
    if line.get("days") is not None:
        parts.append(f"day {line['days']:.1f}")
        if line.get("next_day") is not None:
            parts[-1] += f", next at {line['next_day']:g}"
    if line["kind"] != "task":
        parts.append(line["kind"])
    return "  ".join(parts)


def matrix_table(result: Mapping[str, Any]) -> PlainTable:
    """A finished run's scores in percent, a row a task and a column a stage, with a summary."""
    table = PlainTable(title=f"{result['method']}, seed {result['seed']}")
    table.add_column("score on, after", no_wrap=True)
    for name in result["stages"]:
        table.add_column(name, justify="right")
    for name, row in zip(result["tasks"], result["matrix"], strict=True):
        table.add_row(name, *("" if value is None else f"{value:.1f}" for value in row))
    names = {"op": "OP", "bwt": "BWT", "forgetting": "forgetting", "fwt": "FWT"}
    words = [f"{names[key]} {result[key]:.1f}" for key in names if result[key] is not None]
    words.append(f"{sum(result['seconds'].values()):.0f} s")
    table.caption = "   ".join(words)
    return table
