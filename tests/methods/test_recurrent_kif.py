"""Recurrent-KIF against a loop over entries, and where it must equal other methods.

T task updates, Q inner and P outer updates of a block, N entries of Theta.
"""

import copy
import gc
import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import KILLED_CLOSES_NO_FILES, execute, lines, outcome, rows_task, stub_learner
from torch import Tensor

from forever.config.methods.baselines import RecurrentKifConfig
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Task
from forever.launch.local import Placement, run_local
from forever.methods.base import Method
from forever.methods.recurrent_kif import RecurrentKif
from forever.models.parameters import FlatParameters
from forever.planning.counts import plan
from forever.runs import checkpoint
from forever.training import step as step_module
from forever.training.learner import Learner
from forever.training.step import optimizer_step
from forever.training.steps import Action, Probe, Reading, Step, StepRecord

pytestmark = KILLED_CLOSES_NO_FILES

OLD = [rows_task("old", 40), rows_task("older", 30)]
SMALL: dict[str, Any] = {"memory.fraction": 0.25, "optim.batch_size": 4, "optim.epochs": 2}
EVEN = {"both": (1, 1), "inner_only": (1, 1), "outer_only": (1, 1), "neither": (1, 1)}
INNER = {"both": (1, 0), "inner_only": (1, 0), "outer_only": (1, 0), "neither": (1, 0)}


def kif(**fields: Any) -> RecurrentKif:
    return RecurrentKif(RecurrentKifConfig(**fields))


# ---- helpers, also for the tests of other methods


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it."""


def outlive(config: RunConfig, path: Path, stride: int = 1) -> int:
    """A run that is killed after every `stride` actions of its second task and later ones; returns
    how many were saved.

    Being over is an action of a task, too.
    """
    save, saved = checkpoint.save, 0

    def die(folder: Path, stage: int, *rest: Any) -> None:
        nonlocal saved
        save(folder, stage, *rest)
        saved += stage > 0
        if stage and saved % stride == 0:
            raise Killed

    while True:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, "save", die)
            try:
                run_local(
                    config, path, resume=True, placement=Placement(device="cpu", checkpoint_s=0.0)
                )
                return saved
            except Killed:
                gc.collect()


def resumable(config: RunConfig, method: dict[str, Any]) -> RunConfig:
    """Two tasks with dropout, so that random streams have to be found again."""
    changes = {
        "data.order": ["shape", "colour"],
        "model.dropout": 0.1,
        "optim.lr": 0.05,
        "memory.fraction": 0.5,
    }
    return RunConfig.parse(config.override(changes).model_dump(mode="json") | {"method": method})


def run_of(config: RunConfig, method: dict[str, Any], path: Path, **changes: Any) -> Any:
    """The outcome of a method under a configuration."""
    execute(
        RunConfig.parse(config.override(changes).model_dump(mode="json") | {"method": method}), path
    )
    return outcome(path)


def trained_alike(a: Any, b: Any) -> bool:
    """Whether two runs have the same updates and weights, bit for bit."""
    same = all(torch.equal(t, b.adapter[n]) for n, t in a.adapter.items())
    return (
        same
        and a.adapter.keys() == b.adapter.keys()
        and a.files["steps.jsonl"] == b.files["steps.jsonl"]
    )


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
        record = StepRecord()
        if isinstance(action, Step):
            delta, grad = moves(number)
            number += 1
            learner.parameters.flat.data += delta
            learner.parameters.grad.copy_(grad)
            learner.updates += 1
            learner.step += action.kind == "task"
        elif isinstance(action, Probe):
            record = StepRecord(loss=loss(learner.step))
        elif isinstance(action, Reading):
            record = StepRecord(value=value(action))
        done = action
        try:
            action = generator.send(record)
        except StopIteration:
            action = None
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


def test_outer_batches_are_random_draws_and_main_ones_those_of_fine_tuning() -> None:
    method, learner = kif(inner_steps=3, outer_steps=2), wide_learner(10)
    actions = [
        action for action, _ in by_hand(method, learner, rows_task("new", 40), random_moves(10))
    ]
    steps = [action for action in actions if isinstance(action, Step)]
    draws = learner.memory.draws("new", "outer")
    assert [s.batch for s in steps if s.kind == "replay"] == list(islice(draws, 2 * 6))
    assert [s.batch for s in steps if s.kind == "task"] == list(
        learner.batches(rows_task("new", 40).train)
    )


# ---- merges


def statistics(mask: list[bool]) -> Tensor:
    """Scores of which those of `mask` are above any quantile that leaves so many."""
    return torch.tensor([1.0 if on else 0.0 for on in mask])


def merge_once(
    method: RecurrentKif, start: Tensor, middle: Tensor, end: Tensor, inner: Tensor, outer: Tensor
) -> Any:
    learner = stub_learner(OLD)
    learner.parameters = FlatParameters([("theta", torch.nn.Parameter(end.clone()))])
    method.tensors |= {"start": start.clone(), "middle": middle.clone()}
    for name, scores in (("inner", inner), ("outer", outer)):
        method.tensors |= {f"{name}_I": scores.clone(), f"{name}_U": scores.clone()}
    method.merge(learner)
    return learner.parameters.flat.detach()


def test_the_four_cases_by_hand() -> None:
    start, middle, end = torch.zeros(4), torch.full((4,), 10.0), torch.full((4,), 12.0)
    inner, outer = statistics([True, True, False, False]), statistics([True, False, True, False])
    method = kif(quantile=0.5)
    merged = merge_once(method, start, middle, end, inner, outer)
    assert merged.tolist() == pytest.approx([0.4 * 10 + 0.6 * 2, 10, 2, 0.5 * 10 + 0.5 * 2])
    paper = merge_once(
        kif(quantile=0.5, both=(1, 1), neither=(0, 0)), start, middle, end, inner, outer
    )
    assert paper.tolist() == [12, 10, 2, 0]


def test_after_a_merge_the_inner_statistics_begin_anew_and_the_outer_go_on() -> None:
    method = kif()
    inner, outer = torch.rand(8), torch.rand(8)
    merged = merge_once(method, torch.zeros(8), torch.ones(8), torch.full((8,), 3.0), inner, outer)
    assert torch.equal(method.tensors["start"], merged)
    assert method.tensors["start"].data_ptr() != merged.data_ptr()
    assert not method.tensors["inner_I"].any()
    assert not method.tensors["inner_U"].any()
    assert torch.equal(method.tensors["outer_I"], outer)
    assert torch.equal(method.tensors["outer_U"], outer)


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


def test_entries_that_did_not_move_stay_put_exactly() -> None:
    stream = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=stream)
    still = torch.arange(50) % 3 == 0
    middle = torch.where(still, start, start + torch.randn(50, generator=stream))
    end = torch.where(still, middle, middle + torch.randn(50, generator=stream))
    merged = merge_once(kif(), start, middle, end, torch.rand(50), torch.rand(50))
    assert torch.equal(merged[still], start[still])
    assert (merged[~still] != start[~still]).all()


def test_quantile_zero_merges_all_but_the_smallest_as_important_to_both() -> None:
    scores = torch.arange(10.0) + 1
    merged = merge_once(
        kif(quantile=0.0),
        torch.zeros(10),
        torch.full((10,), 10.0),
        torch.full((10,), 20.0),
        *[scores] * 2,
    )
    # .5 and .5 for the smallest, .4 and .6 for the others.
    assert merged.tolist() == pytest.approx([10] + [10] * 9)
    merged = merge_once(
        kif(quantile=0.0),
        torch.zeros(10),
        torch.full((10,), 10.0),
        torch.full((10,), 30.0),
        *[scores] * 2,
    )
    assert merged.tolist() == pytest.approx([15] + [16] * 9)


@pytest.mark.parametrize("scale", [2.0**-7, 2.0**6])
def test_scaling_the_loss_on_memory_changes_no_mask(scale: float) -> None:
    """The same movements with other gradients in the outer blocks give the same merges bit for
    bit."""
    ends = []
    for c in (1.0, scale):
        moves, learner = random_moves(30), wide_learner(30)
        method = kif(inner_steps=4, outer_steps=2)
        outer = {n for n in range(100) if n % 6 in (4, 5)}
        scaled = lambda n, c=c, moves=moves, outer=outer: (
            moves(n)[0],
            moves(n)[1] * (c if n in outer else 1.0),
        )  # noqa: E731
        ends.append(list(by_hand(method, learner, rows_task("new", 40), scaled))[-1][1])
    assert torch.equal(ends[0], ends[1])


def test_weights_of_one_undo_nothing() -> None:
    """Forced (1, 1): Theta after a merge is what it was before; forced (1, 0): what it was before
    the outer block."""
    moves = random_moves(20)
    plain = wide_learner(20).parameters.snapshot()
    sums = [plain]
    for n in range(16):
        sums.append(sums[-1] + moves(n)[0])
    end = list(
        by_hand(
            kif(inner_steps=2, outer_steps=2, **EVEN), wide_learner(20), rows_task("new", 16), moves
        )
    )[-1][1]
    torch.testing.assert_close(end, sums[16], rtol=1e-4, atol=1e-5)
    end = list(
        by_hand(
            kif(inner_steps=2, outer_steps=2, **INNER),
            wide_learner(20),
            rows_task("new", 16),
            moves,
        )
    )[-1][1]
    inner = plain + sum((moves(n)[0] for n in range(16) if n % 4 < 2), torch.zeros(20))
    torch.testing.assert_close(end, inner, rtol=1e-4, atol=1e-5)


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
            small_config, {"name": "recurrent_kif", "inner_steps": 1}, tmp_path / "b", **changes
        ),
    )


def test_forced_weights_of_one_are_interleaved_replay(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"name": "recurrent_kif", "inner_steps": 2, "outer_steps": 1}
    merged = run_of(small_config, {**method, **EVEN}, tmp_path / "even")
    usual = run_of(small_config, method, tmp_path / "usual")
    monkeypatch.setattr(RecurrentKif, "merge", lambda self, learner: None)
    plain = run_of(small_config, method, tmp_path / "plain")
    assert alike(plain, merged)
    assert not alike(plain, usual)


def alike(a: Any, b: Any) -> bool:
    """Whether adapters are equal up to rounding, of which Adam makes more where gradients are
    tiny."""
    return all(torch.allclose(t, b.adapter[n], rtol=1e-3, atol=1e-4) for n, t in a.adapter.items())


def keep_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let updates on memory have moments of their own: as with a separate outer optimiser."""
    honest = optimizer_step

    def separate(learner: Learner, method: Any, step: Step) -> StepRecord:
        assert learner.optimizer is not None
        before = copy.deepcopy(learner.optimizer.state_dict())
        record = honest(learner, method, step)
        if step.kind == "replay":
            learner.optimizer.load_state_dict(before)
        return record

    monkeypatch.setattr(step_module, "optimizer_step", separate)


def test_forced_to_the_inner_movement_with_a_separate_optimiser_it_is_fine_tuning(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"name": "recurrent_kif", "inner_steps": 2, "outer_steps": 2, **INNER}
    plain = run_of(small_config, {"name": "finetune"}, tmp_path / "plain")
    shared = run_of(small_config, method, tmp_path / "shared")
    keep_optimizer(monkeypatch)
    separate = run_of(small_config, method, tmp_path / "separate")
    assert alike(plain, separate)
    assert not alike(plain, shared)  # moments from memory reach the task's updates
    assert [x["kind"] for x in lines(tmp_path / "separate" / "steps.jsonl")].count("replay") == 8


# ---- resume, plan


def test_killed_again_and_again(small_config: RunConfig, tmp_path: Path) -> None:
    config = resumable(
        small_config, {"name": "recurrent_kif", "inner_steps": 2, "outer_steps": 2, "quantile": 0.5}
    )
    execute(config, tmp_path / "whole")
    assert outlive(config, tmp_path / "killed", stride=3) == 4 + 4 + 1  # once within an outer block
    assert outcome(tmp_path / "whole").differences(outcome(tmp_path / "killed")) == []


def test_a_plan_counts_its_updates(small_config: RunConfig, tmp_path: Path) -> None:
    method = {"name": "recurrent_kif", "inner_steps": 3}
    config = RunConfig.parse(small_config.model_dump(mode="json") | {"method": method})
    counted = plan(config, load_benchmark(config.data)).updates
    assert counted == execute(config, tmp_path)["updates"] == {"task": 12, "replay": 8}
