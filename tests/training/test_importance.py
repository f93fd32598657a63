"""Importance of parameters against loops written here. N entries."""

import numpy as np
import pytest
import torch

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.methods.registry import build_method
from forever.training.build import build_learner
from forever.training.forward import cross_entropy
from forever.training.importance import (
    above_quantile,
    fisher_information,
    gradients_apart,
    track_movement,
)
from forever.training.learner import Learner
from forever.world import World


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("smoothing", [(0.85, 0.85), (0.55, 0.85), (0.85, 0.3), (0.0, 0.0)])
def test_movement_equals_a_loop_over_entries(smoothing: tuple[float, float]) -> None:
    thetas, grads = draw(2, 9, 20)
    copies = thetas.clone(), grads.clone()
    mean, spread = torch.zeros(20), torch.zeros(20)
    places = mean.data_ptr(), spread.data_ptr()
    for theta, grad in zip(thetas, grads, strict=True):
        track_movement(mean, spread, theta, grad, smoothing)
    assert torch.equal(thetas, copies[0])  # neither weights nor gradients change
    assert torch.equal(grads, copies[1])
    assert (mean.data_ptr(), spread.data_ptr()) == places  # a resumed run puts them back in place
    (b1, b2), means, spreads = smoothing, [0.0] * 20, [0.0] * 20
    for entry in range(20):
        for theta, grad in zip(thetas[:, entry].tolist(), grads[:, entry].tolist(), strict=True):
            importance = abs(theta * grad)
            means[entry] = b1 * means[entry] + (1 - b1) * importance
            change = abs(importance - means[entry])  # from the new mean
            spreads[entry] = b2 * spreads[entry] + (1 - b2) * change
    torch.testing.assert_close(mean, torch.tensor(means))
    torch.testing.assert_close(spread, torch.tensor(spreads))


@pytest.mark.parametrize("quantile", [0.0, 0.2, 0.5, 0.8, 0.9, 0.999])
@pytest.mark.parametrize("count", [1, 2, 5, 10, 101, 40960])
def test_above_quantile_equals_numpy(count: int, quantile: float) -> None:
    """The next smaller score stands for the quantile: no other score lies between the two."""
    scores = draw(count).double()
    expected = np.quantile(scores.numpy(), quantile, method="lower")
    assert above_quantile(scores, quantile).tolist() == (scores.numpy() > expected).tolist()


def test_equal_scores_are_not_above_each_other() -> None:
    assert not above_quantile(torch.zeros(10), 0.8).any()
    assert above_quantile(torch.tensor([0.0] * 9 + [1.0]), 0.8).tolist() == [False] * 9 + [True]
    assert not above_quantile(torch.tensor([0.0] * 5 + [1.0] * 5), 0.8).any()
    assert above_quantile(torch.zeros(0), 0.8).shape == (0,)  # as in a plan, which has no model


def test_more_entries_than_torch_quantile_takes() -> None:
    scores = torch.arange(2**24 + 2, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(scores, 0.8)
    # Floats tie there.
    assert above_quantile(scores, 0.8).sum().item() == pytest.approx(0.2 * len(scores), abs=4)


def test_fisher_information_ignores_a_gradient_that_was_left_over(
    small_config: RunConfig, benchmark_of_three: Benchmark
) -> None:
    config = small_config.override({"model.dropout": 0.3})
    learner = build_learner(config, build_method(config.method), World())
    examples = benchmark_of_three.tasks[0].train[:3]
    clean = fisher_information(learner, examples)
    assert clean.any()
    for training in (True, False):  # it is measured with dropout off, and the mode is put back
        learner.backbone.model.train(training)
        assert torch.equal(fisher_information(learner, examples), clean)
        assert all(module.training == training for module in learner.backbone.model.modules())
    learner.parameters.grad.fill_(7.0)
    assert torch.equal(fisher_information(learner, examples), clean)
    singles = [fisher_information(learner, [example]) for example in examples]
    torch.testing.assert_close(clean, torch.stack(singles).mean(0))


@pytest.mark.parametrize(
    "model",
    [
        {"model.targets": ["q_proj", "v_proj", "down_proj"], "model.rank": 3},
        {"model.adapter": {"use_rslora": True}},
    ],
)
def test_gradients_apart_are_those_of_examples_alone(
    small_config: RunConfig, benchmark_of_three: Benchmark, model: dict[str, object]
) -> None:
    learner = learner_with(small_config.override(model))
    for task in benchmark_of_three.tasks:
        examples = [learner.encoder.encode(example) for example in task.train[:5]]
        apart = gradients_apart(learner, examples)
        assert apart is not None
        for gradient, example in zip(apart, examples, strict=True):
            learner.parameters.grad.zero_()
            (cross_entropy(learner, [example]) / len(example.answer)).backward()
            alone = learner.parameters.grad
            assert (gradient - alone).norm() <= 1e-5 * alone.norm()


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
@pytest.mark.parametrize(
    "model",
    [
        {"model.adapter": {"use_dora": True}},  # has magnitudes, too
        {"model.targets": ["q_proj", "lm_head"]},  # sees answers alone
        {"model.adapter": {"peft_type": "IA3", "feedforward_modules": []}},
        {"model.tuning": "full"},
    ],
)
def test_what_has_no_gradients_apart_takes_its_examples_in_turn(
    small_config: RunConfig, benchmark_of_three: Benchmark, model: dict[str, object]
) -> None:
    learner = learner_with(small_config.override(model))
    examples = benchmark_of_three.tasks[0].train[:3]
    encoded = [learner.encoder.encode(example) for example in examples]
    assert gradients_apart(learner, encoded) is None
    expected = torch.zeros_like(learner.parameters.grad)
    for example in encoded:
        learner.parameters.grad.zero_()
        (cross_entropy(learner, [example]) / len(example.answer)).backward()
        expected += learner.parameters.grad**2 / 3
    torch.testing.assert_close(fisher_information(learner, examples), expected)


def learner_with(config: RunConfig) -> Learner:
    """A learner that has left LoRA's start, where half of the gradients are zero."""
    learner = build_learner(config, build_method(config.method), World())
    learner.backbone.model.eval()
    with torch.no_grad():
        learner.parameters.flat.add_(0.02 * draw(len(learner.parameters.flat)))
    return learner
