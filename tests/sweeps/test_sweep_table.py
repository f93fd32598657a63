"""What a sweep shows: how far each trial is, and when it will be over."""

import io
from typing import Any

import pytest
from rich.console import Console

from forever.config.run import RunConfig
from forever.format import duration
from forever.sweeps import table as sweep_table
from forever.sweeps.sweep import Sweep
from forever.sweeps.table import SweepTable


class Clock:
    """Time that passes when it is told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sweep_table, "time", clock)
    return clock


def make(
    base: RunConfig, terminal: bool = False, **settings: Any
) -> tuple[SweepTable, io.StringIO]:
    variants = {"base": {}, "slow": {"optim.lr": 1e-3}, "old": {"optim.lr": 1e-4}}
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, height=40)
    return SweepTable(Sweep("toys", base, variants).trials(), console=console, **settings), text


def play(table: SweepTable, clock: Clock) -> None:
    base, slow, old = table.rows
    table.ended(old, "skipped")
    table.started(base)
    table.started(slow)
    clock.now += 20
    table.advanced(base, 1, 3, 50.0, replays=2)
    clock.now += 10
    table.advanced(base, 2, 3, 45.0, replays=5)
    table.ended(base, "done", op=125 / 3)
    table.ended(slow, "failed", "ValueError: [boom]")


def test_elsewhere_than_on_a_terminal_a_sweep_prints_a_line_a_run(
    base_config: RunConfig, clock: Clock
) -> None:
    table, text = make(base_config)
    clock.now += 30
    with table:
        play(table, clock)
    assert text.getvalue().splitlines() == [
        "[1/3] base, order custom, seed 0: running, stage 1/3, OP 50.0, 2 replays, 20 s, "
        "ETA 40 s (all: 2 min)",
        "[2/3] base, order custom, seed 0: done, OP 41.7, 5 replays, 30 s (all: 45 s)",
        "[3/3] slow, order custom, seed 0: failed, 30 s: ValueError: [boom]",
    ]
    assert table.summary() == "1 done, 1 failed, 1 skipped"


def test_on_a_terminal_the_trials_that_run_are_seen_below_those_that_are_over(
    base_config: RunConfig, clock: Clock
) -> None:
    table, text = make(base_config, terminal=True)
    with table:
        play(table, clock)
    shown = text.getvalue()
    assert "[3/3] slow, order custom, seed 0: failed, 30 s: ValueError: [boom]" in shown
    assert "1 done, 1 failed, 1 skipped" in shown
    table.started(next(iter(table.rows)))
    table.console.print(table.render())
    running, summary = text.getvalue().splitlines()[-2:]
    assert "base, order custom, seed 0  running  stage 2/3  OP 41.7  5 replays" in running
    assert summary.startswith("1 failed, 1 running, 1 skipped, ETA ")


def test_a_trial_takes_as_long_as_its_stages_took(base_config: RunConfig, clock: Clock) -> None:
    table, _ = make(base_config)
    base, slow, _ = table.rows
    assert table.summary() == "3 waiting, ETA -"
    table.started(base)
    table.started(slow)
    clock.now += 10
    table.advanced(base, 1, 4, 50.0, replays=0)
    assert table.rows[base].left_s() == 30
    clock.now += 4
    assert table.rows[base].left_s() == 26
    clock.now += 100  # longer than it was expected to
    assert table.rows[base].left_s() == 0
    assert table.rows[slow].left_s() is None


def test_stages_of_an_earlier_life_took_no_time(base_config: RunConfig, clock: Clock) -> None:
    table, _ = make(base_config)
    base = next(iter(table.rows))
    table.started(base)
    clock.now += 1
    for stage in (1, 2):
        table.advanced(base, stage, 4, 50.0, replays=0, earlier=2)
        assert table.rows[base].left_s() is None
        assert table.left_s() is None
    clock.now += 9
    table.advanced(base, 3, 4, 50.0, replays=0, earlier=2)
    assert table.rows[base].left_s() == 10


def test_what_waits_goes_on_as_fast_as_what_was_measured(
    base_config: RunConfig, clock: Clock
) -> None:
    table, _ = make(base_config, total=5)
    base, slow, skipped = table.rows
    table.ended(skipped, "skipped")
    table.started(base)
    table.started(slow)
    clock.now += 10
    table.advanced(base, 1, 4, 50.0, replays=0)
    table.advanced(slow, 1, 4, 50.0, replays=0)
    # 5 seconds a stage, as two run at a time; three more of each, and two trials of four.
    assert table.left_s() == 5 * (2 * 3 + 2 * 4)
    assert table.summary() == "2 running, 1 skipped, 2 waiting, ETA 70 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5940, "99 min"), (7200, "2.0 h")],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
