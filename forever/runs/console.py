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
from forever.text import PlainTable, terminal, visible

_MOVES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # what moves a cursor, or colours
_EVERY_S = 0.2  # after which a line that moves is written again
_WIDTH, _LONGEST = 100, 10_000  # of that line, on a terminal and before it is cut


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


class ProgressLine(io.TextIOBase):
    """A file of which only the last line is seen, and each takes the place of the one before: in a
    notebook, or on the terminal `stream`. Elsewhere nothing is seen."""

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


class LineTracker(Tracker):
    """Progress of one run in one line: task, update, loss, model days, and OP so far."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._scores, self._written = "", 0.0

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        self._stages = [stage.name for stage in benchmark.stages]

    def step(self, line: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self._written >= _EVERY_S:
            self._written = now
            place = f"{line['step']}/{line['planned']}"
            self._write(self._stages.index(line["task"]), f"{place}  {reading(line)}")

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        self._scores = f"  OP {scores['op']:.1f}"
        self._write(number, "scored")

    def _write(self, stage: int, text: str) -> None:
        place = f"{stage + 1}/{len(self._stages)} {self._stages[stage]}"
        self._line.say(f"{visible(place)}  {text}{self._scores}")


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
