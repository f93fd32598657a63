"""What a sweep shows while it runs: a line for each trial that is over, and below them on a
terminal one for each that runs."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from forever.format import duration
from forever.sweeps.sweep import Trial

_LINE_EVERY_S = 30.0
_UNFINISHED = ("waiting", "running")


@dataclass
class Row:
    """How far a trial is. `earlier` of its stages were over before it `began` this time, and the
    last one was over when it `reached` it. `seconds` are those that it took."""

    trial: Trial
    state: str = "waiting"
    stage: int = 0
    stages: int = 0
    earlier: int = 0
    replays: int | None = None
    op: float | None = None
    began: float = 0.0
    reached: float = 0.0
    seconds: float = 0.0

    def left_s(self) -> float | None:
        """Seconds until the trial is over, if its stages go on to take as long as they did."""
        if self.stage <= self.earlier:
            return None
        stage_s = (self.reached - self.began) / (self.stage - self.earlier)
        return max(0.0, self.reached + stage_s * (self.stages - self.stage) - time.monotonic())

    def cells(self) -> list[str]:
        """The name, and what is known of it."""
        running = self.state == "running"
        trial, seconds = self.trial, time.monotonic() - self.began if running else self.seconds
        return [
            f"{trial.variant}, order {trial.order}, seed {trial.seed}",
            self.state,
            f"stage {self.stage}/{self.stages}" if running and self.stages else "",
            f"OP {self.op:.1f}" if self.op is not None else "",
            f"{self.replays} replays" if self.replays is not None else "",
            duration(seconds),
            f"ETA {duration(self.left_s())}" if running else "",
        ]


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
        self._began: float | None = None
        self._last_line = time.monotonic()
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
        now = time.monotonic()
        self.rows[key].state, self.rows[key].began = "running", now
        self._began = now if self._began is None else self._began

    def advanced(
        self, key: str, stage: int, stages: int, op: float | None, replays: int, earlier: int = 0
    ) -> None:
        """A stage is over. `earlier` of them were over before the trial began this time."""
        row = self.rows[key]
        row.stage, row.stages, row.earlier = stage, stages, earlier
        row.op, row.replays, row.reached = op, replays, time.monotonic()
        if not self._live.is_started and time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._line(row)

    def ended(self, key: str, state: str, note: str = "", op: float | None = None) -> None:
        """A trial is over: "done", "failed", "stopped" (early), or without a line "skipped"."""
        row = self.rows[key]
        row.seconds = time.monotonic() - row.began if row.state == "running" else 0.0
        row.state, row.op = state, row.op if op is None else op
        if state != "skipped":
            self._line(row, note)

    def say(self, text: str) -> None:
        """A line about the sweep as a whole."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _line(self, row: Row, note: str = "") -> None:
        self._last_line = time.monotonic()
        name, *cells = row.cells()
        text = f"[{self._over()}/{self.total}] {name}: {', '.join(filter(None, cells))}"
        if not note and self._over() < self.total:
            text += f" (all: {duration(self.left_s())})"
        self.say(f"{text}: {note}" if note else text)

    def _over(self) -> int:
        return sum(row.state not in _UNFINISHED for row in self.rows.values())

    def left_s(self) -> float | None:
        """Seconds until all trials are over, if stages go on to come as fast as in this call."""
        rows = self.rows.values()
        whole = max((row.stages for row in rows), default=0)
        left = [whole - row.stage for row in rows if row.state in _UNFINISHED]
        left.append(whole * (self.total - len(rows)))
        done = sum(max(0, row.stage - row.earlier) for row in rows)
        if self._began is None or not done:
            return None
        return (time.monotonic() - self._began) / done * sum(left)

    def summary(self) -> str:
        """How many are in which state and how long the rest takes, such as "6 done, 1 running, ETA
        3 min"."""
        states = Counter(row.state for row in self.rows.values())
        states["waiting"] += self.total - len(self.rows)
        counts = [f"{count} {state}" for state, count in sorted(states.items()) if count]
        eta = [] if self._over() == self.total else [f"ETA {duration(self.left_s())}"]
        return ", ".join(counts + eta)

    def render(self) -> Group:
        """The trials that run, and a count of all."""
        table = Table.grid(padding=(0, 2))
        for row in self.rows.values():
            if row.state == "running":
                table.add_row(*map(Text, row.cells()))
        return Group(table, Text(self.summary()))
