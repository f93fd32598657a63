"""What a sweep shows while it runs: a line for each trial that is over, and below them on a
terminal one for each that runs."""

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
    """How far a trial is; `earlier` of its stages were over before this call."""

    trial: Trial
    state: str = "waiting"
    stage: int = 0
    stages: int = 0
    earlier: int = 0
    scores: str = ""
    began: float | None = None

    def cells(self) -> list[str]:
        """The name, and what is known of the trial."""
        trial, stage = self.trial, ""
        if self.state == "running" and self.stages:
            stage = f"stage {self.stage}/{self.stages}"
        seconds = 0.0 if self.began is None else time.monotonic() - self.began
        name = f"{trial.variant}, order {trial.order}, seed {trial.seed}"
        return [name, self.state, stage, self.scores, duration(seconds)]


class SweepTable:
    """The progress of the `trials` of a sweep, and of others up to `total`, if more will come.

    With `show` false it keeps quiet. It writes to `console`, by default stdout.
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
        """A trial that was not known before; one that was stays as it is."""
        self.rows.setdefault(trial.key, Row(trial))
        self.total = max(self.total, len(self.rows))

    def started(self, key: str) -> None:
        """A trial begins, goes on, or is tried again."""
        self.rows[key].state, self.rows[key].began = "running", time.monotonic()

    def advanced(
        self, key: str, stage: int, stages: int, op: float | None, replays: int, earlier: int = 0
    ) -> None:
        """A stage is over. `earlier` of them were over before the trial began this time."""
        row = self.rows[key]
        row.stage, row.stages, row.earlier = stage, stages, earlier
        row.scores = plural(replays, "replay")
        if op is not None:
            row.scores = f"OP {op:.1f}, {row.scores}"
        if not self._live.is_started and time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._line(row)

    def ended(self, key: str, state: str, note: str = "") -> None:
        """A trial is over: "done", "failed", "stopped" (early), or without a line "skipped"."""
        self.rows[key].state = state
        if state != "skipped":
            self._line(self.rows[key], note)

    def say(self, text: str) -> None:
        """A line about the sweep as a whole."""
        self.console.print(terminal(text), soft_wrap=True)

    def say_failed_before(self, count: int) -> None:
        """How many trials failed in an earlier call, if any, and what runs them again."""
        if count:
            left = "failed before and were left as they are; --retry-failed runs them again"
            self.say(f"{count} {left}")

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
        """Seconds until all trials are over, if stages go on to come as fast as in this call."""
        rows = self.rows.values()
        stages = max((row.stages for row in rows), default=0)
        left = stages * (self.total - len(rows))
        left += sum(stages - row.stage for row in rows if row.state in _UNFINISHED)
        done = sum(max(0, row.stage - row.earlier) for row in rows)
        return (time.monotonic() - self._began) / done * left if done else None

    def summary(self) -> str:
        """How many are in which state and how long the rest takes, such as "6 done, 1 running, ETA
        3 min"."""
        states = Counter(row.state for row in self.rows.values())
        states["waiting"] += self.total - len(self.rows)
        counts = [f"{count} {state}" for state, count in sorted(states.items()) if count]
        if states["waiting"] or states["running"]:
            counts.append(f"ETA {duration(self.left_s())}")
        return ", ".join(counts)

    def render(self) -> Group:
        """The trials that run, and a count of all."""
        table = Table.grid(padding=(0, 2))
        for row in self.rows.values():
            if row.state == "running":
                table.add_row(*map(terminal, row.cells()))
        return Group(table, terminal(self.summary()))
