"""A model's pass over a few encoded examples, with logits only where an answer is learned."""

from collections.abc import Sequence

from torch import Tensor

from forever.data.collation import kinds_of, pack, pad
from forever.data.encoding import Encoded
from forever.models import lora
from forever.models.backbone import Backbone, only_at


def answer_logits(
    backbone: Backbone,
    examples: Sequence[Encoded],
    gate: Tensor | None,
    packed: bool,
    marks: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """Return the logits [n, V] where an answer token or EOS comes next, and those tokens [n].

    Args:
        gate: the weights of the adapters, [E], or [B, E] if each example has its own.
        packed: whether examples share what they begin with.
        marks: what must be alike for that (see `kinds_of`); by default all are.
    """
    if packed:
        kinds = kinds_of(marks or [0] * len(examples), gate)
        batch = pack(examples, kinds, backbone.device)
    else:
        batch = pad(examples, backbone.tokenizer.pad_token_id, backbone.device)
    if gate is not None and gate.dim() == 2:
        gate = gate[batch.owners]  # [B, T, E]
    banks = lora.mixed(backbone.model, gate, batch.places, batch.counts)
    with banks, only_at(backbone.model, batch.predicts):
        logits = backbone.model(**batch.inputs, use_cache=False).logits[0]
    return logits.float(), batch.targets
