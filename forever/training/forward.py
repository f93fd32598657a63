"""The model's pass over a few encoded examples, with logits only where an answer is learned."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from forever.data.collation import Collated, pack, pad
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
        views: which view of its example each of them is. Views share nothing, since what they are
            for is that dropout treats each of them in its own way.
    """
    model = learner.backbone.model
    gate = learner.gate(examples)
    batch = _collate(learner, examples, views or [0] * len(examples), by_prompt=gate is not None)
    if gate is not None and gate.dim() == 2:
        gate = gate[batch.owners]  # [B, T, E]
    banks = lora.mixed(model, gate, batch.places, batch.counts)
    with banks, only_at(model, batch.predicts), autocast(learner):
        logits = model(**batch.inputs, use_cache=False).logits[0]
    return logits.float(), batch.targets


def _collate(
    learner: Learner, examples: Sequence[Encoded], views: Sequence[int], by_prompt: bool
) -> Collated:
    backbone = learner.backbone
    if not learner.packed:
        return pad(examples, backbone.tokenizer.pad_token_id, backbone.device)
    kinds: dict[tuple[Any, ...], int] = {}
    numbers: list[int] = []
    for example, view in zip(examples, views, strict=True):
        # Where adapters are weighed by the prompt, a beginning has another state in each of them.
        kind = (view, example.prompt) if by_prompt else (view,)
        numbers.append(kinds.setdefault(kind, len(kinds)))
    return pack(examples, numbers, backbone.device)


def autocast(learner: Learner) -> AbstractContextManager[object]:
    """Let fp32 weights on a GPU compute in bf16 (full fine-tuning); else change nothing."""
    if not learner.autocast:
        return nullcontext()
    return torch.autocast(learner.world.device.type, dtype=torch.bfloat16)
