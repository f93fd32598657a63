"""Methods that merge movements: Recurrent-KIF against a loop over entries, AIMMerging against a
state machine written from its description, and where they must equal other methods.

T task updates, Q inner and P outer updates of a block, N entries of Theta.
"""

import copy
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import KILLED_CLOSES_NO_FILES, Outcome, lines, react, rows_task, run_of, stub_learner
from torch import Tensor

from forever.config.methods.baselines import AimMergingConfig, RecurrentKifConfig
from forever.config.run import RunConfig
from forever.data.tasks import Task
from forever.errors import InputError
from forever.methods.aimmerging import AimMerging
from forever.methods.base import Method
from forever.methods.recurrent_kif import RecurrentKif
from forever.models.parameters import FlatParameters
from forever.training import step as step_module
from forever.training.learner import Learner
from forever.training.step import optimizer_step
from forever.training.steps import Action, Probe, Reading, Step, StepRecord

pytestmark = KILLED_CLOSES_NO_FILES

OLD = [rows_task("old", 40), rows_task("older", 30)]
SMALL: dict[str, Any] = {"memory.fraction": 0.25, "optim.batch_size": 4, "optim.epochs": 2}


def kif(**fields: Any) -> RecurrentKif:
    return RecurrentKif(RecurrentKifConfig(**fields))


Moves = Callable[[int], tuple[Tensor, Tensor]]


def random_moves(size: int, seed: int = 0) -> Moves:
    """What update n does to Theta, and the gradient it leaves behind: [N] each."""
    stream = torch.Generator().manual_seed(seed)
    table = [
        (torch.randn(size, generator=stream), torch.randn(size, generator=stream))
        for _ in range(400)
    ]
    return lambda n: table[n]


def by_hand(
    method: Method[Any],
    learner: Learner,
    task: Task,
    moves: Moves,
    loss: Callable[[int], float] = lambda t: 1.0,
    value: Callable[[Reading], float] = lambda reading: reading.value.item(),
) -> Iterator[tuple[Action, Tensor]]:
    """Drive a generator on invented movements; yields each action with Theta after the reaction to
    it.

    `loss`: of the probe after task update t. `value`: of a reading, by default what it says.
    """
    learner.begin(len(learner.memory.kept), task)
    method.begin_task(learner, task)
    generator = method.steps(learner, task)
    action = next(generator, None)
    number = 0
    while action is not None:
        done, record = action, StepRecord()
        if isinstance(action, Step):
            delta, grad = moves(number)
            number += 1
            learner.parameters.flat.data += delta
            learner.parameters.grad.copy_(grad)
        elif isinstance(action, Probe):
            record = StepRecord(loss=loss(learner.step))
        elif isinstance(action, Reading):
            record = StepRecord(value=value(action))
        action = react(learner, generator, action, record)
        yield done, learner.parameters.snapshot()


def wide_learner(size: int, seed: int = 1, **changes: Any) -> Learner:
    """A stub with Theta of `size` random entries and a memory of two finished tasks."""
    learner = stub_learner(OLD, **{**SMALL, **changes})
    start = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    learner.parameters = FlatParameters([("theta", torch.nn.Parameter(start))])
    return learner


def letters(actions: list[Action]) -> str:
    """t(ask), r(eplay), p(robe), v(alue)."""
    return "".join(
        a.kind[0] if isinstance(a, Step) else "p" if isinstance(a, Probe) else "v" for a in actions
    )


# ---- the reference, entry by entry


def smoothed(pairs: list[tuple[Tensor, Tensor]], entry: int, b1: float, b2: float) -> float:
    """The importance of one entry after updates that left (theta, gradient)."""
    mean = spread = 0.0
    for theta, grad in pairs:
        importance = abs(theta[entry].item() * grad[entry].item())
        mean = b1 * mean + (1 - b1) * importance
        spread = b2 * spread + (1 - b2) * abs(importance - mean)
    return mean * spread


def top(scores: list[float], quantile: float) -> list[bool]:
    limit = sorted(scores)[math.floor(quantile * (len(scores) - 1) + 1e-9)]
    return [score > limit for score in scores]


def reference(
    config: RecurrentKifConfig, start: Tensor, moves: Moves, updates: int
) -> tuple[Tensor, list[set[str]]]:
    """Theta [N] after a task, in double precision and plain loops, and which of the four cases each
    block met."""
    theta, number, met = start.double(), 0, []
    size, base = len(start), start.double()
    inner: list[tuple[Tensor, Tensor]] = []
    outer: list[tuple[Tensor, Tensor]] = []
    for t in range(1, updates + 1):
        theta = theta + moves(number)[0].double()
        inner.append((theta, moves(number)[1].double()))
        number += 1
        if t % config.inner_steps:
            continue
        middle = theta
        for _ in range(config.outer_steps):
            theta = theta + moves(number)[0].double()
            outer.append((theta, moves(number)[1].double()))
            number += 1
        in_ = top([smoothed(inner, j, *config.smoothing) for j in range(size)], config.quantile)
        out = top([smoothed(outer, j, *config.smoothing) for j in range(size)], config.quantile)
        merged, cases = base.clone(), set()
        for j in range(size):
            case = {(1, 1): "both", (1, 0): "inner_only", (0, 1): "outer_only", (0, 0): "neither"}[
                in_[j], out[j]
            ]
            w_in, w_out = getattr(config, case)
            merged[j] += w_in * (middle[j] - base[j]) + w_out * (theta[j] - middle[j])
            cases.add(case)
        met.append(cases)
        theta = base = merged
        inner = []  # the outer statistics go on
    return theta, met


@pytest.mark.parametrize(
    "fields",
    [
        {"inner_steps": 3, "outer_steps": 2, "quantile": 0.6},
        {"inner_steps": 3, "outer_steps": 2, "quantile": 0.6, "smoothing": (0.55, 0.3)},
        # The paper's formula.
        {"inner_steps": 4, "outer_steps": 1, "both": (1, 1), "neither": (0, 0)},
        {
            "inner_steps": 1,
            "outer_steps": 3,
            "both": (0.1, 0.7),
            "inner_only": (0.2, 0.3),
            "outer_only": (0.5, 0.9),
        },
        {"inner_steps": 2, "quantile": 0.0},
    ],
    ids=str,
)
def test_a_task_equals_loops_over_entries(fields: dict[str, Any]) -> None:
    method, learner, moves = kif(**fields), wide_learner(30), random_moves(30)
    start = learner.parameters.snapshot()
    found = list(by_hand(method, learner, rows_task("new", 26), moves))
    assert learner.planned_steps == 14
    expected, met = reference(method.config, start, moves, 14)
    torch.testing.assert_close(found[-1][1].double(), expected, rtol=1e-4, atol=1e-4)
    assert len(met) == 14 // method.config.inner_steps
    if method.config.quantile == 0.6:
        assert set.union(*met) == {"both", "inner_only", "outer_only", "neither"}


def test_blocks() -> None:
    """Q = 8 and P = 4; floor(T / 8) blocks, and what is left of the task stays unmerged."""
    method, learner = kif(), wide_learner(10)
    found = list(by_hand(method, learner, rows_task("new", 40), random_moves(10)))
    assert letters([action for action, _ in found]) == "t" * 8 + "rrrr" + "t" * 8 + "rrrr" + "t" * 4
    merges: list[int] = []
    longer = kif()
    longer.merge = lambda learner: merges.append(learner.step)
    list(by_hand(longer, wide_learner(10), rows_task("new", 118), random_moves(10)))
    assert merges == [8, 16, 24, 32, 40, 48, 56]  # T = 60


# ---- merges


def test_entries_that_did_not_move_stay_put_exactly() -> None:
    moves, learner = random_moves(50), wide_learner(50)
    start, still = learner.parameters.snapshot(), torch.arange(50) % 3 == 0
    found = by_hand(
        kif(inner_steps=2),
        learner,
        rows_task("new", 16),
        lambda n: (moves(n)[0].masked_fill(still, 0.0), moves(n)[1]),
    )
    end = list(found)[-1][1]
    assert torch.equal(end[still], start[still])
    assert (end[~still] != start[~still]).all()


def test_statistics_are_empty_at_the_start_of_each_task_and_gone_at_its_end() -> None:
    method, learner = kif(inner_steps=2), wide_learner(10)
    list(by_hand(method, learner, rows_task("new", 12), random_moves(10)))
    assert method.tensors["outer_I"].any()
    method.begin_task(learner, rows_task("next", 12))
    assert not any(
        method.tensors[f"{block}_{side}"].any() for block in ("inner", "outer") for side in "IU"
    )
    assert torch.equal(method.tensors["start"], learner.parameters.flat.detach())
    method.end_task(learner, rows_task("next", 12))
    assert method.tensors == {}  # nothing of it has to be kept with the finished model


# ---- equal to other methods


# ---- resume, plan


# ---- AIMMerging


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
        {"interval": 3, "outer_steps": 2, "min_interval": 3, "max_interval": 20,
         "learning_interval": 9},
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
    forced: dict[str, Any] = dict.fromkeys(("both", "past", "present", "neither"), weights)
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


def test_a_block_begins_where_the_merge_ended() -> None:
    method, learner = AimMerging(AimMergingConfig(interval=1, outer_steps=1)), wide_learner(5)
    for action, theta in by_hand(method, learner, rows_task("new", 8), random_moves(5)):
        if isinstance(action, Step) and action.kind == "replay":
            assert torch.equal(method.tensors["start"], theta)
            assert method.tensors["start"].data_ptr() != learner.parameters.flat.data_ptr()
    method.end_task(learner, rows_task("new", 8))
    assert method.tensors == {}


# ---- equal to other methods


# ---- resume, plan


@pytest.mark.parametrize(
    "fields", [{"interval": 1}, {"interval": 200}, {"min_interval": 9}, {"max_interval": 7}]
)
def test_an_interval_outside_of_its_bounds_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(
        InputError, match=r"interval=\d+ is outside of min_interval=\d+ and max_interval=\d+"
    ):
        RunConfig.parse({"method": {"name": "aimmerging", **fields}})


# ---- equal to other methods


MERGING: list[dict[str, Any]] = [
    {"name": "recurrent_kif", "inner_steps": 2, "outer_steps": 1},
    {"name": "aimmerging", "interval": 1, "min_interval": 1, "outer_steps": 1},
]


def forced(method: dict[str, Any], w_in: int, w_out: int) -> dict[str, Any]:
    """The method with the same two weights for every case of a merge."""
    fields = RunConfig.parse({"method": method}).method.model_dump()
    cases = {"both", "inner_only", "outer_only", "past", "present", "neither"} & fields.keys()
    return method | dict.fromkeys(cases, (w_in, w_out))


def alike(a: Outcome, b: Outcome) -> bool:
    """Whether adapters are equal up to rounding, of which Adam makes more where gradients are
    tiny."""
    return all(torch.allclose(t, b.adapter[n], rtol=1e-3, atol=1e-4) for n, t in a.adapter.items())


@pytest.mark.parametrize("method", MERGING, ids=lambda method: method["name"])
def test_forced_weights_of_one_are_interleaved_replay(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: dict[str, Any]
) -> None:
    merged = run_of(small_config, forced(method, 1, 1), tmp_path / "even")
    usual = run_of(small_config, method, tmp_path / "usual")
    for kind in (RecurrentKif, AimMerging):
        monkeypatch.setattr(kind, "merge", lambda *arguments: None)
    plain = run_of(small_config, method, tmp_path / "plain")
    assert [x["kind"] for x in lines(tmp_path / "plain" / "steps.jsonl")].count("replay") == 4
    assert alike(plain, merged)
    assert not alike(plain, usual)


@pytest.mark.parametrize("method", MERGING, ids=lambda method: method["name"])
def test_forced_to_the_tasks_movement_with_moments_of_its_own_it_is_fine_tuning(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: dict[str, Any]
) -> None:
    """Moments of updates on memory reach the task's updates, unless there are two optimisers."""
    honest = optimizer_step

    def separate(learner: Learner, method: Any, step: Step) -> StepRecord:
        assert learner.optimizer is not None
        before = copy.deepcopy(learner.optimizer.state_dict())
        record = honest(learner, method, step)
        if step.kind == "replay":
            learner.optimizer.load_state_dict(before)
        return record

    plain = run_of(small_config, {"name": "finetune"}, tmp_path / "plain")
    shared = run_of(small_config, forced(method, 1, 0), tmp_path / "shared")
    monkeypatch.setattr(step_module, "optimizer_step", separate)
    assert alike(plain, run_of(small_config, forced(method, 1, 0), tmp_path / "separate"))
    assert not alike(plain, shared)
