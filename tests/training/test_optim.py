"""The optimiser on the flat vector against AdamW on separate tensors; learning rates by hand."""

import pytest
import torch
from torch import Tensor, nn
from transformers import get_scheduler

from forever.config.parts import OptimConfig
from forever.models.parameters import FlatParameters
from forever.training.optim import apply_update, build_optimizer, clip_gradient, learning_rate


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def loss(model: nn.Module, t: int) -> Tensor:
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(t))
    return (3 * model(x)).square().sum()


@pytest.mark.parametrize("clip", [0.1, 1e6])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_equals_adamw_on_separate_tensors(clip: float, decay: float) -> None:
    """Delta is the movement as measured from outside, after clipping and decay."""
    plain, model = network(), network()
    reference = torch.optim.AdamW(
        plain.parameters(), lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay
    )
    flat = FlatParameters(model.named_parameters())
    optimizer = build_optimizer(flat, OptimConfig(lr=0.01, clip=clip, weight_decay=decay))
    for t in range(20):
        loss(plain, t).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        reference.step()
        reference.zero_grad()
        before = flat.snapshot()
        loss(model, t).backward()
        clip_gradient(flat, clip)
        delta = apply_update(flat, optimizer, 0.01)
        flat.grad.zero_()
        moved = torch.linalg.vector_norm(flat.snapshot() - before, dtype=torch.float64)
        assert delta.item() == moved.item() > 0
        assert delta.dtype == torch.float64
        for a, b in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_gradient_is_clipped_to_the_global_norm() -> None:
    """Adam's first moment after one step is 0.1 times the clipped gradient, and the step has size
    lr in every coordinate whatever the gradient."""
    flat = FlatParameters([(name, nn.Parameter(torch.zeros(1))) for name in "ab"])
    optimizer = build_optimizer(flat, OptimConfig())
    flat.grad.copy_(torch.tensor([30.0, 40.0]))
    assert clip_gradient(flat, 1.0).item() == 50
    apply_update(flat, optimizer, 1e-3)
    torch.testing.assert_close(optimizer.state[flat.flat]["exp_avg"], torch.tensor([0.06, 0.08]))
    torch.testing.assert_close(flat.flat.data, torch.tensor([-1e-3, -1e-3]))
    assert apply_update(flat, optimizer, 0.0).item() == 0


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("constant", 2, [0.5, 1, 1, 1]),
        ("linear", 0, [1, 0.75, 0.5, 0.25]),
        ("linear", 2, [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("linear", 6, [1 / 6, 2 / 6, 3 / 6]),  # a warm-up longer than the task
    ],
)
def test_learning_rate(schedule: str, warmup: int, expected: list[float]) -> None:
    fields = {"lr": 1.0, "schedule": schedule, "warmup_steps": warmup}
    config, count = OptimConfig.model_validate(fields), len(expected)
    assert [learning_rate(config, step, count) for step in range(count)] == pytest.approx(expected)
    # The laboratory's scripts use transformers, whose first warm-up update has rate 0: ours are one
    # ahead of them in the warm-up, and equal to them after it.
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    kind = "linear" if schedule == "linear" else "constant_with_warmup"
    theirs = get_scheduler(kind, optimizer, warmup, count).lr_lambdas[0]
    for step in range(count):
        assert learning_rate(config, step, count) == pytest.approx(theirs(step + (step < warmup)))
    # With a rate of zero the consolidation after the last update would be void.
    assert [learning_rate(config, step, count) for step in (count, count + 5)] == [1, 1]
