"""What a person sees of a run: a live line on a terminal, a plain line a stage elsewhere."""

import io
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

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
from forever.text import Cell, PlainTable, shortened, terminal, visible

_MOVES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # what moves a cursor, or colours
_WIDTH, _LONGEST = 100, 10_000  # of a line on a terminal, and before it is cut


class ConsoleTracker(Tracker):
    """Progress of one run: task, step, loss, model days, next replay, and time left in the task.

    If the console is not a terminal, one line a stage is printed and nothing moves.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        # Of one line nothing but progress is seen: what others print keeps its own stream.
        shared = not isinstance(self.console.file, ProgressLine)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[update]}", markup=False),
            console=self.console,
            transient=True,
            redirect_stdout=shared,
            redirect_stderr=shared,
            disable=not self.console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=None, update="")
        self._task = self._scores = ""

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
        self._progress.update(self._bar, completed=line["step"], update=update_text(line))

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        place = f"{number + 1}/{len(self._stages)} {self._stages[number]:<16}"
        bwt = "" if scores["bwt"] is None else f"  BWT {scores['bwt']:+6.1f}"
        seconds = time.perf_counter() - self._began
        self._scores = terminal(f"  after {place} OP {scores['op']:5.1f}{bwt}  {seconds:6.0f} s")
        self.console.print(self._scores, soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back; where one line is shown, it is that of the last scores."""
        self._progress.stop()
        if isinstance(self.console.file, ProgressLine):
            self.console.print(self._scores, soft_wrap=True)


class ProgressLine(io.TextIOBase):
    """A file that shows its last line alone, each instead of the one before: in a notebook, or on
    the terminal `stream`. Elsewhere nothing is shown."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._in_notebook = _notebook()
        self._output: Any = None  # of the notebook's cell
        self._shown = False  # on the terminal

    def write(self, text: str) -> int:
        """Show the last line of a text."""
        lines = [line for line in _MOVES.sub("", text).splitlines() if line.strip()]
        if lines and self._in_notebook:
            content = {"text/plain": lines[-1].strip()}
            if self._output is None:
                from IPython.display import display

                self._output = display(content, raw=True, display_id=True)
            else:
                self._output.update(content, raw=True)
        elif lines and self._stream.isatty():
            self._shown = True
            self._stream.write(f"\r{lines[-1].strip()[:_WIDTH]}\x1b[K")
            self._stream.flush()
        return len(text)

    def console(self) -> Console:
        """A console that writes here, of a live display its last line, and folds none."""
        file: Any = self
        is_terminal: Any = {"force_terminal": True, "force_jupyter": False, "no_color": True}
        return Console(file=file, width=_LONGEST, **is_terminal)

    def say(self, line: str) -> None:
        """Show a line."""
        self.write(line)

    def close(self) -> None:
        """Leave the last line where it is."""
        if self._shown:
            self._shown = False
            self._stream.write("\n")
        super().close()


def _notebook() -> bool:
    """Whether this process is the kernel of a notebook; IPython is loaded then."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def update_text(line: Mapping[str, Any]) -> str:
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


# From dark to bright with their own ink, so that they read the same on any background, and in grey.
_HEAT = (
    (20, "#ffffff on #440154"),
    (40, "#ffffff on #414487"),
    (60, "#ffffff on #2a788e"),
    (80, "#000000 on #22a884"),
    (95, "#000000 on #7ad151"),
)
_BEST = "#000000 on #fde725"
_CORNER = "score on, after"
_LONGEST_NAME, _LONGEST_LABEL = 16, 24
_NAMES = {"op": "OP", "bwt": "BWT", "forgetting": "forgetting", "fwt": "FWT"}


def matrix_table(result: Mapping[str, Any], width: int = 120) -> PlainTable:
    """A run's scores in percent, a row a task and a column a stage, with a summary.

    Where the names of stages do not fit into so many columns, stages go by their numbers.
    """
    tasks, stages = result["tasks"], result["stages"]
    table = PlainTable(title=f"{result['method']}, seed {result['seed']}")
    heads = [shortened(visible(name), _LONGEST_NAME) for name in stages]
    labels = [shortened(visible(name), _LONGEST_LABEL) for name in tasks]
    left = max(len(_CORNER), *map(len, labels)) + 5  # columns of the first one, with its blanks
    if left + sum(max(len(head), 5) + 3 for head in heads) > width:
        table.padding = 0
        heads = [str(number) for number in range(1, len(stages) + 1)]
        labels = [f"{number:2} {label}" for number, label in enumerate(labels, start=1)]
    table.add_column(_CORNER, no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for task, label, row in zip(tasks, labels, result["matrix"], strict=True):
        scores = dict(zip(stages, row, strict=True))
        table.add_row(label, *map(_score_cell, row), record={"task": task, "scores": scores})
    words = [f"{_NAMES[key]} {result[key]:z.1f}" for key in _NAMES if result.get(key) is not None]
    if result.get("seconds"):
        words.append(f"{sum(result['seconds'].values()):.0f} s")
    table.caption = "   ".join(words)
    return table


def _score_cell(value: float | None) -> Cell:
    """A score in percent, on a colour."""
    if value is None:
        return Cell(None, "")
    style = next((style for below, style in _HEAT if value < below), _BEST)
    return Cell(value, f"{value:.1f}", style)
