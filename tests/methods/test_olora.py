"""O-LoRA against its formula: the penalty and its gradient, the frozen stack, and what is refused.

That frozen adapters add up is tested in tests/models/test_lora.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import begin, execute, learn, start, toy
from torch import Tensor

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.checks import refused
from forever.launch.local import prepare
from forever.methods.registry import build_method
from forever.models import lora
from forever.models.backbone import load
from forever.sweeps.sweep import Sweep
from forever.training.build import build_learner
from forever.training.learner import Learner
from forever.training.steps import Forward
from forever.world import World


def after(config: RunConfig, tasks: int, **fields: Any) -> tuple[Learner, Any]:
    """A learner at the start of the task after the first `tasks`."""
    learner, method = begin(config, {"name": "olora", **fields})
    learn(learner, method, *toy(config)[:tasks])
    start(learner, method, toy(config)[tasks])
    return learner, method


def added(learner: Learner, method: Any, share: float = 1.0) -> Tensor:
    """The penalty alone."""
    return method.loss(learner, Forward(torch.zeros(()), share, [], torch.empty(0)))


def banks(learner: Learner) -> list[lora.LoraBank]:
    return [bank for _, bank in lora.banks(learner.backbone.model)]


@pytest.mark.parametrize(("form", "power"), [("l1", 1), ("sq", 2)])
def test_penalty_against_its_entries(small_config: RunConfig, form: str, power: int) -> None:
    fields = {"orthogonality": 0.7, "norm": 0.3, "orth_norm": form}
    learner, method = after(small_config, 2, **fields)
    expected = 0.0
    for bank in banks(learner):
        bank.B.data.fill_(0.1)
        for old in bank.frozen_A.double().flatten(0, 1):
            for new in bank.A[0].detach().double():
                expected += 0.7 * abs(float(old @ new)) ** power
        for tensor in (bank.A, bank.B):
            expected += 0.3 * float((tensor.detach().double() ** 2).sum() ** 0.5)
    assert added(learner, method).item() == pytest.approx(expected, rel=1e-5)
    assert added(learner, method, 0.25).item() == pytest.approx(expected / 4, rel=1e-5)


def test_without_weights_there_is_no_penalty(small_config: RunConfig) -> None:
    """So it trains one adapter on another (IncLoRA); nor in the first task, with l1 alone."""
    learner, method = after(small_config, 1, orthogonality=0.0)
    assert added(learner, method) == 0
    learner, method = after(small_config, 0)
    assert added(learner, method) == 0


def test_norms_have_a_finite_gradient_where_b_is_zero(small_config: RunConfig) -> None:
    learner, method = after(small_config, 1, orthogonality=0.0, norm=2.0)
    learner.parameters.grad.zero_()
    added(learner, method).backward()
    for bank in banks(learner):
        assert bank.A.grad is not None
        assert bank.B.grad is not None
        torch.testing.assert_close(bank.A.grad, 2 * bank.A.detach() / bank.A.detach().norm())
        assert not bank.B.grad.any()


def test_what_was_learned_is_not_touched_again(small_config: RunConfig) -> None:
    learner, method = begin(small_config, {"name": "olora"})
    model, ends = learner.backbone.model, list[dict[str, Tensor]]()
    for stage, task in enumerate(toy(small_config)):
        learn(learner, method, task)
        for name, stack in lora.frozen(model).items():
            # Each adapter is as it was at the end of its task.
            assert torch.equal(stack, torch.stack([end[name] for end in ends]))
        assert bool(lora.frozen(model)) == (stage > 0)
        ends.append({})
        for name, bank in lora.banks(model):
            assert bank.B.any()
            ends[-1] |= {f"{name}.A": bank.A[0].data.clone(), f"{name}.B": bank.B[0].data.clone()}
    base = load(small_config.model.name, torch.float32, torch.device("cpu")).model.state_dict()
    found = {name.replace(".base.", "."): t for name, t in model.state_dict().items()}
    assert all(torch.equal(found[name], tensor) for name, tensor in base.items())


# ---- more directions than a layer has


@pytest.mark.parametrize(("rank", "tasks", "fits"), [(10, 3, True), (11, 3, False), (8, 5, False)])
def test_more_directions_than_a_layer_has_are_refused(
    small_config: RunConfig, rank: int, tasks: int, fits: bool
) -> None:
    """Three tasks of rank 11 need 33 of 32 dimensions; of rank 10 they fit."""
    config = small_config.override({"method.name": "olora", "model.rank": rank})
    if fits:
        build_learner(config, build_method(config.method), World(), tasks=tasks)
        return
    message = rf"{tasks} tasks of rank {rank} cannot be orthogonal in the 32 dimensions of .*q_proj"
    with pytest.raises(InputError, match=message):
        build_learner(config, build_method(config.method), World(), tasks=tasks)


def test_it_is_refused_before_a_local_model_is_loaded(
    small_config: RunConfig, tmp_path: Path
) -> None:
    """By the width in config.json; a layer that is not on the hidden states the model knows."""
    olora = small_config.override({"method.name": "olora"})
    fits, too_wide = Sweep("r", olora, {f"{n}": {"model.rank": n} for n in (10, 11)}).trials()
    problems = refused([fits, too_wide])
    assert problems.keys() == {too_wide.key}
    assert "3 tasks of rank 11" in problems[too_wide.key]
    with pytest.raises(InputError, match="3 tasks of rank 11"):
        execute(too_wide.config, tmp_path / "run")
    inner = olora.override({"model.rank": 11, "model.targets": ["down_proj"]})  # 64 wide
    prepare(inner, tmp_path / "run")
    build_learner(inner, build_method(inner.method), World(), tasks=3)
    assert not (tmp_path / "run").exists()
