"""How much each parameter matters to what has been learned: Fisher information, and movement."""

from collections.abc import Sequence

import torch
from torch import Tensor

from forever.data.tasks import Example
from forever.training.forward import cross_entropy
from forever.training.learner import Learner


def fisher_information(learner: Learner, examples: Sequence[Example]) -> Tensor:
    """The diagonal of the empirical Fisher information at the current weights, shape [N].

        F_j = 1/n sum_i (d l_i / d Theta_j)^2,   l_i = cross-entropy of example i alone, its answer,
        dropout off

    One backward pass an example: a batch would square a sum instead of summing squares. Each rank
    takes its share of the examples. The model is left as it was.
    """
    parameters, model = learner.parameters, learner.backbone.model
    total = torch.zeros_like(parameters.flat.data)
    training = model.training
    model.eval()
    parameters.grad.zero_()
    for example in learner.world.share(examples):
        encoded = learner.encoder.encode(example)
        (cross_entropy(learner, [encoded]) / len(encoded.answer)).backward()
        total += parameters.grad**2
        parameters.grad.zero_()
    model.train(training)
    return learner.world.sum_(total) / len(examples)


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

    By the k-th smallest value: `torch.quantile` takes no more than 16 million entries.
    """
    if not len(scores):
        return scores > 0
    return scores > scores.kthvalue(int(quantile * (len(scores) - 1)) + 1).values
