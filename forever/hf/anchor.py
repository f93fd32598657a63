"""Holding what a model answers to what a reference would, on every example that is trained.

    L = CE + weight * mean over the answers' tokens of KL(p* || p)

It needs no old data. TRL computes its loss without logits, so this costs a forward pass of the
reference and one more of the model; logits are computed where an answer's token comes next, alone.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from forever.models.backbone import only_at


def hold(trainer: Any, weight: float, reference: Callable[[], AbstractContextManager[Any]]) -> None:
    """Let a trainer add the divergence to its loss; within `reference()` the model is p*."""
    usual = trainer.compute_loss

    def compute_loss(
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        if return_outputs or not model.training:
            return usual(model, inputs, return_outputs, num_items_in_batch)
        bare = trainer.accelerator.unwrap_model(model)
        given = {name: value for name, value in inputs.items() if name != "labels"}
        given["use_cache"] = False
        ahead = inputs["labels"].roll(-1, dims=1) != -100  # [B, T]
        ahead[:, -1] = False
        places = ahead.flatten().nonzero().flatten()
        # The reference comes first: loading its weights would break a graph that exists.
        bare.eval()
        with torch.no_grad(), reference():
            log_q = log_probabilities(bare, given, places)
        bare.train()
        loss = usual(model, inputs, return_outputs, num_items_in_batch)
        log_p = log_probabilities(bare, given, places)
        divergence = (log_q.exp() * (log_q - log_p)).sum()
        # The mean is taken over the same tokens as that of the loss (Trainer.compute_loss).
        if num_items_in_batch is None:
            return loss + weight * divergence / max(len(places), 1)
        ranks = trainer.accelerator.num_processes
        share = ranks if trainer.args.average_tokens_across_devices else 1
        return loss + weight * share * divergence / num_items_in_batch

    trainer.compute_loss = compute_loss


def log_probabilities(model: Any, inputs: dict[str, Any], places: Tensor) -> Tensor:
    """Return the log-probabilities [n, V] of the next token at n places among all B T."""
    with only_at(model, places):
        return model(**inputs).logits[0].float().log_softmax(-1)
