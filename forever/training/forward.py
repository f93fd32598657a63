"""The model's pass over a few encoded examples, with logits only where an answer is learned."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from forever.data.collation import kinds_of, pack, pad
from forever.data.encoding import Encoded
from forever.models import lora
from forever.models.backbone import only_at
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
    backbone, gate = learner.backbone, learner.gate(examples)
    if learner.packed:
        kinds = kinds_of(views or [0] * len(examples), gate)
        batch = pack(examples, kinds, backbone.device)
    else:
        batch = pad(examples, backbone.tokenizer.pad_token_id, backbone.device)
    if gate is not None and gate.dim() == 2:
        gate = gate[batch.owners]  # [B, T, E]
    banks = lora.mixed(backbone.model, gate, batch.places, batch.counts)
    with banks, only_at(backbone.model, batch.predicts), autocast(learner):
        logits = backbone.model(**batch.inputs, use_cache=False).logits[0]
    return logits.float(), batch.targets


def autocast(learner: Learner) -> AbstractContextManager[object]:
    """Let fp32 weights on a GPU compute in bf16 (full fine-tuning); else change nothing."""
    if not learner.autocast:
        return nullcontext()
    return torch.autocast(learner.world.device.type, dtype=torch.bfloat16)
