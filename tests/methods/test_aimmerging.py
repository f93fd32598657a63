"""AIMMerging against a state machine written from its description, and where it must equal other
methods.

t task updates, S interval between merges, P updates on memory, h loss on memory, H its calibration,
f flags, Lambda pace of learning.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import KILLED_CLOSES_NO_FILES, execute, lines, outcome, rows_task
from test_recurrent_kif import (
    alike,
    by_hand,
    keep_optimizer,
    letters,
    outlive,
    random_moves,
    resumable,
    run_of,
    trained_alike,
    wide_learner,
)

from forever.config.methods.baselines import AimMergingConfig
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
from forever.methods.aimmerging import AimMerging
from forever.planning.counts import plan
from forever.training.steps import Probe, Reading, Step

pytestmark = KILLED_CLOSES_NO_FILES

EVEN = {"both": (1, 1), "past": (1, 1), "present": (1, 1), "neither": (1, 1)}
INNER = {"both": (1, 0), "past": (1, 0), "present": (1, 0), "neither": (1, 0)}


@dataclass
class Merge:
    """One merge: after which task update, how many updates on memory, with which weights."""

    t: int
    outer: int
    weights: tuple[float, float]


# ---- driven by hand


def merges_of(
    config: AimMergingConfig,
    updates: int,
    loss: Callable[[int], float] = lambda t: 1.0,
    paces: Callable[[int], float] = lambda b: 1.0,
) -> list[Merge]:
    """The merges of a task of `updates` updates, if the loss on memory after update t and pace b
    are so."""
    method, found = AimMerging(config), list[Merge]()
    method.merge = lambda learner, weights: found.append(
        Merge(learner.step, learner.updates, weights)
    )
    learner = wide_learner(4, **{"optim.epochs": 1})
    learner.planned_steps = updates
    readings = iter(range(10**6))
    list(
        by_hand(
            method,
            learner,
            rows_task("new", 4 * updates),
            lambda n: (torch.zeros(4), torch.zeros(4)),
            loss,
            lambda action: paces(next(readings)),
        )
    )
    assert learner.step == updates
    before = 0
    for merge in found:  # updates so far - task updates so far - those of earlier merges
        merge.outer, before = merge.outer - merge.t - before, merge.outer - merge.t
    return found


# ---- the reference


@dataclass
class Machine:
    """The algorithm as its description gives it, one rule a line."""

    c: AimMergingConfig
    S: int = 0
    P: int = 0
    next: int = 0
    H: list[float] = field(default_factory=list)
    h_star: float | None = None
    f: int = 0
    Lambda: list[float] = field(default_factory=list)
    intervals: list[int] = field(default_factory=list)

    def run(
        self, updates: int, loss: Callable[[int], float], paces: Callable[[int], float]
    ) -> list[Merge]:
        rho, merges = self.c.outer_steps / self.c.interval, []
        self.S, self.P, self.next = self.c.interval, self.c.outer_steps, self.c.interval
        for t in range(1, updates + 1):
            h = loss(t)
            if self.h_star is None:
                self.H.append(h)
                if len(self.H) == math.floor(2 * self.S / 3) + 1:
                    self.h_star = self.c.forgetting * sum(self.H) / len(self.H)
            else:
                self.f += h >= self.h_star or t >= self.next + self.S
            if not ((t >= self.next and self.f >= 1) or self.f >= 3):
                continue
            past, present = self.f > 1, self.c.learning_interval >= self.S
            w = {
                (1, 1): self.c.both,
                (1, 0): self.c.past,
                (0, 1): self.c.present,
                (0, 0): self.c.neither,
            }[past, present]
            merges.append(Merge(t, self.P, w))
            self.Lambda.append(paces(len(self.Lambda)))
            self.adapt(len(self.Lambda))
            self.P = max(1, int(rho * self.S + 1e-9))
            self.next, self.H, self.h_star, self.f = t + self.S, [], None, 0
            self.intervals.append(self.S)
        return merges

    def adapt(self, b: int) -> None:
        if not b > self.c.cold_merges + 1:
            return
        old, new = self.Lambda[-2], self.Lambda[-1]
        if new >= old:
            self.S = max(self.c.min_interval, int(self.S * old / new))
            if self.S >= 64:
                self.S = int(self.S / 2)
        else:
            c = old / new + (1 if self.S < 64 else 0.5)
            self.S = min(self.c.max_interval, int(self.S * c))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"forgetting": 1.2},
        {"forgetting": 1.05, "cold_merges": 0},
        {"interval": 2, "outer_steps": 5, "cold_merges": 1, "forgetting": 1.1},
        {"interval": 96, "outer_steps": 3, "cold_merges": 0, "forgetting": 1.1},
        {"interval": 3, "outer_steps": 2, "min_interval": 3, "max_interval": 20, "learning_interval": 9},
        {"interval": 1, "min_interval": 1, "outer_steps": 1, "forgetting": 1.01, "cold_merges": 0},
    ],
    ids=str,
)  # fmt: skip
def test_merges_equal_those_of_the_state_machine(config: dict[str, Any]) -> None:
    c = AimMergingConfig(**config)
    weights, intervals, early = set[tuple[float, float]](), set[int](), 0
    for seed in range(6):
        stream = random.Random(seed)
        losses = [stream.choice([1.0, 1.1, 0.9, 1.3, 2.5 if seed % 2 else 1.0]) for _ in range(501)]
        paces = [stream.choice([1.0, 1.5, 0.5, 0.7, 0.3, 1.0]) for _ in range(500)]
        machine = Machine(c)
        expected = machine.run(500, losses.__getitem__, paces.__getitem__)
        assert merges_of(c, 500, losses.__getitem__, paces.__getitem__) == expected
        assert len(expected) > 3
        assert all(c.min_interval <= s <= c.max_interval for s in machine.intervals)
        gaps = [b.t - a.t for a, b in pairwise(expected)]
        early += sum(gap < s for gap, s in zip(gaps, machine.intervals, strict=False))
        for s, merge in zip(machine.intervals, expected[1:], strict=False):
            assert merge.outer == max(1, c.outer_steps * s // c.interval)  # P / S stays what it was
        weights |= {merge.weights for merge in expected}
        intervals |= set(machine.intervals)
    assert len(intervals) > 3
    assert len(weights) > 1
    assert early or c.forgetting == 2  # three flags before the planned update


def test_constant_loss_merges_at_every_second_interval() -> None:
    """A merge is planned S updates on and forced S later: 16, 32, 48, ...; S first changes after
    the fifth merge."""
    found = merges_of(AimMergingConfig(), 130, paces=lambda b: 2.0**-b)
    assert [merge.t for merge in found[:5]] == [16, 32, 48, 64, 80]
    assert [merge.outer for merge in found] == [8] * 5 + [24]
    # paces halve: S = int(8 * (2 + 1)) = 24 from the fifth merge on, so the next is at 80 + 2 * 24
    assert [merge.t for merge in found[5:]] == [128]
    # One flag, and S is short: the present counts.
    assert {merge.weights for merge in found} == {(0.6, 0.4)}
    steady = merges_of(AimMergingConfig(), 130)  # equal paces leave S as it is
    assert [merge.t for merge in steady] == [16, 32, 48, 64, 80, 96, 112, 128]


def test_forgetting_by_hand() -> None:
    """S = 8: six losses calibrate; a loss of at least twice their mean is a flag."""
    low = AimMergingConfig()
    spikes = lambda *at: lambda t: 2.0 if t in at else 1.0  # noqa: E731
    # One flag waits for update 8, not for 16.
    assert merges_of(low, 9, spikes(7))[0] == Merge(8, 8, (0.6, 0.4))
    assert merges_of(low, 12, spikes(7, 8))[0] == Merge(8, 8, (0.5, 0.5))
    assert merges_of(low, 12, spikes(9))[0] == Merge(9, 8, (0.6, 0.4))
    assert merges_of(low, 12, spikes(1, 2))[:1] == []  # while calibrating nothing is a flag
    assert merges_of(low, 20, lambda t: 1.999 if t > 6 else 1.0)[0].t == 16
    assert merges_of(low, 20, lambda t: 2.0 if t > 6 else 1.0)[0].t == 8


def test_three_flags_merge_before_the_planned_update() -> None:
    # 21 losses calibrate, and a merge is planned for 30.
    c = AimMergingConfig(interval=30, outer_steps=4)
    spikes = lambda *at: lambda t: 2.0 if t in at else 1.0  # noqa: E731
    assert merges_of(c, 40, spikes(22, 23, 24))[0] == Merge(24, 4, (0.5, 0.5))
    assert merges_of(c, 40, spikes(22, 25, 28))[0].t == 28
    assert merges_of(c, 40, spikes(22, 23))[0] == Merge(30, 4, (0.5, 0.5))
    # Update 21 calibrates: twice the mean is more than 2.
    assert merges_of(c, 62, spikes(21, 22, 23))[0].t == 60


@pytest.mark.parametrize(
    ("interval", "flags", "weights"),
    [(70, 1, (0.6, 0.4)), (70, 2, (0.5, 0.5)), (71, 1, (0.5, 0.5)), (71, 2, (0.4, 0.6))],
)
def test_weights_by_what_matters(interval: int, flags: int, weights: tuple[float, float]) -> None:
    c = AimMergingConfig(interval=interval, outer_steps=1, both=(0.5, 0.5), neither=(0.5, 0.5))
    calibrated = 2 * interval // 3 + 1
    spikes = {calibrated + 1 + i for i in range(flags)}
    assert merges_of(c, interval, lambda t: 9.0 if t in spikes else 1.0)[0].weights == weights


@pytest.mark.parametrize(
    ("interval", "before", "now", "after"),
    [
        (8, 1.0, 1.0, 8),
        (8, 1.0, 2.0, 4),
        (8, 1.0, 100.0, 2),  # S_min
        (100, 1.0, 1.0, 50),  # long ones are halved as well
        (128, 1.0, 1.5, 42),  # int(85.3) is at least 64
        (100, 1.0, 1.6, 62),  # 62 is not
        (8, 2.0, 1.0, 24),  # ratio + 1
        (63, 1.1, 1.0, 128),  # int(63 * 2.1) and S_max
        (64, 1.1, 1.0, 102),  # ratio + 1/2
        (8, 1.0, 0.0, 128),  # nothing moved
        (8, 0.0, 0.0, 8),
        (8, 0.0, 1.0, 2),
    ],
)
def test_interval_after_a_merge(interval: int, before: float, now: float, after: int) -> None:
    method = AimMerging(AimMergingConfig())
    assert method.next_interval(interval, [5.0, 5.0, 5.0, before, now]) == after
    # The first merges are cold.
    assert method.next_interval(interval, [5.0, 5.0, before, now]) == interval


def test_actions_of_an_update() -> None:
    """A probe after every task update; before the updates on memory the pace is read."""
    method, learner = AimMerging(AimMergingConfig(interval=2, outer_steps=3)), wide_learner(6)
    actions = [a for a, _ in by_hand(method, learner, rows_task("new", 20), random_moves(6))]
    assert letters(actions) == "tptptptp" + "vrrr" + "tptptptp" + "vrrr" + "tptp"
    probes, draws = learner.memory.draws("new", "probe"), learner.memory.draws("new", "outer")
    assert [a.batch for a in actions if isinstance(a, Probe)] == list(islice(probes, 10))
    assert [a.batch for a in actions if isinstance(a, Step) and a.kind == "replay"] == list(
        islice(draws, 6)
    )
    main = [a.batch for a in actions if isinstance(a, Step) and a.kind == "task"]
    assert main == list(learner.batches(rows_task("new", 20).train))


# ---- merges


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.6, 0.4), (1.0, 1.0), (1.0, 0.0)])
def test_theta_after_a_task_equals_a_loop(weights: tuple[float, float]) -> None:
    forced: dict[str, Any] = dict.fromkeys(INNER, weights)
    method = AimMerging(AimMergingConfig(interval=2, outer_steps=3, **forced))
    learner, moves = wide_learner(20), random_moves(20)
    theta = base = learner.parameters.snapshot().double()
    readings: list[float] = []

    def read(action: Reading) -> float:
        assert action.value.dim() == 0
        readings.append(action.value.item())
        return readings[-1]

    found = list(by_hand(method, learner, rows_task("new", 20), moves, value=read))
    number, paces = 0, []
    for t in range(1, 11):
        theta = theta + moves(number)[0].double()
        number += 1
        if t % 4:
            continue
        middle = theta
        paces.append((middle - base).abs().sum().item() / 2)
        for _ in range(3):
            theta = theta + moves(number)[0].double()
            number += 1
        if weights == (0.5, 0.5):
            # The midpoint of where the block began and where the updates on memory ended.
            theta = (base + theta) / 2
        elif weights == (1.0, 0.0):
            theta = middle
        elif weights == (0.6, 0.4):
            theta = base + 0.6 * (middle - base) + 0.4 * (theta - middle)
        base = theta
    torch.testing.assert_close(found[-1][1].double(), theta, rtol=1e-4, atol=1e-5)
    assert readings == pytest.approx(paces, rel=1e-5)


def test_pace_by_planned_or_true_gap() -> None:
    """Merges come after 4 updates where an interval of 2 was planned, so the true pace is half the
    recorded one."""
    found: dict[bool, list[float]] = {}
    for true_gap in (False, True):
        learner, readings = wide_learner(20), list[float]()

        def read(action: Reading, into: list[float] = readings) -> float:
            into.append(action.value.item())
            return 1.0

        method = AimMerging(AimMergingConfig(interval=2, outer_steps=3, true_gap=true_gap))
        list(by_hand(method, learner, rows_task("new", 20), random_moves(20), value=read))
        assert learner.notes == {"merges": 2.0}
        found[true_gap] = readings
    assert found[True] == pytest.approx([pace / 2 for pace in found[False]], rel=1e-6)


def test_a_block_begins_where_the_merge_ended() -> None:
    method, learner = AimMerging(AimMergingConfig(interval=1, outer_steps=1)), wide_learner(5)
    for action, theta in by_hand(method, learner, rows_task("new", 8), random_moves(5)):
        if isinstance(action, Step) and action.kind == "replay":
            assert torch.equal(method.tensors["start"], theta)
            assert method.tensors["start"].data_ptr() != learner.parameters.flat.data_ptr()
    method.end_task(learner, rows_task("new", 8))
    assert method.tensors == {}


# ---- equal to other methods


@pytest.mark.parametrize(
    "changes", [{"data.order": ["shape"]}, {"memory.fraction": 0.0}], ids=["one task", "no memory"]
)
def test_without_memory_it_is_fine_tuning_bit_for_bit(
    small_config: RunConfig, tmp_path: Path, changes: dict[str, Any]
) -> None:
    changes = {**changes, "model.dropout": 0.1}
    plain = run_of(small_config, {"name": "finetune"}, tmp_path / "a", **changes)
    assert trained_alike(
        plain,
        run_of(
            small_config,
            {"name": "aimmerging", "interval": 1, "min_interval": 1},
            tmp_path / "b",
            **changes,
        ),
    )


def test_forced_weights_of_one_are_interleaved_replay(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"name": "aimmerging", "interval": 1, "min_interval": 1, "outer_steps": 1}
    merged = run_of(small_config, {**method, **EVEN}, tmp_path / "even")
    usual = run_of(small_config, method, tmp_path / "usual")
    monkeypatch.setattr(AimMerging, "merge", lambda self, learner, weights: None)
    plain = run_of(small_config, method, tmp_path / "plain")
    assert [x["kind"] for x in lines(tmp_path / "plain" / "steps.jsonl")].count("replay") == 4
    assert alike(plain, merged)
    assert not alike(plain, usual)


def test_forced_to_the_tasks_movement_with_a_separate_optimiser_it_is_fine_tuning(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"name": "aimmerging", "interval": 1, "min_interval": 1, "outer_steps": 2, **INNER}
    plain = run_of(small_config, {"name": "finetune"}, tmp_path / "plain")
    shared = run_of(small_config, method, tmp_path / "shared")
    keep_optimizer(monkeypatch)
    assert alike(plain, run_of(small_config, method, tmp_path / "separate"))
    assert not alike(plain, shared)


# ---- resume, plan


def test_killed_again_and_again(small_config: RunConfig, tmp_path: Path) -> None:
    """With intervals that hang on the pace, so a resumed run must know what was read from the
    weights back then, and must not read the next pace before its weights are in place."""
    method = {
        "name": "aimmerging",
        "interval": 1,
        "min_interval": 1,
        "outer_steps": 2,
        "cold_merges": 0,
    }
    config = resumable(small_config, method).override({"optim.epochs": 4})
    execute(config, tmp_path / "whole")
    kinds = [x["kind"] for x in lines(tmp_path / "whole" / "steps.jsonl") if x["task"] == "colour"]
    merges = "".join(kind[0] for kind in kinds).replace("t", " ").split()
    assert 2 <= len(merges) < 4  # and not after updates 2, 4, 6 and 8: the interval did change
    # The fourth action is the probe after which the first pace is read.
    # Probes, paces, end.
    assert outlive(config, tmp_path / "killed", stride=4) == len(kinds) + 8 + len(merges) + 1
    assert outcome(tmp_path / "whole").differences(outcome(tmp_path / "killed")) == []


def test_a_plan_counts_its_updates(small_config: RunConfig, tmp_path: Path) -> None:
    """Plans take losses and paces to be constant; so are the merges of a loss that never flags."""
    method = {
        "name": "aimmerging",
        "interval": 2,
        "outer_steps": 3,
        "forgetting": 1e6,
        "cold_merges": 99,
    }
    config = RunConfig.parse(small_config.model_dump(mode="json") | {"method": method})
    counted = plan(config, load_benchmark(config.data)).updates
    assert counted == execute(config, tmp_path)["updates"] == {"task": 12, "replay": 6}


@pytest.mark.parametrize(
    "fields", [{"interval": 1}, {"interval": 200}, {"min_interval": 9}, {"max_interval": 7}]
)
def test_an_interval_outside_of_its_bounds_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(
        InputError, match=r"interval=\d+ is outside of min_interval=\d+ and max_interval=\d+"
    ):
        RunConfig.parse({"method": {"name": "aimmerging", **fields}})
