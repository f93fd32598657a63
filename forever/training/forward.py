"""The learner's pass over a few encoded examples."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from forever.data.encoding import Encoded
from forever.models import forward
from forever.training.learner import Learner


def cross_entropy(learner: Learner, examples: Sequence[Encoded]) -> Tensor:
    """Summed cross-entropy over the answer tokens and EOS of `examples`."""
    logits, targets = answer_logits(learner, examples)
    return F.cross_entropy(logits, targets, reduction="sum")


def answer_logits(
    learner: Learner, examples: Sequence[Encoded], views: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Return the logits [n, V] where an answer token or EOS comes next, and those tokens [n].

    Args:
        views: which view of its example each of them is; by default there is one of each.
    """
    gate = learner.gate(examples)
    with autocast(learner):
        return forward.answer_logits(learner.backbone, examples, gate, learner.packed, views)


def autocast(learner: Learner) -> AbstractContextManager[object]:
    """Let fp32 weights on a GPU compute in bf16 (full fine-tuning); else change nothing."""
    if not learner.autocast:
        return nullcontext()
    return torch.autocast(learner.world.device.type, dtype=torch.bfloat16)
