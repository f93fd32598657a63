"""A run in which nothing happens is ended, says where it hung, and goes on."""

import math
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import torch.distributed as dist
from faults.inject import Fault, watched
from helpers import Then, execute, outcome

from forever.config.run import RunConfig
from forever.launch.local import Placement, run_local
from forever.training import loop
from forever.training.world import World
from forever.watchdog import Watchdog

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["forever.training.loop", "helpers"])
HANG_S = 4.0


class Looks(Event):
    """Stands for the time: `look` is called with the number of each of 100 looks."""

    def __init__(self, look: Callable[[int], None]) -> None:
        super().__init__()
        self.look, self.number = look, 0

    def wait(self, timeout: float | None = None) -> bool:
        self.number += 1
        self.look(self.number)
        return self.number > 100


@pytest.mark.parametrize(("every", "ends"), [(20, False), (21, True), (1000, True)])
def test_only_what_does_not_move_is_ended(tmp_path: Path, every: int, ends: bool) -> None:
    left: list[int] = []

    def look(number: int) -> None:
        if number % every == 0:
            watchdog.moved()

    watchdog = Watchdog(30.0, tmp_path / "stacks.txt", left.append)
    watchdog._over = Looks(look)
    watchdog.start()
    watchdog._thread.join()
    assert left == [1] * ends
    assert (tmp_path / "stacks.txt").exists() == ends


@pytest.mark.parametrize("limit_s", [1e12, math.inf])
def test_a_limit_beyond_what_a_clock_can_wait_for(limit_s: float, tmp_path: Path) -> None:
    watchdog = Watchdog(limit_s, tmp_path / "stacks.txt")
    watchdog.start()
    assert not watchdog._over.wait(0.05)
    assert watchdog._thread.is_alive()
    watchdog.stop()


def test_without_a_limit_nothing_is_watched(tmp_path: Path) -> None:
    watchdog = Watchdog(0, tmp_path / "stacks.txt")
    watchdog.start()
    assert not watchdog._thread.is_alive()
    watchdog.stop()


def wait_for_ever(*arguments: Any, **options: Any) -> None:
    Event().wait()


def hang(config: RunConfig, path: Path, where: str) -> None:
    trackers = [Then(wait_for_ever, 7)] if where == "tracker" else []
    if where != "tracker":
        setattr(loop, where, wait_for_ever)
    placement = Placement(device="cpu", checkpoint_s=0.0, hang_s=HANG_S)
    run_local(config, path, trackers=trackers, placement=placement)


@pytest.mark.parametrize(
    "where",
    ["perform", *(pytest.param(x, marks=pytest.mark.slow) for x in ("evaluate", "tracker"))],
)
def test_a_run_that_hangs_is_ended_and_says_where(
    small_config: RunConfig, tmp_path: Path, where: str
) -> None:
    """As in a collective, in generation, or in a tracker."""
    path = tmp_path / "run"
    process = PROCESSES.Process(target=hang, args=(small_config, path, where))
    process.start()
    process.join(60)
    assert process.exitcode == 1
    stacks = (path / "stacks.txt").read_text()
    assert stacks.startswith(f"nothing was done for {HANG_S:g} s; this is what process")
    assert "in wait_for_ever" in stacks
    assert "in train_task" in stacks or "in score_tasks" in stacks
    placement = Placement(device="cpu")
    run_local(small_config, path, resume=True, placement=placement)
    execute(small_config, tmp_path / "whole")
    assert outcome(tmp_path / "whole").differences(outcome(path)) == []


def run_as_rank(rank: int, config: RunConfig, folder: Path, fault: Fault | None) -> None:
    """One of two: a run that hangs, or one that goes on and one that nothing happened to."""
    where = f"file://{folder}/meeting{fault is None}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    world = World(rank, 2, torch.device("cpu"))
    if fault is not None:
        # The one that is waited for is ended later: else the other one would see it leave.
        placement = Placement(device="cpu", checkpoint_s=0.0, hang_s=HANG_S + 2 * rank)
        with watched(fault):
            run_local(config, folder / "run", placement=placement, world=world)
    for name in ("run", "whole"):
        placement = Placement(device="cpu")
        run_local(config, folder / name, resume=True, placement=placement, world=world)
    dist.destroy_process_group()


def exit_codes(*arguments: Any) -> list[int | None]:
    """Of both ranks."""
    ranks = [PROCESSES.Process(target=run_as_rank, args=(rank, *arguments)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    return [process.exitcode for process in ranks]


@pytest.mark.slow
def test_a_collective_that_hangs_is_ended_on_both_sides(
    small_config: RunConfig, tmp_path: Path
) -> None:
    """A rank does not come to a replay, in whose gradient the other one waits for it."""
    where, once = {"phase": "replay", "task": "1", "rank": "1"}, tmp_path / "held"
    assert exit_codes(small_config, tmp_path, Fault("hold", where, once=once)) == [1, 1]
    assert "all_reduce" in (tmp_path / "run/stacks.txt").read_text()
    assert "in _happen" in (tmp_path / "run/stacks-1.txt").read_text()
    assert exit_codes(small_config, tmp_path, None) == [0, 0]
    assert outcome(tmp_path / "whole").differences(outcome(tmp_path / "run")) == []
