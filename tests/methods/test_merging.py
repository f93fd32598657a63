"""Methods that merge movements: Recurrent-KIF against a loop over entries, AIMMerging against rules
written from its description.

T task updates, Q inner and P outer updates of a block, N entries of Theta.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import pytest
import torch
from helpers import OLD, SMALL, method_of, rows_task, stub_learner
from torch import Tensor

from forever.config.methods.ours import AimMergingConfig, RecurrentKifConfig
from forever.models.parameters import FlatParameters
from forever.training.learner import Learner
from forever.training.steps import Action, Probe, Reading, StepRecord, drive

SIZE = 30  # N
STREAM = torch.Generator().manual_seed(0)
START = torch.randn(SIZE, generator=STREAM)
MOVES = torch.randn(400, SIZE, generator=STREAM)  # what update n does to Theta
GRADIENTS = torch.randn(400, SIZE, generator=STREAM)  # and which gradient it leaves behind
MERGING: list[dict[str, Any]] = [
    {"name": "recurrent_kif", "inner_steps": 2, "outer_steps": 1},
    {"name": "aimmerging", "interval": 1, "min_interval": 1, "outer_steps": 1},
]
each_method = pytest.mark.parametrize("fields", MERGING, ids=lambda fields: fields["name"])


@dataclass
class Trace:
    """What a method did in a task of invented movements, and the weights that it ended with."""

    learner: Learner
    actions: list[Action]
    theta: Tensor

    @property
    def letters(self) -> str:
        """t(ask), r(eplay), p(robe), v(alue)."""
        kinds = {Probe: "p", Reading: "v"}
        return "".join(kinds.get(type(a)) or a.kind[0] for a in self.actions)  # type: ignore[union-attr]


def trace(
    method: Any,
    rows: int,
    moves: Tensor = MOVES,
    loss: Callable[[int], float] = lambda t: 1.0,
    value: Callable[[Reading], float] = lambda reading: reading.value.item(),
    **changes: Any,
) -> Trace:
    """Drive a method; `loss` is that of the probe after task update t, `value` of a reading."""
    learner, task = stub_learner(OLD, **SMALL | changes), rows_task("new", rows)
    learner.parameters = FlatParameters([("theta", torch.nn.Parameter(START.clone()))])
    learner.begin(len(learner.memory.kept), task)
    method.begin_task(learner, task)

    def perform(action: Action) -> StepRecord:
        if isinstance(action, Reading):
            return StepRecord(value=value(action))
        if isinstance(action, Probe):
            return StepRecord(loss=loss(learner.step))
        learner.parameters.flat.data += moves[learner.updates % len(moves)]
        learner.parameters.grad.copy_(GRADIENTS[learner.updates % len(moves)])
        learner.updates += 1
        learner.step += action.kind == "task"
        return StepRecord()

    actions = [action for action, _ in drive(method.steps(learner, task), perform)]
    return Trace(learner, actions, learner.parameters.snapshot())


# ---- every merging method


# Q = 8 and P = 4, and what is left of the task stays unmerged; S = 2 and P = 3, a probe after every
# task update, and the pace is read before the updates on memory.
BLOCKS = [
    ("recurrent_kif", {}, 40, "t" * 8 + "rrrr" + "t" * 8 + "rrrr" + "t" * 4),
    ("aimmerging", {"interval": 2, "outer_steps": 3}, 20, 2 * ("tp" * 4 + "vrrr") + "tp" * 2),
]


@pytest.mark.parametrize(("name", "fields", "rows", "letters"), BLOCKS)
def test_blocks(name: str, fields: dict[str, Any], rows: int, letters: str) -> None:
    assert trace(method_of(name, **fields), rows).letters == letters


@each_method
@pytest.mark.parametrize("w_out", [0, 1])
def test_with_whole_movements_it_is_fine_tuning_or_interleaved_replay(
    fields: dict[str, Any], w_out: int
) -> None:
    """(1, 0) keeps what the task moved in every case of a merge, and (1, 1) all of it."""
    cases = {"both", "inner_only", "outer_only", "past", "present", "neither"}
    known = cases & method_of(**fields).config.model_dump().keys()
    found = trace(method_of(**fields, **dict.fromkeys(known, (1, w_out))), 16)
    letters = found.letters.replace("p", "").replace("v", "")
    weights = torch.tensor([1 if letter == "t" else w_out for letter in letters])
    expected = START + (weights[:, None] * MOVES[: len(letters)]).sum(0)
    assert letters.count("r") > 1
    torch.testing.assert_close(found.theta, expected, rtol=1e-4, atol=1e-5)


# ---- Recurrent-KIF, entry by entry


def important(updates: list[tuple[Tensor, Tensor]], config: RecurrentKifConfig) -> list[bool]:
    """Which entries mattered to updates that left (theta, gradient)."""
    (b1, b2), scores = config.smoothing, []
    for entry in range(SIZE):
        mean = spread = 0.0
        for theta, gradient in updates:
            importance = abs(theta[entry].item() * gradient[entry].item())
            mean = b1 * mean + (1 - b1) * importance
            spread = b2 * spread + (1 - b2) * abs(importance - mean)
        scores.append(mean * spread)
    limit = sorted(scores)[math.floor(config.quantile * (SIZE - 1) + 1e-9)]
    return [score > limit for score in scores]


def merged_by_hand(config: RecurrentKifConfig, updates: int) -> tuple[Tensor, set[str]]:
    """Theta after a task, in double precision and plain loops, and the cases that were met."""
    theta = base = START.double()
    inner: list[tuple[Tensor, Tensor]] = []
    outer: list[tuple[Tensor, Tensor]] = []
    numbers, met = count(), set()

    def move(block: list[tuple[Tensor, Tensor]]) -> Tensor:
        number = next(numbers)
        block.append((theta + MOVES[number].double(), GRADIENTS[number].double()))
        return block[-1][0]

    for t in range(1, updates + 1):
        theta = move(inner)
        if t % config.inner_steps:
            continue
        middle = theta
        for _ in range(config.outer_steps):
            theta = move(outer)
        merged = base.clone()
        masks = zip(important(inner, config), important(outer, config), strict=True)
        for j, (in_, out) in enumerate(masks):
            case = [["neither", "outer_only"], ["inner_only", "both"]][in_][out]
            w_in, w_out = getattr(config, case)
            merged[j] += w_in * (middle[j] - base[j]) + w_out * (theta[j] - middle[j])
            met.add(case)
        theta = base = merged
        inner = []  # the outer statistics continue
    return theta, met


@pytest.mark.parametrize(
    "fields",
    [
        {"inner_steps": 3, "outer_steps": 2, "quantile": 0.6},
        {"inner_steps": 3, "outer_steps": 2, "quantile": 0.6, "smoothing": (0.55, 0.3)},
        {"inner_steps": 4, "outer_steps": 1, "both": (1, 1), "neither": (0, 0)},  # the paper's
        {"inner_steps": 2, "quantile": 0.0},
    ],
    ids=str,
)  # fmt: skip
def test_a_task_equals_loops_over_entries(fields: dict[str, Any]) -> None:
    method = method_of("recurrent_kif", **fields)
    found = trace(method, 26)
    expected, met = merged_by_hand(method.config, found.learner.step)
    torch.testing.assert_close(found.theta.double(), expected, rtol=1e-4, atol=1e-4)
    assert found.learner.notes["merges"] == 14 // method.config.inner_steps
    assert len(met) == 4 or method.config.quantile != 0.6


# ---- AIMMerging


@dataclass
class Merge:
    """One merge: after which task update, how many updates on memory, with which weights."""

    t: int
    outer: int
    weights: tuple[float, float]


def merges_of(
    config: dict[str, Any],
    updates: int,
    loss: Callable[[int], float] = lambda t: 1.0,
    pace: Callable[[int], float] = lambda b: 1.0,
) -> list[Merge]:
    """The merges of a task, if the loss on memory after update t and pace b are so."""
    method, found, paces = method_of("aimmerging", **config), list[Merge](), map(pace, count())

    def merge(learner: Learner, w_in: float, w_out: float) -> None:
        outer = learner.updates - learner.step - sum(merge.outer for merge in found)
        found.append(Merge(learner.step, outer, (w_in, w_out)))

    method.merge = merge
    trace(method, 4 * updates, MOVES * 0, loss, lambda _: next(paces), **{"optim.epochs": 1})
    return found


def merges_by_rule(
    c: AimMergingConfig, updates: int, loss: Callable[[int], float], pace: Callable[[int], float]
) -> tuple[list[Merge], set[int]]:
    """The algorithm as its description gives it, a rule a line: its merges, and all values of S."""
    S, P, planned, rho = c.interval, c.outer_steps, c.interval, c.outer_steps / c.interval
    H, h_star, f = list[float](), math.inf, 0
    Lambda, merges, intervals = list[float](), list[Merge](), set[int]()
    for t in range(1, updates + 1):
        if len(H) < math.floor(2 * S / 3) + 1:
            H.append(loss(t))
            if len(H) == math.floor(2 * S / 3) + 1:
                h_star = c.forgetting * sum(H) / len(H)
        else:
            f += loss(t) >= h_star or t >= planned + S
        if not ((t >= planned and f >= 1) or f >= 3):
            continue
        past, present = f > 1, c.learning_interval >= S
        merges.append(Merge(t, P, [[c.neither, c.present], [c.past, c.both]][past][present]))
        Lambda.append(pace(len(Lambda)))
        if len(Lambda) > c.cold_merges + 1:
            S = next_interval(c, S, Lambda[-2], Lambda[-1])
        P = max(1, int(rho * S + 1e-9))
        planned, H, h_star, f = t + S, [], math.inf, 0
        intervals.add(S)
    return merges, intervals


def next_interval(c: AimMergingConfig, S: int, old: float, new: float) -> int:
    if new < old:
        growth = old / new + (1 if S < 64 else 0.5)
        return min(c.max_interval, int(S * growth))
    S = max(c.min_interval, int(S * old / new))
    return int(S / 2) if S >= 64 else S


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"interval": 2, "outer_steps": 5, "cold_merges": 1, "forgetting": 1.1},
        {"interval": 96, "outer_steps": 3, "cold_merges": 0, "forgetting": 1.1},
        {"interval": 3, "outer_steps": 2, "min_interval": 3, "max_interval": 20,
         "learning_interval": 9},
        {"interval": 1, "min_interval": 1, "outer_steps": 1, "forgetting": 1.01, "cold_merges": 0},
    ],
    ids=str,
)  # fmt: skip
def test_merges_equal_those_of_the_rules(config: dict[str, Any]) -> None:
    weights, intervals, c = set[tuple[float, float]](), set[int](), AimMergingConfig(**config)
    for seed in range(6):
        stream = random.Random(seed)
        losses = [stream.choice([1.0, 1.1, 0.9, 1.3, 2.5 if seed % 2 else 1.0]) for _ in range(501)]
        paces = [stream.choice([1.0, 1.5, 0.5, 0.7, 0.3, 1.0]) for _ in range(500)]
        expected, found = merges_by_rule(c, 500, losses.__getitem__, paces.__getitem__)
        assert merges_of(config, 500, losses.__getitem__, paces.__getitem__) == expected
        assert len(expected) > 3
        weights |= {merge.weights for merge in expected}
        intervals |= found
    assert len(intervals) > 3
    assert len(weights) > 1


def test_constant_loss_merges_at_every_second_interval() -> None:
    """A merge is planned S updates on and forced S later; S first changes after the fifth."""
    found = merges_of({}, 130, pace=lambda b: 2.0**-b)
    # Paces halve: S = int(8 * (2 + 1)) = 24 from the fifth merge on, so the next is at 80 + 2 * 24.
    assert [merge.t for merge in found] == [16, 32, 48, 64, 80, 128]
    assert [merge.outer for merge in found] == [8] * 5 + [24]
    assert {merge.weights for merge in found} == {(0.6, 0.4)}  # one flag, S short: the present
    steady = merges_of({}, 130)  # equal paces leave S as it is
    assert [merge.t for merge in steady] == [16, 32, 48, 64, 80, 96, 112, 128]


def test_forgetting_by_hand() -> None:
    """S = 8: six losses calibrate; a loss of at least twice their mean is a flag."""
    spikes = lambda *at: lambda t: 2.0 if t in at else 1.0  # noqa: E731
    # One flag waits for update 8, not for 16.
    assert merges_of({}, 9, spikes(7))[0] == Merge(8, 8, (0.6, 0.4))
    assert merges_of({}, 12, spikes(7, 8))[0] == Merge(8, 8, (0.5, 0.5))
    assert merges_of({}, 12, spikes(9))[0] == Merge(9, 8, (0.6, 0.4))
    assert merges_of({}, 12, spikes(1, 2)) == []  # while calibrating nothing is a flag
    assert merges_of({}, 20, lambda t: 1.999 if t > 6 else 1.0)[0].t == 16
    assert merges_of({}, 20, lambda t: 2.0 if t > 6 else 1.0)[0].t == 8


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
    method = method_of("aimmerging")
    assert method.next_interval(interval, [5.0, 5.0, 5.0, before, now]) == after
    # The first merges are cold.
    assert method.next_interval(interval, [5.0, 5.0, before, now]) == interval


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.6, 0.4)])
def test_theta_after_a_task_equals_a_loop(weights: tuple[float, float]) -> None:
    cases = dict.fromkeys(("both", "past", "present", "neither"), weights)
    readings: list[float] = []

    def read(action: Reading) -> float:
        readings.append(action.value.item())
        return readings[-1]

    found = trace(method_of("aimmerging", interval=2, outer_steps=3, **cases), 20, value=read)
    (w_in, w_out), moves, paces = weights, iter(MOVES.double()), []
    theta = base = START.double()
    for t in range(1, 11):
        theta = theta + next(moves)
        if t % 4 == 0:
            inner, outer = theta - base, sum(islice(moves, 3), torch.zeros(SIZE))
            paces.append(inner.abs().sum().item() / 2)
            theta = base = base + w_in * inner + w_out * outer
    torch.testing.assert_close(found.theta.double(), theta, rtol=1e-4, atol=1e-5)
    assert readings == pytest.approx(paces, rel=1e-5)
