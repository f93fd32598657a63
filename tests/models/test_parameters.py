"""The flat vector: parameters and gradients stay views of it, whatever training does."""

import pytest
import torch
from torch import nn

from forever.models.parameters import FlatParameters


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def tied(flat: FlatParameters) -> bool:
    """Whether parameters and gradients lie in the flat buffers, in order and without gaps."""
    offset = 0
    for parameter in flat.named.values():
        assert parameter.grad is not None
        data, grad = flat.flat.data_ptr() + 4 * offset, flat.grad.data_ptr() + 4 * offset
        if (parameter.data_ptr(), parameter.grad.data_ptr()) != (data, grad):
            return False
        offset += parameter.numel()
    return offset == flat.flat.numel()


def test_flattening_changes_neither_values_nor_gradients() -> None:
    plain, model = network(), network()
    flat = FlatParameters(model.named_parameters())
    assert list(flat.named) == [name for name, _ in plain.named_parameters()]
    for _ in range(2):  # gradients add up
        x = torch.randn(5, 3)
        assert torch.equal(plain(x), model(x))
        plain(x).square().sum().backward()
        model(x).square().sum().backward()
    values, grads = flat.split(flat.snapshot()), flat.split(flat.grad)
    for name, parameter in plain.named_parameters():
        assert torch.equal(values[name], parameter)
        assert parameter.grad is not None
        assert torch.equal(grads[name], parameter.grad)


def test_views_stay_tied_through_steps_and_loads() -> None:
    model = network()
    flat = FlatParameters(model.named_parameters())
    optimizer = torch.optim.AdamW([flat.flat], lr=0.1)
    start = flat.snapshot()
    for _ in range(3):
        model(torch.randn(5, 3)).square().sum().backward()
        assert flat.grad.abs().sum() > 0
        optimizer.step()
        flat.grad.zero_()
        assert tied(flat)
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    assert not torch.equal(flat.snapshot(), start)  # a snapshot is a copy
    assert not start.requires_grad
    flat.load(start)
    assert tied(flat)
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), start)


def test_distance_is_the_euclidean_norm_in_double_precision() -> None:
    flat = FlatParameters([("w", nn.Parameter(torch.tensor([3.0, 4.0])))])
    distance = flat.distance(torch.zeros(2))
    assert (distance.item(), distance.dtype) == (5.0, torch.float64)
    # 2^14 + 1 equal tiny moves: an fp32 sum of squares would be off in the seventh digit.
    flat = FlatParameters([("w", nn.Parameter(torch.full((16385,), 1e-4)))])
    step = float(torch.tensor(1e-4))
    assert flat.distance(torch.zeros(16385)).item() == pytest.approx(step * 16385**0.5, rel=1e-12)


def test_shared_tensors_count_once() -> None:
    shared = nn.Parameter(torch.ones(4))
    flat = FlatParameters([("a", shared), ("b", shared)])
    assert flat.flat.numel() == 4
    assert list(flat.named) == ["a"]


def test_half_precision_cannot_be_trained() -> None:
    with pytest.raises(ValueError, match=r"trainable parameter w is torch\.bfloat16; only fp32"):
        FlatParameters([("w", nn.Parameter(torch.ones(2, dtype=torch.bfloat16)))])


def test_nothing_to_train() -> None:
    flat = FlatParameters([])
    assert flat.split(flat.snapshot()) == {}
    assert flat.distance(flat.snapshot()).item() == 0
