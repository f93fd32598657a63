"""What a sweep shows while it runs: a table that stays in place on a terminal, a few plain lines
elsewhere."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from forever.sweeps.sweep import Trial

_STYLES = {
    "running": "cyan", "done": "green", "failed": "red", "stopped": "yellow", "skipped": "dim", "waiting": "dim"
}  # fmt: skip
_OVER = ("done", "failed", "stopped", "skipped")
_LINE_EVERY_S = 30.0


@dataclass
class Row:
    """One trial: how far it is.

    Attributes:
        earlier: stages that were over before it began this time.
        replays: mid-task and end-of-task replays so far.
        reached: when the last stage was over.
    """

    trial: Trial
    state: str = "waiting"
    stage: int = 0
    stages: int = 0
    earlier: int = 0
    replays: int | None = None
    op: float | None = None
    note: str = ""
    began: float | None = None
    reached: float = 0.0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.trial.variant}, order {self.trial.order}, seed {self.trial.seed}"

    def elapsed(self) -> float:
        return (
            time.monotonic() - self.began
            if self.state == "running" and self.began is not None
            else self.seconds
        )

    def stage_s(self) -> float | None:
        """Mean time of a stage of this trial now, its start included; None before one is over."""
        if self.began is None or self.stage <= self.earlier:
            return None
        return (self.reached - self.began) / (self.stage - self.earlier)

    def left_s(self) -> float | None:
        """Seconds until a running trial is over, if its stages go on to take as long as they
        did."""
        mean = self.stage_s()
        if mean is None or self.state != "running":
            return None
        return max(0.0, mean * (self.stages - self.stage) - (time.monotonic() - self.reached))


class SweepTable:
    """The progress of all trials of a sweep.

    Args:
        trials: all of them that are known, in order.
        show: False keeps quiet.
        console: where to write; stdout by default.
        total: of trials, if more will come.
    """

    def __init__(
        self,
        trials: Iterable[Trial],
        show: bool = True,
        console: Console | None = None,
        total: int = 0,
    ) -> None:
        self.rows = {trial.key: Row(trial) for trial in trials}
        self.console = console or Console(quiet=not show, highlight=False)
        self.total = max(total, len(self.rows))
        self._live: Live | None = None
        self._last_line = 0.0

    def __enter__(self) -> "SweepTable":
        if self.console.is_terminal and not self.console.quiet:
            self._live = Live(
                get_renderable=self.render, console=self.console, refresh_per_second=2
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def add(self, trial: Trial) -> None:
        """A trial that was not known before; one that was stays as it is."""
        self.rows.setdefault(trial.key, Row(trial))
        self.total = max(self.total, len(self.rows))

    def started(self, key: str) -> None:
        """A trial begins, goes on, or is tried again."""
        row = self.rows[key]
        row.state, row.note, row.began = "running", "", time.monotonic()

    def advanced(
        self,
        key: str,
        stage: int,
        stages: int,
        op: float | None,
        replays: int | None = None,
        earlier: int = 0,
    ) -> None:
        """A stage is over. `earlier` of them were over before the trial began this time."""
        row = self.rows[key]
        row.stage, row.stages, row.op, row.replays, row.earlier = (
            stage,
            stages,
            op,
            replays,
            earlier,
        )
        row.reached = time.monotonic()
        if time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._line(row)

    def ended(
        self, key: str, state: str, note: str = "", op: float | None = None, now: bool = True
    ) -> None:
        """A trial is over: "done", "failed", "stopped" (early) or "skipped". What was over before
        makes no line."""
        row = self.rows[key]
        row.seconds, row.state, row.note = row.elapsed(), state, note
        row.op = op if op is not None else row.op
        if now and state != "skipped":
            self._line(row)

    def note(self, key: str, text: str) -> None:
        """Why a trial that is over ended as it did."""
        self.rows[key].note = text

    def refused(self, key: str, why: str) -> None:
        """A trial could not begin: its configuration or data are wrong."""
        self.ended(key, "failed", why)

    def say(self, text: str) -> None:
        """A line about the sweep as a whole."""
        self.console.print(text, markup=False, soft_wrap=True)

    def summary(self) -> str:
        """How many are in which state and how long the rest takes, e.g. "6 done, 1 failed, 1
        running, ETA 3 min"."""
        states = [row.state for row in self.rows.values()]
        states += ["waiting"] * (self.total - len(states))
        text = ", ".join(
            f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states))
        )
        return (
            f"{text}, ETA {duration(self.left_s())}" if {"running", "waiting"} & {*states} else text
        )

    def left_s(self) -> float | None:
        """Seconds until all trials are over, as many at a time as now; None before any has finished
        a stage.

        What waits is expected to take as long as the trials that have been measured, a whole one
        each.
        """
        rows = self.rows.values()
        whole = [mean * row.stages for row in rows if (mean := row.stage_s()) is not None]
        running = [row for row in rows if row.state == "running"]
        if not whole:
            return None
        guess = fmean(whole)
        left = [
            max(0.0, guess - row.elapsed()) if (own := row.left_s()) is None else own
            for row in running
        ]
        waiting = self.total - sum(row.state in _OVER for row in rows) - len(running)
        return max([(sum(left) + waiting * guess) / max(len(running), 1), *left])

    def _line(self, row: Row) -> None:
        if self._live:
            return
        self._last_line = time.monotonic()
        running = row.state == "running"
        stage = f", stage {row.stage}/{row.stages}" if row.stages and running else ""
        op = "" if row.op is None else f", OP {row.op:.1f}"
        replays = "" if row.replays is None else f", {row.replays} replays"
        eta = f", ETA {duration(row.left_s())}" if running else ""
        over = sum(other.state in _OVER for other in self.rows.values())
        all_of_it = (
            f" (all: {duration(self.left_s())})" if over < self.total and not row.note else ""
        )
        note = f": {row.note}" if row.note else ""
        text = f"[{over}/{self.total}] {row.name}: {row.state}{stage}{op}{replays}, {duration(row.elapsed())}{eta}"
        self.say(text + all_of_it + note)

    def render(self) -> Table:
        """The table as it is now."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for header in ("variant", "order"):
            table.add_column(header)
        for header in ("seed", "stage", "OP", "replays", "time", "ETA"):
            table.add_column(header, justify="right", no_wrap=True)
        table.add_column("state")
        for row in self._visible():
            stage = f"{row.stage}/{row.stages}" if row.stages else ""
            op = "" if row.op is None else f"{row.op:.1f}"
            replays = "" if row.replays is None else str(row.replays)
            taken = duration(row.elapsed()) if row.began is not None else ""
            eta = duration(row.left_s()) if row.state == "running" else ""
            state = f"[{_STYLES[row.state]}]{row.state}[/]" + (
                f" {_plain(row.note)}" if row.note else ""
            )
            trial = row.trial
            cells = (
                _plain(trial.variant),
                trial.order,
                str(trial.seed),
                stage,
                op,
                replays,
                taken,
                eta,
                state,
            )
            table.add_row(*cells)
        table.caption = self.summary()
        table.caption_justify = "left"
        return table

    def _visible(self) -> list[Row]:
        """All rows, or if they are more than the screen has lines: those that run, then the others
        from the top."""
        rows, room = list(self.rows.values()), max(self.console.height - 5, 5)
        if len(rows) <= room:
            return rows
        chosen = sorted(rows, key=lambda row: row.state != "running")[:room]
        return [row for row in rows if row in chosen]


def duration(seconds: float | None) -> str:
    """A time for people: "-", "45 s", "12 min", "3.5 h"."""
    if seconds is None:
        return "-"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
