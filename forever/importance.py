"""How much each parameter matters to what has been learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from forever.data.tasks import Example
    from forever.learner import Learner


def fisher_information(learner: Learner, examples: Sequence[Example]) -> Tensor:
    """The diagonal of the empirical Fisher information at the current weights, shape [N].

        F_j = 1/n sum_i (d l_i / d Theta_j)^2,   l_i = cross-entropy of example i alone, gold answer, dropout off

    One backward pass an example (a batch would square a sum instead of summing squares: it shrinks as 1/B and lets
    opposite gradients cancel). Rank k takes examples k, k+R, ... and the sums are added.
    """
    import torch

    from forever.train import cross_entropy

    parameters = learner.parameters
    total = torch.zeros_like(parameters.flat.data)
    learner.backbone.model.eval()
    for example in learner.world.share(examples):
        row = learner.encoder.encode(example)
        (cross_entropy(learner, [row]) / len(row.answer)).backward()
        total += parameters.grad**2
        parameters.grad.zero_()
    return learner.world.sum_(total) / len(examples)
