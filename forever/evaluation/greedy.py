"""Greedy answers to many prompts at once, all in one packed sequence.

What prompts begin with is computed once (see `data.collation`). Each step of decoding then adds one
token of every unfinished answer to the end of the sequence, and a mask says which tokens it sees:
its prompt and its own answer. An answer that has ended costs nothing any more.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from forever.data.collation import kinds_of, pack, shared_beginnings
from forever.data.encoding import Encoded
from forever.models import lora
from forever.models.backbone import Backbone, only_at

# Tokens of prompts that are answered together. More would cost more attention to other prompts'
# tokens than is won by larger matrix products.
TOKENS_AT_ONCE = 4096
# Weights of the adapters for a batch of prompts: see `Method.gate`.
Gate = Callable[[Sequence[Encoded]], Tensor | None]
# Says of a prompt's number and its answer so far whether the rest of it is of no interest.
Over = Callable[[int, list[int]], bool]


@torch.inference_mode()
def answer(
    backbone: Backbone, prompts: Sequence[Encoded], limit: int, gate: Gate | None, over: Over
) -> list[list[int]]:
    """Answer each prompt with the likeliest tokens, up to its end or to `limit` tokens."""
    backbone.model.eval()
    if not prompts:  # a rank may have none, of which no gate could be computed
        return []
    weights = gate(prompts) if gate else None  # for a prompt and all that follows it
    kinds = kinds_of([0] * len(prompts), weights)
    answers: list[list[int]] = [[]] * len(prompts)
    for group in together(prompts, kinds):
        texts = _answer_group(
            backbone,
            [prompts[i] for i in group],
            [kinds[i] for i in group],
            limit,
            weights if weights is None or weights.dim() == 1 else weights[group],
            lambda number, tokens, group=group: over(group[number], tokens),
        )
        for i, tokens in zip(group, texts, strict=True):
            answers[i] = tokens
    return answers


def together(prompts: Sequence[Encoded], kinds: Sequence[int]) -> Iterator[list[int]]:
    """Say which prompts are answered together: neighbours, which share the most."""
    group: list[int] = []
    size = 0
    for i, shared in shared_beginnings(prompts, kinds):
        length = len(prompts[i].prompt)
        if group and size + length - shared > TOKENS_AT_ONCE:
            yield group
            group, size, shared = [], 0, 0
        group.append(i)
        size += length - shared
    if group:
        yield group


def _answer_group(
    backbone: Backbone,
    prompts: Sequence[Encoded],
    kinds: Sequence[int],
    limit: int,
    weights: Tensor | None,
    over: Over,
) -> list[list[int]]:
    """Answer prompts in one sequence, with the `weights` [B, E] of their adapters."""
    from transformers import DynamicCache

    model, device = backbone.model, backbone.device
    ends = {*model.generation_config.eos_token_id}
    batch = pack(prompts, kinds, device)
    depths = torch.tensor([len(encoded.prompt) for encoded in prompts], device=device)
    numbers = torch.arange(len(prompts), device=device)
    rows = batch.inputs["layout"].rows
    # Row i says what the next token of answer i sees.
    sees = torch.zeros(len(prompts), batch.owners.numel(), dtype=torch.bool, device=device)
    real = torch.arange(rows.shape[1], device=device) < depths[:, None]
    sees[numbers[:, None].expand_as(rows)[real], rows[real]] = True

    cache = DynamicCache()
    answers: list[list[int]] = [[] for _ in prompts]
    inputs, places, owners = batch.inputs, rows[numbers, depths - 1], batch.owners
    while True:
        of_tokens = weights if weights is None or weights.dim() == 1 else weights[owners]
        with lora.mixed(model, of_tokens), only_at(model, places):
            logits = model(**inputs, past_key_values=cache, use_cache=True).logits[0]
        tokens = logits.argmax(-1)
        going: list[int] = []
        for place, (number, token) in enumerate(
            zip(numbers.tolist(), tokens.tolist(), strict=True)
        ):
            answers[number].append(token)
            ended = token in ends or len(answers[number]) == limit
            if not ended and not over(number, answers[number]):
                going.append(place)
        if not going:
            return answers
        kept = torch.tensor(going, device=device)
        numbers, tokens, sees, depths = numbers[kept], tokens[kept], sees[kept], depths[kept]
        sees = torch.cat([sees, torch.eye(len(kept), dtype=torch.bool, device=device)], dim=1)
        inputs = {
            "input_ids": tokens[None],
            "position_ids": depths[None],
            "attention_mask": sees[None, None],
        }
        depths = depths + 1
        places, owners = torch.arange(len(kept), device=device), numbers[None]
