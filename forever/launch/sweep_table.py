"""What a sweep shows while it runs: a table that stays in place on a terminal, a few plain lines elsewhere."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from forever.sweep import Trial

_STYLES = {"running": "cyan", "done": "green", "failed": "red", "skipped": "dim", "waiting": "dim"}
_LINE_EVERY_S = 30.0


@dataclass
class Row:
    """One trial: how far it is."""

    trial: Trial
    state: str = "waiting"
    stage: int = 0
    stages: int = 0
    op: float | None = None
    note: str = ""
    began: float | None = None
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.trial.variant}, order {self.trial.order}, seed {self.trial.seed}"

    def elapsed(self) -> float:
        return time.monotonic() - self.began if self.state == "running" and self.began else self.seconds


class SweepTable:
    """The progress of all trials of a sweep.

    Args:
        trials: all of them, in order.
        show: False keeps quiet.
        console: where to write; stdout by default.
    """

    def __init__(self, trials: Sequence[Trial], show: bool = True, console: Console | None = None) -> None:
        self.rows = {trial.key: Row(trial) for trial in trials}
        self.console = console or Console(quiet=not show, highlight=False)
        self._live: Live | None = None
        self._last_line = 0.0

    def __enter__(self) -> "SweepTable":
        if self.console.is_terminal and not self.console.quiet:
            self._live = Live(get_renderable=self.render, console=self.console, refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def started(self, key: str) -> None:
        """A trial begins, goes on, or is tried again."""
        row = self.rows[key]
        row.state, row.note, row.began = "running", "", time.monotonic()

    def advanced(self, key: str, stage: int, stages: int, op: float | None) -> None:
        """A stage is over."""
        row = self.rows[key]
        row.stage, row.stages, row.op = stage, stages, op
        if time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._line(row)

    def ended(self, key: str, state: str, note: str = "", op: float | None = None) -> None:
        """A trial is over: "done", "failed" or "skipped"."""
        row = self.rows[key]
        row.seconds, row.state, row.note = row.elapsed(), state, note
        row.op = op if op is not None else row.op
        if state != "skipped":
            self._line(row)

    def say(self, text: str) -> None:
        """A line about the sweep as a whole."""
        self.console.print(text, markup=False, soft_wrap=True)

    def summary(self) -> str:
        """How many are in which state, e.g. "6 done, 1 failed, 1 skipped"."""
        states = [row.state for row in self.rows.values()]
        return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))

    def _line(self, row: Row) -> None:
        if self._live:
            return
        self._last_line = time.monotonic()
        stage = f", stage {row.stage}/{row.stages}" if row.stages and row.state == "running" else ""
        op = "" if row.op is None else f", OP {row.op:.1f}"
        over = sum(other.state in ("done", "failed", "skipped") for other in self.rows.values())
        note = f": {row.note}" if row.note else ""
        self.say(f"[{over}/{len(self.rows)}] {row.name}: {row.state}{stage}{op}, {row.elapsed():.0f} s{note}")

    def render(self) -> Table:
        """The table as it is now."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for header in ("variant", "order"):
            table.add_column(header)
        for header in ("seed", "stage", "OP", "s"):
            table.add_column(header, justify="right")
        table.add_column("state")
        for row in self._visible():
            stage = f"{row.stage}/{row.stages}" if row.stages else ""
            op = "" if row.op is None else f"{row.op:.1f}"
            seconds = f"{row.elapsed():.0f}" if row.began else ""
            state = f"[{_STYLES[row.state]}]{row.state}[/]" + (f" {_plain(row.note)}" if row.note else "")
            trial = row.trial
            table.add_row(_plain(trial.variant), trial.order, str(trial.seed), stage, op, seconds, state)
        table.caption = self.summary()
        table.caption_justify = "left"
        return table

    def _visible(self) -> list[Row]:
        """All rows, or if they are more than the screen has lines: those that run, then the others from the top."""
        rows, room = list(self.rows.values()), max(self.console.height - 5, 5)
        if len(rows) <= room:
            return rows
        chosen = sorted(rows, key=lambda row: row.state != "running")[:room]
        return [row for row in rows if row in chosen]


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
