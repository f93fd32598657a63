"""Attention of packed examples: each of them attends within itself.

All other layers see the tokens of several examples as one sequence without repeats (see
`data.collation`). Here alone they are laid out an example a row, so that the usual causal kernels
serve. On a CPU a mask as large as the square of the sequence serves instead where that is smaller.

T tokens in the packed sequence, B examples of at most L tokens, H heads of width D.
"""

from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from forever.data.collation import Collated, Layout, pack, pad
from forever.data.encoding import Encoded
from forever.errors import one_line
from forever.models.cache import Turn

NAME = "forever_examples"


# Two examples that begin alike, for a trial of a model.
_TRIAL = (Encoded((1, 2, 3), (4, 5), False), Encoded((1, 2), (6,), False))


def register(model: Any) -> str | None:
    """Let a model of `transformers` attend by a `layout` when it is called with one.

    Returns:
        Why it cannot, and is left as it was; None if it can.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config.get_text_config()
    others = {*(getattr(config, "layer_types", None) or ())} - {"full_attention"}
    if others or getattr(config, "sliding_window", None):
        return "since its layers do not all attend to everything before a token"
    before = config._attn_implementation
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    problem = "since its layers do not take their attention from outside"
    try:
        model.set_attn_implementation(NAME)
        if _packs(model):
            return None
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        problem = f"since it refused another attention: {one_line(error)}"
    model.set_attn_implementation(before)
    return problem


@torch.no_grad()
def _packs(model: Any) -> bool:
    """Whether packed examples have the logits of padded ones, with a mask and by rows."""
    packed, by_rows = (pack(_TRIAL, [0, 0], model.device) for _ in range(2))
    by_rows.inputs["layout"] = replace(by_rows.inputs["layout"], mask=None)
    padded = _logits(model, pad(_TRIAL, 0, model.device))
    return all(
        (_logits(model, batch) - padded).norm() < 0.02 * padded.norm()  # bf16 has two digits
        for batch in (packed, by_rows)
    )


def _logits(model: Any, batch: Collated) -> Tensor:
    logits = model(**batch.inputs, use_cache=False).logits
    return logits.flatten(0, 1)[batch.predicts].float()


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    layout: Layout | Turn | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as PyTorch's own function does, with a `layout` within each example or answer.

    Args:
        query, key, value: [1, H, T, D]; keys and values may have fewer heads.

    Returns:
        [1, T, H, D].
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if isinstance(layout, Turn):
        layer, scaling = cast(Any, module).layer_idx, options["scaling"]
        return layout.attend(layer, query, key, value, scaling), None
    if layout.mask is not None:
        return _masked(module, query, key, value, layout.mask, options), None
    q, k, v = (_rows(states, layout) for states in (query, key, value))
    options["is_causal"] = True
    out, _ = sdpa_attention_forward(module, q, k, v, None, **options)  # [B, L, H, D]
    return out.flatten(0, 1).index_select(0, layout.back)[None], None


def _masked(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, options: dict[str, Any]
) -> Tensor:
    """Attend to what the mask [T, T] shows; 0 where the output of the last layer is not read."""
    settings = {"scale": options["scaling"], "dropout_p": options.get("dropout", 0.0)}
    settings["enable_gqa"] = key.shape[1] < query.shape[1]
    mask = mask.to(query.dtype)
    read_at = getattr(module, "read_at", None)  # see `backbone.only_at`
    if read_at is None:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **settings)
    else:
        places = read_at.unique()  # a place that is read twice would have its gradient twice
        some, mask = query[:, :, places], mask[places]
        out = F.scaled_dot_product_attention(some, key, value, attn_mask=mask, **settings)
        out = torch.zeros_like(query).index_copy(2, places, out)
    return out.transpose(1, 2).contiguous()


def _rows(states: Tensor, layout: Layout) -> Tensor:
    """From [1, H, T, D] to [B, H, L, D]."""
    rows = states[0].index_select(1, layout.rows.flatten())
    return rows.unflatten(1, layout.rows.shape).transpose(0, 1)
