"""Decoding many prompts at once: greedily, or by sampling that does not depend on which prompts
share a batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from forever.data.encoding import Encoded, Encoder, collate_prompts
from forever.data.tasks import Example
from forever.models import lora
from forever.models.backbone import Backbone

# Weights of the adapters for a batch of prompts: see `Method.gate`.
Gate = Callable[[Sequence[Encoded]], Tensor | None]
# Prompt tokens decoded at once, pads included: bounds memory by what the cache holds, not by the
# number of rows.
_TOKENS_AT_ONCE = 32768


def decode(
    backbone: Backbone,
    encoder: Encoder,
    examples: Sequence[Example],
    max_new_tokens: int,
    gate: Gate | None = None,
) -> list[str]:
    """The greedy answer to each example's prompt, stripped, in order; in fp32 the text equals
    decoding one by one."""
    rows = [encoder.encode_prompt(example) for example in examples]
    return _texts(backbone, _generate(backbone, rows, [max_new_tokens] * len(rows), gate))


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `top_k` 0 and `top_p` 1 leave the distribution whole.

    repetition_penalty: divides the positive logits of tokens that occurred before and multiplies
    their negative ones
        (Keskar et al. 2019); 1 is none.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


def sample(
    backbone: Backbone,
    prompts: Sequence[Encoded],
    seeds: Sequence[int],
    max_new_tokens: int | Sequence[int],
    sampling: Sampling,
    gate: Gate | None = None,
) -> list[str]:
    """A random continuation of each prompt, drawn with its own seed: the same in any batch and on
    any rank (fp32).

    Args:
        max_new_tokens: of all prompts, or of each.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
    return _texts(backbone, _generate(backbone, prompts, limits, gate, sampling, seeds))


def draw(
    backbone: Backbone,
    prompts: Sequence[Encoded],
    seeds: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
) -> list[list[int]]:
    """As `sample`, but the tokens that were drawn, with the one that ends a continuation if it
    came."""
    ends = {*backbone.model.generation_config.eos_token_id}
    drawn = _generate(backbone, prompts, [max_new_tokens] * len(prompts), None, sampling, seeds)
    stops = [
        next((i + 1 for i, token in enumerate(ids) if token in ends), len(ids)) for ids in drawn
    ]
    return [ids[:stop] for ids, stop in zip(drawn, stops, strict=True)]


def together(prompts: Sequence[int], limits: Sequence[int]) -> Iterator[list[int]]:
    """Which rows are decoded together, longest prompts first.

    Args:
        prompts: tokens of each row's prompt. limits: tokens that it may have after that.
    """
    order = sorted(range(len(prompts)), key=lambda i: prompts[i], reverse=True)
    while order:
        count = max(1, _TOKENS_AT_ONCE // (prompts[order[0]] + limits[order[0]]))
        group, order = order[:count], order[count:]
        yield group


@torch.inference_mode()
def _generate(
    backbone: Backbone,
    rows: Sequence[Encoded],
    limits: Sequence[int],
    gate: Gate | None,
    sampling: Sampling | None = None,
    seeds: Sequence[int] = (),
) -> list[list[int]]:
    """Rows of similar length are decoded together, padded on the left; what a row has beyond its
    limit is cut off.

    `gate` weighs the adapters once a prompt, and its weights hold for every token that is decoded.
    """
    backbone.model.eval()
    pad = backbone.tokenizer.pad_token_id
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1}
    found: list[list[int]] = [[]] * len(rows)
    for group in together([len(row.prompt) for row in rows], limits):
        prompts = [rows[i] for i in group]
        ids, mask = collate_prompts(prompts, pad, backbone.device)
        options["max_new_tokens"] = max(limits[i] for i in group)
        if sampling:
            starts = ids.shape[1] - mask.sum(1)
            options["logits_processor"] = _processors(sampling, starts, [seeds[i] for i in group])
        with lora.mixed(backbone.model, gate(prompts) if gate else None):
            output = backbone.model.generate(input_ids=ids, attention_mask=mask, **options)
        for i, answer in zip(group, output[:, ids.shape[1] :].tolist(), strict=True):
            found[i] = answer[: limits[i]]
    return found


def _texts(backbone: Backbone, answers: Sequence[Sequence[int]]) -> list[str]:
    return [
        backbone.tokenizer.decode(answer, skip_special_tokens=True).strip() for answer in answers
    ]


def _processors(sampling: Sampling, starts: Tensor, seeds: Sequence[int]) -> Any:
    from transformers import LogitsProcessorList
    from transformers.generation.logits_process import (
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    chain: list[Any] = []
    if sampling.repetition_penalty != 1:
        penalise = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        # A pad is no repeated token, though it may be the same token as EOS: let it stand for the
        # row's first token.
        chain.append(lambda ids, scores: penalise(cast(Any, _without_pads(ids, starts)), scores))
    if sampling.temperature != 1:
        chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        chain.append(TopPLogitsWarper(sampling.top_p))
    return LogitsProcessorList([*chain, _Gumbel(seeds, starts.device)])


def _without_pads(ids: Tensor, starts: Tensor) -> Tensor:
    padding = torch.arange(ids.shape[1], device=ids.device) < starts[:, None]
    return torch.where(padding, ids.gather(1, starts[:, None]), ids)


class _Gumbel:
    """Adds Gumbel noise, so that the largest sum is a sample of the softmax; each row has a stream
    of its own."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.streams = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        noise = torch.empty_like(scores, dtype=torch.float32)
        for row, stream in zip(noise, self.streams, strict=True):
            row.exponential_(generator=stream)  # -log of an exponential is Gumbel
        return scores.float() - noise.log()
