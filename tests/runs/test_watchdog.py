"""A run in which nothing happens is ended, writes where it hung, and can be resumed."""

import multiprocessing
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
from forever.stopping import Attempt
from forever.training import loop
from forever.world import World

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["forever.training.loop", "helpers"])
HANG_S = 4.0


@pytest.mark.parametrize("hang_s", [0.0, float("inf")])
def test_a_run_that_moves_leaves_no_stacks(tmp_path: Path, hang_s: float) -> None:
    attempt = Attempt(tmp_path, 0, hang_s)
    attempt.begin()
    attempt.pulse()
    attempt.end()
    assert list(tmp_path.iterdir()) == []


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
def test_a_run_that_hangs_is_ended_and_the_next_process_says_where(
    small_config: RunConfig, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a collective, in generation, or in a tracker."""
    path = tmp_path / "run"
    process = PROCESSES.Process(target=hang, args=(small_config, path, where))
    process.start()
    process.join(60)
    assert process.exitcode == 1
    stacks = (path / "stacks.txt").read_text()
    assert "in wait_for_ever" in stacks
    assert "in train_task" in stacks or "in score_tasks" in stacks
    placement = Placement(device="cpu")
    run_local(small_config, path, resume=True, placement=placement)
    assert str(path / "stacks.txt") in capsys.readouterr().err
    execute(small_config, tmp_path / "whole")
    assert outcome(tmp_path / "whole").differences(outcome(path)) == []


def run_as_rank(rank: int, config: RunConfig, folder: Path, fault: Fault | None) -> None:
    """One of two: a run that hangs, or one that resumes and one that nothing happened to."""
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
