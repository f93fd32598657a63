"""The optimiser on the flat vector against AdamW on separate tensors; Delta; learning rates by
hand."""

import pytest
import torch
from torch import nn

from forever.config.parts import OptimConfig
from forever.models.parameters import FlatParameters
from forever.training.optim import apply_update, build_optimizer, learning_rate


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def loss(model: nn.Module, t: int) -> torch.Tensor:
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(t))
    return (3 * model(x)).square().sum()


@pytest.mark.parametrize("clip", [0.1, 1e6])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_equals_adamw_on_separate_tensors(clip: float, decay: float) -> None:
    config = OptimConfig(lr=0.01, clip=clip, weight_decay=decay)
    plain, model = network(), network()
    reference = torch.optim.AdamW(
        plain.parameters(), lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay
    )
    flat = FlatParameters(model.named_parameters())
    optimizer = build_optimizer(flat, config)
    for t in range(20):
        before = [p.detach().clone() for p in plain.parameters()]
        loss(plain, t).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        reference.step()
        reference.zero_grad()
        moved = sum(
            (p.detach().double() - b.double()).square().sum()
            for p, b in zip(plain.parameters(), before, strict=True)
        )
        loss(model, t).backward()
        norm = apply_update(flat, optimizer, 0.01, clip)
        flat.grad.zero_()
        assert norm.item() == pytest.approx(float(moved) ** 0.5, rel=1e-4)
        for a, b in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_delta_is_the_applied_movement(decay: float) -> None:
    """After clipping and decay: exactly ||Theta_t - Theta_{t-1}|| as measured from outside."""
    model = network()
    flat = FlatParameters(model.named_parameters())
    optimizer = build_optimizer(flat, OptimConfig(lr=0.01, weight_decay=decay))
    for t in range(5):
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        loss(model, t).backward()
        norm = apply_update(flat, optimizer, 0.01, 1.0)
        after = torch.cat([p.detach().flatten() for p in model.parameters()])
        assert norm.dtype == torch.float64
        assert (
            norm.item() == torch.linalg.vector_norm(after - before, dtype=torch.float64).item() > 0
        )
        flat.grad.zero_()


def test_gradient_is_clipped_to_the_global_norm() -> None:
    """Seen through plain numbers: Adam's first moment after one step is 0.1 times the clipped
    gradient."""
    flat = FlatParameters(
        [("a", nn.Parameter(torch.zeros(1))), ("b", nn.Parameter(torch.zeros(1)))]
    )
    optimizer = build_optimizer(flat, OptimConfig())
    flat.grad.copy_(torch.tensor([30.0, 40.0]))
    apply_update(flat, optimizer, 1e-3, clip=1.0)
    torch.testing.assert_close(optimizer.state[flat.flat]["exp_avg"], torch.tensor([0.06, 0.08]))
    # Adam's first step has size lr in every coordinate whatever the gradient
    torch.testing.assert_close(flat.flat.data, torch.tensor([-1e-3, -1e-3]))


def test_given_rate_is_used() -> None:
    flat = FlatParameters([("a", nn.Parameter(torch.zeros(1)))])
    optimizer = build_optimizer(flat, OptimConfig(lr=1.0))
    flat.grad.fill_(1.0)
    assert apply_update(flat, optimizer, 0.25, 1.0).item() == pytest.approx(0.25)
    flat.grad.fill_(1.0)
    assert apply_update(flat, optimizer, 0.0, 1.0).item() == 0


def rates(steps: int, **fields: object) -> list[float]:
    config = OptimConfig.model_validate({"lr": 1.0, **fields})
    return [learning_rate(config, step, steps) for step in range(steps)]


def test_constant_rate() -> None:
    assert rates(4) == [1, 1, 1, 1]
    assert rates(4, warmup_steps=2) == [0.5, 1, 1, 1]


def test_linear_rate() -> None:
    assert rates(4, schedule="linear") == [1, 0.75, 0.5, 0.25]
    assert rates(6, schedule="linear", warmup_steps=2) == [0.5, 1, 1, 0.75, 0.5, 0.25]
    config = OptimConfig(lr=1.0, schedule="linear")
    # After the last update of a task: consolidation would be void.
    assert learning_rate(config, 4, 4) == 0
    assert learning_rate(config, 9, 4) == 0


def test_linear_rate_equals_transformers() -> None:
    from transformers import get_linear_schedule_with_warmup

    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = get_linear_schedule_with_warmup(optimizer, 5, 40)
    theirs = []
    for _ in range(40):
        theirs.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    ours = rates(40, schedule="linear", warmup_steps=5)
    # Theirs wastes the first update at rate 0; ours reaches the full rate with the last warm-up
    # update.
    assert theirs[1:5] == pytest.approx(ours[:4])
    assert theirs[5:] == pytest.approx(ours[5:])


def test_warmup_longer_than_the_task() -> None:
    assert rates(3, warmup_steps=6, schedule="linear") == pytest.approx([1 / 6, 2 / 6, 3 / 6])
