"""EWC against autograd, naive sums and values worked by hand."""

import random
from typing import Any

import pytest
import torch
from helpers import begin, learn, rows_task, start, stub_learner, theta, toy, update
from torch import Tensor

from forever.config.methods.baselines import EwcConfig
from forever.config.run import RunConfig
from forever.methods import ewc
from forever.methods.ewc import Ewc
from forever.training.forward import cross_entropy
from forever.training.importance import fisher_information
from forever.training.learner import Learner
from forever.training.step import add_penalty, perform
from forever.training.steps import Step


def known_fisher(patch: pytest.MonkeyPatch, *values: Tensor) -> None:
    """The Fisher information of one task after the other is `values`."""
    left = iter(values)
    patch.setattr(ewc, "fisher_information", lambda learner, rows: next(left).clone())


@pytest.mark.parametrize(
    "fields", [{"strength": 0.0}, {"strength": 1e6}, {"strength": 1e6, "mode": "separate"}]
)
def test_without_strength_or_importance_it_is_fine_tuning(
    small_config: RunConfig, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, plain_method = begin(small_config, {"name": "finetune"})
    learner, method = begin(small_config, {"name": "ewc", **fields})
    if fields["strength"]:
        monkeypatch.setattr(ewc, "fisher_information", lambda learner, rows: theta(learner) * 0)
    assert learn(learner, method, *toy(small_config)) == learn(
        plain, plain_method, *toy(small_config)
    )
    assert torch.equal(theta(learner), theta(plain))


def test_penalty_is_nothing_at_the_anchor(small_config: RunConfig) -> None:
    """The first update of a task is that of fine-tuning, bit for bit: the penalty and its gradient
    are 0 there."""
    tasks = toy(small_config)
    after = []
    for strength in (0.0, 1e9):
        learner, method = begin(small_config, {"name": "ewc", "strength": strength})
        learn(learner, method, tasks[0])
        steps = start(learner, method, tasks[1])
        first = update(learner, method, steps)
        after.append((theta(learner), learner.parameters.grad.clone()))
        assert first.penalty == 0
    assert torch.equal(after[0][0], after[1][0])
    assert torch.equal(after[0][1], after[1][1])


@pytest.mark.parametrize("micro", [None, 1])
@pytest.mark.parametrize("clip", [1e9, 0.05])
@pytest.mark.parametrize("mode", ["online", "separate"])
def test_gradient_is_that_of_the_loss(
    small_config: RunConfig, micro: int | None, clip: float, mode: str
) -> None:
    """The hook against autograd of CE + lambda/2 sum Omega (Theta - mu)^2 written as a loss, in 1
    and 4 parts."""
    strength = 1e4
    fields = {"name": "ewc", "strength": strength, "mode": mode}
    learner, method = begin(small_config, fields, micro=micro, optim__clip=clip)
    learn(learner, method, *toy(small_config)[:2])
    steps = start(learner, method, toy(small_config)[2])
    noise = torch.randn(theta(learner).shape, generator=torch.Generator().manual_seed(0))
    learner.parameters.flat.data += 0.1 * noise
    action = next(steps)
    assert isinstance(action, Step)

    rows = [learner.encoder.encode(example) for example in action.batch.examples]
    omega = method.tensors["fisher"]
    mu = (
        method.tensors["anchor"]
        if mode == "online"
        else method.tensors["moment"] / omega.clamp_min(1e-30)
    )
    omegas, mus = learner.parameters.split(omega), learner.parameters.split(mu)
    penalty = torch.stack(
        [(omegas[n] * (p - mus[n]) ** 2).sum() for n, p in learner.parameters.named.items()]
    ).sum()
    loss = cross_entropy(learner, rows) / sum(len(row.answer) for row in rows)
    learner.parameters.grad.zero_()
    loss.backward(retain_graph=True)
    alone = learner.parameters.grad.norm().item()
    learner.parameters.grad.zero_()
    (loss + strength / 2 * penalty).backward()
    expected = learner.parameters.grad.clone()
    assert expected.norm().item() > 1.5 * alone
    expected *= min(1.0, clip / (expected.norm().item() + 1e-6))

    record = perform(learner, method, action)
    torch.testing.assert_close(
        learner.parameters.grad, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item()
    )
    assert record.penalty == pytest.approx(strength / 2 * penalty.item(), rel=1e-5)
    assert record.loss == pytest.approx(loss.item(), rel=1e-5)


def test_optimum_between_a_new_task_and_the_old() -> None:
    """CE replaced by h/2 (Theta - c)^2: the optimum is (h c + lambda Omega mu) / (h + lambda
    Omega)."""
    learner, method = stub_learner(), Ewc(EwcConfig(strength=3.0))
    h, c = 2.0, torch.tensor([5.0, -1.0, 0.0])
    omega, mu = torch.tensor([1.0, 0.0, 4.0]), torch.tensor([1.0, 2.0, 3.0])
    method.tensors |= {"fisher": omega, "anchor": mu}
    for _ in range(200):
        learner.parameters.grad.copy_(h * (learner.parameters.flat.detach() - c))
        add_penalty(learner.parameters, method.penalty())
        learner.parameters.flat.data -= 0.1 * learner.parameters.grad
    expected = torch.tensor([(10 + 3) / 5, -1.0, 36 / 14])
    torch.testing.assert_close(theta(learner), (h * c + 3 * omega * mu) / (h + 3 * omega))
    torch.testing.assert_close(theta(learner), expected)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_separate_penalties_are_their_naive_sum(
    decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five tasks. The value differs by the constant that sum F_i (Theta_i - M/S)^2 is."""
    stream = torch.Generator().manual_seed(1)
    fishers = [torch.rand(3, generator=stream) for _ in range(5)]
    for fisher in fishers:
        fisher[2] = 0  # an entry that never mattered
    ends = [torch.randn(3, generator=stream) for _ in range(5)]
    learner, method = stub_learner(), Ewc(EwcConfig(strength=7.0, mode="separate", decay=decay))
    known_fisher(monkeypatch, *fishers)
    for end in ends:
        learner.parameters.load(end)
        method.end_task(learner, rows_task("any", 2))
    at = torch.tensor([0.3, -2.0, 1.5])
    learner.parameters.load(at)
    learner.parameters.grad.zero_()
    value = add_penalty(learner.parameters, method.penalty()).item()

    F = torch.stack([decay ** (4 - i) * fisher for i, fisher in enumerate(fishers)])
    ends_ = torch.stack(ends)
    torch.testing.assert_close(
        learner.parameters.grad, 7.0 * (F * (at - ends_)).sum(0), rtol=1e-5, atol=1e-6
    )
    centre = (F * ends_).sum(0) / F.sum(0).clamp_min(1e-30)
    values = [3.5 * (F * (place - ends_) ** 2).sum().item() for place in (at, centre)]
    assert value == pytest.approx(values[0] - values[1], rel=1e-5)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_online_importance_adds_up_around_the_last_end(
    decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, method = stub_learner(), Ewc(EwcConfig(decay=decay))
    known_fisher(
        monkeypatch, torch.tensor([1.0, 0, 0]), torch.tensor([0, 1.0, 2]), torch.tensor([4.0, 0, 1])
    )
    for place in (1.0, 2.0, 3.0):
        learner.parameters.flat.data.fill_(place)
        method.end_task(learner, rows_task("any", 2))
    learner.parameters.flat.data.fill_(9.0)  # the anchor is a copy
    assert method.tensors["fisher"].tolist() == [4 + decay**2, decay, 1 + 2 * decay]
    assert method.tensors["anchor"].tolist() == [3.0, 3.0, 3.0]
    assert method.tensors.keys() == {"fisher", "anchor"}


# ---- Fisher information


@pytest.fixture(scope="module")
def trained(small_config: RunConfig) -> tuple[Learner, Ewc]:
    """After the first task, so that B is not zero; tests leave its weights as they are."""
    learner, method = begin(small_config, {"name": "ewc"}, model__dropout=0.3)
    learn(learner, method, toy(small_config)[0])
    return learner, method


def test_fisher_is_the_mean_squared_gradient_of_single_rows(
    trained: tuple[Learner, Ewc], small_config: RunConfig
) -> None:
    """Against the model's own loss, dropout off although the model was training, no penalty in
    it."""
    learner, method = trained
    rows = toy(small_config)[0].train
    learner.backbone.model.train()
    found = fisher_information(learner, rows)
    learner.backbone.model.eval()
    total = torch.zeros_like(found)
    for example in rows:
        row = learner.encoder.encode(example)
        learner.parameters.grad.zero_()
        ids, labels = (
            torch.tensor([row.prompt + row.answer]),
            torch.tensor([(-100,) * len(row.prompt) + row.answer]),
        )
        learner.backbone.model(input_ids=ids, labels=labels).loss.backward()
        total += learner.parameters.grad**2
    torch.testing.assert_close(found, total / len(rows), rtol=1e-3, atol=1e-9)
    torch.testing.assert_close(found, method.tensors["fisher"], rtol=1e-4, atol=1e-10)
    assert (found >= 0).all()
    assert found.isfinite().all()
    assert found.sum() > 1e-6


def test_the_end_of_a_task_changes_nothing_but_the_method(small_config: RunConfig) -> None:
    """Weights, optimiser and random streams stay; the next update is the same as without it."""
    tasks = toy(small_config)
    after = []
    for ends in (True, False):
        fields = {"name": "ewc", "strength": 0.0}
        learner, method = begin(small_config, fields, model__dropout=0.2)
        steps = start(learner, method, tasks[0])
        update(learner, method, steps)
        assert learner.optimizer is not None
        adam = {
            name: value.clone()
            for name, value in learner.optimizer.state_dict()["state"][0].items()
        }
        weights, states = theta(learner), (torch.get_rng_state(), random.getstate())
        if ends:
            method.end_task(learner, tasks[0])
            assert torch.equal(theta(learner), weights)
            now = learner.optimizer.state_dict()["state"][0]
            assert all(torch.equal(value, now[name]) for name, value in adam.items())
            assert torch.equal(torch.get_rng_state(), states[0])
            assert random.getstate() == states[1]
        update(learner, method, steps)
        after.append(theta(learner))
    assert torch.equal(after[0], after[1])
