"""EWC against autograd, naive sums and values worked by hand.

Its Fisher information is tested in conformance and tests/training/test_importance.py. That it
disturbs nothing to measure it is the row "lambda 0" of conformance.
"""

import pytest
import torch
from helpers import begin, learn, method_of, rows_task, start, stub_learner, theta, toy, update
from torch import Tensor

from forever.config.run import RunConfig
from forever.methods import ewc
from forever.training.forward import cross_entropy
from forever.training.step import add_penalty, perform
from forever.training.steps import Step


def known_fisher(patch: pytest.MonkeyPatch, *values: Tensor) -> None:
    """The Fisher information of one task after the other is `values`."""
    left = iter(values)
    patch.setattr(ewc, "fisher_information", lambda learner, examples: next(left).clone())


def test_penalty_is_nothing_at_the_anchor(small_config: RunConfig) -> None:
    """The first update of a task is that of fine-tuning, bit for bit."""
    after = []
    for strength in (0.0, 1e9):
        learner, method = begin(small_config, {"name": "ewc", "strength": strength})
        learn(learner, method, toy(small_config)[0])
        record = update(learner, method, start(learner, method, toy(small_config)[1]))
        after.append(torch.stack([theta(learner), learner.parameters.grad]))
        assert record.penalty == 0
    assert torch.equal(after[0], after[1])


@pytest.mark.parametrize("micro", [None, 1])
@pytest.mark.parametrize("clip", [1e9, 0.05])
@pytest.mark.parametrize("mode", ["online", "separate"])
def test_gradient_is_that_of_the_loss(
    small_config: RunConfig, micro: int | None, clip: float, mode: str
) -> None:
    """Against autograd of CE + lambda/2 sum Omega (Theta - mu)^2; the penalty is clipped, too."""
    fields = {"name": "ewc", "strength": 1e4, "mode": mode}
    learner, method = begin(small_config, fields, micro=micro, optim__clip=clip)
    learn(learner, method, *toy(small_config)[:2])
    step = next(start(learner, method, toy(small_config)[2]))
    assert isinstance(step, Step)
    noise = torch.randn(theta(learner).shape, generator=torch.Generator().manual_seed(0))
    learner.parameters.flat.data += 0.1 * noise

    omega, mu = method.tensors["fisher"], method.tensors.get("anchor")
    if mode == "separate":
        mu = method.tensors["moment"] / omega.clamp_min(1e-30)
    omegas, mus = learner.parameters.split(omega), learner.parameters.split(mu)
    penalty = torch.zeros(())
    for name, parameter in learner.parameters.named.items():
        penalty = penalty + 1e4 / 2 * (omegas[name] * (parameter - mus[name]) ** 2).sum()
    rows = [learner.encoder.encode(example) for example in step.batch.examples]
    loss = cross_entropy(learner, rows) / sum(len(row.answer) for row in rows)
    learner.parameters.grad.zero_()
    loss.backward(retain_graph=True)
    alone = learner.parameters.grad.norm()
    penalty.backward()
    expected = learner.parameters.grad.clone()
    assert expected.norm() > 1.5 * alone
    expected *= min(1.0, clip / (expected.norm().item() + 1e-6))

    record = perform(learner, method, step)
    atol = 1e-6 * expected.abs().max().item()
    torch.testing.assert_close(learner.parameters.grad, expected, rtol=1e-5, atol=atol)
    assert record.penalty == pytest.approx(penalty.item(), rel=1e-5)
    assert record.loss == pytest.approx(loss.item(), rel=1e-5)


def test_optimum_between_a_new_task_and_the_old() -> None:
    """With h/2 (Theta - c)^2 for CE it is (h c + lambda Omega mu) / (h + lambda Omega)."""
    learner, method = stub_learner(), method_of("ewc", strength=3.0)
    h, c = 2.0, torch.tensor([5.0, -1.0, 0.0])
    omega, mu = torch.tensor([1.0, 0.0, 4.0]), torch.tensor([1.0, 2.0, 3.0])
    method.tensors |= {"fisher": omega, "anchor": mu}
    for _ in range(200):
        learner.parameters.grad.copy_(h * (learner.parameters.flat.detach() - c))
        add_penalty(learner.parameters, method.penalty())
        learner.parameters.flat.data -= 0.1 * learner.parameters.grad
    torch.testing.assert_close(theta(learner), torch.tensor([(10 + 3) / 5, -1.0, 36 / 14]))


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_separate_penalties_are_their_naive_sum(
    decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five tasks. The value differs by the constant that sum F_i (Theta_i - M/S)^2 is."""
    stream = torch.Generator().manual_seed(1)
    fishers, ends = torch.rand(5, 3, generator=stream), torch.randn(5, 3, generator=stream)
    fishers[:, 2] = 0  # an entry that never mattered
    learner = stub_learner()
    method = method_of("ewc", strength=7.0, mode="separate", decay=decay)
    known_fisher(monkeypatch, *fishers)
    for end in ends:
        learner.parameters.load(end)
        method.end_task(learner, rows_task("any", 2))
    at = torch.tensor([0.3, -2.0, 1.5])
    learner.parameters.load(at)
    value = add_penalty(learner.parameters, method.penalty()).item()

    F = fishers * torch.tensor([decay ** (4 - i) for i in range(5)])[:, None]
    gradient = 7.0 * (F * (at - ends)).sum(0)
    torch.testing.assert_close(learner.parameters.grad, gradient, rtol=1e-5, atol=1e-6)
    centre = (F * ends).sum(0) / F.sum(0).clamp_min(1e-30)
    here, least = (3.5 * (F * (place - ends) ** 2).sum().item() for place in (at, centre))
    assert value == pytest.approx(here - least, rel=1e-5)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_online_importance_adds_up_around_the_last_end(
    decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, method = stub_learner(), method_of("ewc", decay=decay)
    known_fisher(monkeypatch, *torch.tensor([[1.0, 0, 0], [0, 1, 2], [4, 0, 1]]))
    for place in (1.0, 2.0, 3.0):
        learner.parameters.flat.data.fill_(place)
        method.end_task(learner, rows_task("any", 2))
    learner.parameters.flat.data.fill_(9.0)  # the anchor is a copy
    values = {name: tensor.tolist() for name, tensor in method.tensors.items()}
    assert values == {"fisher": [4 + decay**2, decay, 1 + 2 * decay], "anchor": [3.0, 3.0, 3.0]}
