"""What a sweep prints: a line for each trial that is over, and below them on a terminal a line for
each that runs."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from forever.format import duration, plural
from forever.sweeps.sweep import Trial
from forever.text import terminal

_LINE_EVERY_S = 30.0
_UNFINISHED = ("waiting", "running")


@dataclass
class Row:
    """The progress of a trial; `earlier` of its stages were over before this call."""

    trial: Trial
    state: str = "waiting"
    stage: int = 0
    stages: int = 0
    earlier: int = 0
    scores: str = ""
    began: float | None = None

    def cells(self) -> list[str]:
        """Return the trial's name, state, stage, scores and time."""
        trial, stage = self.trial, ""
        if self.state == "running" and self.stages:
            stage = f"stage {self.stage}/{self.stages}"
        seconds = 0.0 if self.began is None else time.monotonic() - self.began
        name = f"{trial.variant}, order {trial.order}, seed {trial.seed}"
        return [name, self.state, stage, self.scores, duration(seconds)]


class SweepTable:
    """The progress of the `trials` of a sweep, and of others up to `total` that will come.

    It writes to `console`, by default stdout; with `show` false it writes nothing.
    """

    def __init__(
        self,
        trials: Iterable[Trial],
        show: bool = True,
        console: Console | None = None,
        total: int = 0,
    ) -> None:
        self.rows = {trial.key: Row(trial) for trial in trials}
        self.console = console or Console(quiet=not show)
        self.total = max(total, len(self.rows))
        self._began = self._last_line = time.monotonic()
        self._live = Live(get_renderable=self.render, console=self.console, refresh_per_second=2)

    def __enter__(self) -> "SweepTable":
        if self.console.is_terminal and not self.console.quiet:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def add(self, trial: Trial) -> None:
        """Add a trial, unless it is known already."""
        self.rows.setdefault(trial.key, Row(trial))
        self.total = max(self.total, len(self.rows))

    def started(self, key: str) -> None:
        """Note that a trial starts, resumes or is retried."""
        self.rows[key].state, self.rows[key].began = "running", time.monotonic()

    def advanced(
        self, key: str, stage: int, stages: int, op: float | None, replays: int, earlier: int = 0
    ) -> None:
        """Note that a stage is over; `earlier` of them were over before the trial started."""
        row = self.rows[key]
        row.stage, row.stages, row.earlier = stage, stages, earlier
        row.scores = plural(replays, "replay")
        if op is not None:
            row.scores = f"OP {op:.1f}, {row.scores}"
        if not self._live.is_started and time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._line(row)

    def ended(self, key: str, state: str, note: str = "") -> None:
        """Note that a trial is "done", "failed", "stopped" (early), or without a line "skipped"."""
        self.rows[key].state = state
        if state != "skipped":
            self._line(self.rows[key], note)

    def say(self, text: str) -> None:
        """Print a line about the sweep as a whole."""
        self.console.print(terminal(text), soft_wrap=True)

    def say_failed_before(self, count: int) -> None:
        """Print how many trials failed in an earlier call, if any, and what reruns them."""
        if count:
            self.say(f"{count} failed before and are left out; --retry-failed reruns them")

    def _line(self, row: Row, note: str = "") -> None:
        self._last_line = time.monotonic()
        over = sum(row.state not in _UNFINISHED for row in self.rows.values())
        name, *cells = row.cells()
        text = f"[{over}/{self.total}] {name}: {', '.join(filter(None, cells))}"
        if note:
            text += f": {note}"
        elif over < self.total:
            text += f" (ETA {duration(self.left_s())})"
        self.say(text)

    def left_s(self) -> float | None:
        """Estimate the seconds until all trials are over by the pace of this call's stages."""
        rows = self.rows.values()
        stages = max((row.stages for row in rows), default=0)
        left = stages * (self.total - len(rows))
        left += sum(stages - row.stage for row in rows if row.state in _UNFINISHED)
        done = sum(max(0, row.stage - row.earlier) for row in rows)
        return (time.monotonic() - self._began) / done * left if done else None

    def summary(self) -> str:
        """Count the trials by state, and estimate the rest: "6 done, 1 running, ETA 3 min"."""
        states = Counter(row.state for row in self.rows.values())
        states["waiting"] += self.total - len(self.rows)
        counts = [f"{count} {state}" for state, count in sorted(states.items()) if count]
        if states["waiting"] or states["running"]:
            counts.append(f"ETA {duration(self.left_s())}")
        return ", ".join(counts)

    def render(self) -> Group:
        """Return the trials that run, and a count of all."""
        table = Table.grid(padding=(0, 2))
        for row in self.rows.values():
            if row.state == "running":
                table.add_row(*map(terminal, row.cells()))
        return Group(table, terminal(self.summary()))
