"""Texts become vectors, by the frozen backbone itself or by a sentence encoder."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forever.models import lora
from forever.models.backbone import Backbone
from forever.models.loading import check_report, explained
from forever.models.location import fetch

_BATCH = 32
_MAX_TOKENS = 510  # what a RoBERTa takes, as in the code of SSR; other encoders may take less


@torch.inference_mode()
def embed(backbone: Backbone, texts: Sequence[str], encoder: str | None) -> Tensor:
    """Return one vector for each text, [n, D], in fp32 on the CPU.

    It is the pooled output of a sentence `encoder`, or the mean last hidden state of one without a
    pooler. If there is no encoder, it is that of the backbone without adapters.
    """
    model, tokenizer = backbone.model.base_model, backbone.tokenizer
    if encoder is not None:
        model, tokenizer = load_encoder(encoder, backbone.device)
    model.eval()
    # RoBERTa reserves two positions.
    positions = getattr(model.config, "max_position_embeddings", None) or _MAX_TOKENS + 2
    vectors: list[Tensor] = []
    with lora.disabled(backbone.model):
        for i in range(0, len(texts), _BATCH):
            part = tokenizer(
                list(texts[i : i + _BATCH]),
                return_tensors="pt",
                padding=True,
                padding_side="right",
                truncation=True,
                max_length=min(_MAX_TOKENS, positions - 2),
            ).to(model.device)
            mask = part.attention_mask
            output = model(input_ids=part.input_ids, attention_mask=mask)
            pooled = getattr(output, "pooler_output", None)
            if pooled is None:
                hidden = output.last_hidden_state.float() * mask[..., None]
                pooled = hidden.sum(1) / mask.sum(1, keepdim=True)
            vectors.append(pooled.float().cpu())
    return torch.cat(vectors)


def load_encoder(name: str, device: torch.device) -> tuple[Any, Any]:
    """Load a sentence encoder in fp32, and its tokenizer.

    Raises:
        InputError: the encoder cannot be loaded, is Python code of its own, or lacks weights.
    """
    from transformers import AutoModel, AutoTokenizer

    path = fetch(name, "method.encoder")
    with explained("method.encoder", name):
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        # Weights in safetensors alone: others would be unpickled.
        model, report = AutoModel.from_pretrained(
            str(path),
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the report has them
        )
    check_report("method.encoder", path, report, but="pooler.")
    if report["missing_keys"]:
        # The pooler was never trained, and its random weights would differ from run to run.
        model.pooler = None
    return model.to(device), tokenizer
