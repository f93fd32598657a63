"""The model's pass over a few encoded examples, with logits only where an answer is learned."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from forever.data.encoding import Encoded, collate
from forever.models import lora
from forever.models.backbone import only_at
from forever.training.learner import Learner


def cross_entropy(learner: Learner, examples: Sequence[Encoded]) -> Tensor:
    """Summed cross-entropy over the answer tokens and EOS of `examples`."""
    logits, targets = answer_logits(learner, examples)
    return F.cross_entropy(logits, targets, reduction="sum")


def answer_logits(learner: Learner, examples: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
    """Return the logits [n, V] where an answer token or EOS comes next, and those tokens [n]."""
    model = learner.backbone.model
    ids, real, positions, targets = collate(
        examples, learner.backbone.tokenizer.pad_token_id, learner.backbone.device
    )
    gate = learner.gate(examples)
    with lora.mixed(model, gate, real), only_at(model, positions), autocast(learner):
        logits = model(input_ids=ids, use_cache=False).logits[0]
    return logits.float(), targets


def autocast(learner: Learner) -> AbstractContextManager[object]:
    """Let fp32 weights on a GPU compute in bf16 (full fine-tuning); else change nothing."""
    if not learner.autocast:
        return nullcontext()
    return torch.autocast(learner.world.device.type, dtype=torch.bfloat16)
