"""How much each parameter matters to what has been learned: Fisher information, and movement."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forever.data.encoding import Encoded
from forever.data.tasks import Example
from forever.models.device import fitting
from forever.stopping import pulse
from forever.training.forward import answer_logits, cross_entropy
from forever.training.learner import Learner


def fisher_information(learner: Learner, examples: Sequence[Example]) -> Tensor:
    """The diagonal of the empirical Fisher information at the current weights, shape [N].

        F_j = 1/n sum_i (d l_i / d Theta_j)^2,   l_i = cross-entropy of example i alone, its answer,
        dropout off

    A batch's gradient would be squared after its sum. So the gradients of examples are computed one
    by one, or apart in one pass where the trained weights let us. Each rank takes its share of the
    examples. The model is left as it was.
    """
    parameters, model = learner.parameters, learner.backbone.model
    total = torch.zeros_like(parameters.flat.data)
    training = model.training
    model.eval()
    share = [learner.encoder.encode(example) for example in learner.world.share(examples)]
    size = learner.micro_batch or learner.config.optim.batch_size
    apart = True  # until a pass says that it cannot be
    while share:
        pulse()
        work = partial(_squares, learner, share, apart)
        count = min(size, len(share)) if apart else 1
        (squares, done), learner.micro_batch = fitting(work, count, learner.micro_batch, "examples")
        if squares is None:
            apart = False
            continue
        total += squares  # only now: a pass that ran out of memory has left nothing here
        share = share[done:]
    parameters.grad.zero_()
    model.train(training)
    return learner.world.sum_(total) / len(examples)


def _squares(
    learner: Learner, examples: Sequence[Encoded], apart: bool, size: int
) -> tuple[Tensor | None, int]:
    """Return the sum of the first `size` examples' squared gradients, and how many these are.

    `apart` says to try one pass, which gives None where it cannot be; else it is the first example
    alone, and its squares take the place of the gradient.
    """
    batch, grad = examples[:size], learner.parameters.grad
    if apart:
        gradients = gradients_apart(learner, batch)
        return None if gradients is None else gradients.square_().sum(0), len(batch)
    grad.zero_()
    (cross_entropy(learner, batch[:1]) / len(batch[0].learned)).backward()
    return grad.square_(), 1


def gradients_apart(learner: Learner, examples: Sequence[Encoded]) -> Tensor | None:
    """The gradient of each of B examples' mean cross-entropy, shape [B, N], from one pass.

    A linear layer y_t = W x_t has the gradient sum_t g_t x_t^T with g_t = dl/dy_t, and if every
    example is a row of the batch, each row's tokens give that of the row's example.

    Returns:
        None where this does not hold: something else than weights of linear layers is trained, or
        a layer is not called once with all tokens (experts, shared layers, an output head).
    """
    weights = learner.parameters.named
    layers = _linear_layers(learner.backbone.model, weights)
    if sorted(name for name, _ in layers) != sorted(weights):
        return None
    calls: list[tuple[str, Tensor, Tensor]] = []  # a weight's name, x [B, T, D], y [B, T, O]

    def noting(name: str) -> Any:
        return lambda _, inputs, output: calls.append((name, inputs[0].detach(), output))

    hooks = [layer.register_forward_hook(noting(name)) for name, layer in layers]
    try:
        logits, targets = answer_logits(replace(learner, packed=False), examples)
    finally:
        for hook in hooks:
            hook.remove()
    width = max(len(example.prompt) + len(example.answer) for example in examples)
    all_tokens = all(x.shape[:-1] == (len(examples), width) for _, x, _ in calls)
    if not all_tokens or sorted(name for name, *_ in calls) != sorted(weights):
        return None

    shares = [1 / len(example.learned) for example in examples for _ in example.learned]
    losses = F.cross_entropy(logits, targets, reduction="none")
    loss = losses @ torch.tensor(shares, device=losses.device)
    upstream = torch.autograd.grad(loss, [y for *_, y in calls], materialize_grads=True)
    by_weight = {name: g.mT @ x for (name, x, _), g in zip(calls, upstream, strict=True)}
    return torch.cat([by_weight[name].flatten(1) for name in weights], dim=1)


def _linear_layers(
    model: nn.Module, weights: Mapping[str, nn.Parameter]
) -> list[tuple[str, nn.Module]]:
    """The linear layers whose weights these are, with the weights' names."""
    names: dict[Tensor, str] = {weight: name for name, weight in weights.items()}
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
    return [(names[layer.weight], layer) for layer in layers if layer.weight in names]


def track_movement(
    mean: Tensor, spread: Tensor, theta: Tensor, grad: Tensor, smoothing: tuple[float, float]
) -> None:
    """Update, in place, the smoothed importance of entries [N] and its uncertainty by one update.

        I = |Theta g|,   mean <- b1 mean + (1 - b1) I,   spread <- b2 spread + (1 - b2) |I - mean|

    Zhang et al. 2022 (PLATON); WoodScene/Recurrent_KIF: utils/lora_importance_bilevel.py.
    """
    importance = (theta * grad).abs()
    mean.lerp_(importance, 1 - smoothing[0])
    spread.lerp_((importance - mean).abs(), 1 - smoothing[1])


def above_quantile(scores: Tensor, quantile: float) -> Tensor:
    """True where a score [N] is strictly above the `quantile` of all, 0 for the smallest.

    By sorting them: `torch.quantile` takes no more than 16 million entries, and PyTorch has no
    repeatable `kthvalue` for a GPU.
    """
    if not len(scores):
        return scores > 0
    return scores > scores.sort().values[int(quantile * (len(scores) - 1))]
