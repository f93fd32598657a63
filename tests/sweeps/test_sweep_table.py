"""What a sweep prints: the progress of each trial, and an estimate of the rest."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from forever.config.run import RunConfig
from forever.format import duration
from forever.sweeps import table as sweep_table
from forever.sweeps.sweep import Sweep
from forever.sweeps.table import SweepTable


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that a test moves."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(sweep_table, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def make(base: RunConfig, terminal: bool = False, total: int = 0) -> tuple[SweepTable, io.StringIO]:
    variants = {"base": {}, "slow": {"optim.lr": 1e-3}, "old": {"optim.lr": 1e-4}}
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, height=40)
    return SweepTable(Sweep("toys", base, variants).trials(), console=console, total=total), text


def play(table: SweepTable, clock: Any) -> None:
    base, slow, old = table.rows
    table.ended(old, "skipped")
    table.started(base)
    table.started(slow)
    clock.now += 30
    table.advanced(base, 1, 3, 50.0, replays=2)
    clock.now += 10
    table.advanced(base, 2, 3, 45.0, replays=5)
    table.ended(base, "done")
    table.ended(slow, "failed", "ValueError: [boom]")


def test_outside_a_terminal_a_sweep_prints_a_line_a_run(base_config: RunConfig, clock: Any) -> None:
    table, text = make(base_config)
    with table:
        play(table, clock)
    assert text.getvalue().splitlines() == [
        "[1/3] base, order custom, seed 0: running, stage 1/3, OP 50.0, 2 replays, 30 s "
        "(ETA 2 min)",
        "[2/3] base, order custom, seed 0: done, OP 45.0, 5 replays, 40 s (ETA 60 s)",
        "[3/3] slow, order custom, seed 0: failed, 40 s: ValueError: [boom]",
    ]
    assert table.summary() == "1 done, 1 failed, 1 skipped"


def test_on_a_terminal_running_trials_stand_below_those_that_are_over(
    base_config: RunConfig, clock: Any
) -> None:
    table, text = make(base_config, terminal=True)
    with table:
        play(table, clock)
    assert "[3/3] slow, order custom, seed 0: failed, 40 s: ValueError: [boom]" in text.getvalue()
    table.started(next(iter(table.rows)))
    table.console.print(table.render())
    running, summary = text.getvalue().splitlines()[-2:]
    assert "base, order custom, seed 0  running  stage 2/3  OP 45.0, 5 replays" in running
    assert summary.startswith("1 failed, 1 running, 1 skipped, ETA ")


def test_the_rest_is_estimated_by_the_stages_of_this_call(
    base_config: RunConfig, clock: Any
) -> None:
    table, _ = make(base_config, total=5)
    base, slow, skipped = table.rows
    table.ended(skipped, "skipped")
    table.started(base)
    table.started(slow)
    assert table.summary() == "2 running, 1 skipped, 2 waiting, ETA -"
    clock.now += 10
    for stage in (1, 2):  # of an earlier call: they took no time in this one
        table.advanced(base, stage, 4, 50.0, replays=0, earlier=2)
        assert table.left_s() is None
    table.advanced(base, 3, 4, 50.0, replays=0, earlier=2)
    table.advanced(slow, 1, 4, 50.0, replays=0)
    # 5 seconds a stage, as two run at a time; of these one and three more, and two trials of four.
    assert table.left_s() == 5 * (1 + 3 + 2 * 4)
    assert table.summary() == "2 running, 1 skipped, 2 waiting, ETA 60 s"


def test_durations_are_short() -> None:
    seconds = (None, 0.4, 99, 100, 5940, 7200)
    assert [*map(duration, seconds)] == ["-", "0 s", "99 s", "2 min", "99 min", "2.0 h"]
