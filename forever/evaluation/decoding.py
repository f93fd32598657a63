"""Many prompts are decoded at once, greedily or by sampling; a batch does not change a sample."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from forever.data.collation import collate_prompts
from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Example
from forever.evaluation import greedy
from forever.evaluation.greedy import Gate
from forever.models import lora
from forever.models.backbone import Backbone
from forever.models.device import fitting
from forever.stopping import pulse

# Says of an answer so far whether the rest of it is of no interest.
Over = Callable[[str], bool]
# Tokens that are decoded at once, pads included, which bounds the memory of the cache.
_TOKENS_AT_ONCE = 32768


def decode(
    backbone: Backbone,
    encoder: Encoder,
    examples: Sequence[Example],
    max_new_tokens: int,
    gate: Gate | None = None,
    packed: bool = True,
    over: Sequence[Over | None] | None = None,
) -> list[str]:
    """Answer each example's prompt greedily; answers are stripped and in order.

    In fp32 the texts equal those of prompts that are decoded one by one.

    Args:
        packed: let examples share what they begin with, if the backbone can.
        over: says of each answer so far whether the rest of it is of no interest.
    """
    prompts = list(map(encoder.encode_prompt, examples))
    if not packed or backbone.unpackable:
        texts = _generate(backbone, prompts, [max_new_tokens] * len(prompts), gate)
        return list(map(encoder.prompt.said, texts))

    def text(tokens: Sequence[int]) -> str:
        written = backbone.tokenizer.decode(tokens, skip_special_tokens=True).strip()
        return encoder.prompt.said(written)

    def ended(number: int, tokens: list[int]) -> bool:
        check = over[number] if over else None
        return check is not None and check(text(tokens))

    openings = [example.opening for example in examples]
    answers = greedy.answer(backbone, prompts, openings, max_new_tokens, gate, ended)
    return list(map(text, answers))


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; the defaults leave the distribution whole."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    # Divides the positive logits of tokens that occurred before, and multiplies their negative
    # logits (Keskar et al. 2019).
    repetition_penalty: float = 1.0


def sample(
    backbone: Backbone,
    prompts: Sequence[Encoded],
    seeds: Sequence[int],
    max_new_tokens: int | Sequence[int],
    sampling: Sampling,
    gate: Gate | None = None,
) -> list[str]:
    """Draw a continuation of each prompt with its own seed and one limit for all, or its own.

    In fp32 a continuation is the same in any batch and on any rank.
    """
    limits = max_new_tokens
    if isinstance(limits, int):
        limits = [limits] * len(prompts)
    return _generate(backbone, prompts, limits, gate, sampling, seeds)


def together(prompts: Sequence[int], limits: Sequence[int]) -> Iterator[list[int]]:
    """Say which prompts are decoded together, the longest first.

    `prompts` are the tokens that each has, `limits` those that may follow.
    """
    order = sorted(range(len(prompts)), key=lambda i: prompts[i], reverse=True)
    while order:
        count = max(1, _TOKENS_AT_ONCE // (prompts[order[0]] + limits[order[0]]))
        group, order = order[:count], order[count:]
        yield group


@torch.inference_mode()
def _generate(
    backbone: Backbone,
    prompts: Sequence[Encoded],
    limits: Sequence[int],
    gate: Gate | None,
    sampling: Sampling | None = None,
    seeds: Sequence[int] = (),
) -> list[str]:
    """Decode prompts of similar length together, padded on the left, and cut each off at its limit.

    `gate` weighs the adapters once for each prompt; the weights hold for every decoded token.
    """
    backbone.model.eval()
    texts = [""] * len(prompts)
    for group in together([len(encoded.prompt) for encoded in prompts], limits):

        def answers(size: int, group: Sequence[int] = group) -> list[str]:
            written: list[str] = []
            for first in range(0, len(group), size):
                part = group[first : first + size]
                of_part = [prompts[i] for i in part], [limits[i] for i in part]
                own_seeds = [seeds[i] for i in part] if sampling else []
                written += _decode_batch(backbone, *of_part, gate, sampling, own_seeds)
            return written

        written, backbone.padded = fitting(answers, len(group), backbone.padded, "answers")
        for i, text in zip(group, written, strict=True):
            texts[i] = text
    return texts


def _decode_batch(
    backbone: Backbone,
    batch: Sequence[Encoded],
    limits: Sequence[int],
    gate: Gate | None,
    sampling: Sampling | None,
    seeds: Sequence[int],
) -> list[str]:
    from transformers import LogitsProcessorList

    ids, mask = collate_prompts(batch, backbone.tokenizer.pad_token_id, backbone.device)
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": max(limits)}
    processors: list[Any] = []
    if sampling:
        starts = ids.shape[1] - mask.sum(1)
        processors = _processors(sampling, starts, seeds)
    options["logits_processor"] = LogitsProcessorList([*processors, _alive])
    with lora.mixed(backbone.model, gate(batch) if gate else None):
        output = backbone.model.generate(input_ids=ids, attention_mask=mask, **options)
    texts: list[str] = []
    for answer, limit in zip(output[:, ids.shape[1] :].tolist(), limits, strict=True):
        text = backbone.tokenizer.decode(answer[:limit], skip_special_tokens=True)
        texts.append(text.strip())
    return texts


def _alive(ids: Tensor, scores: Tensor) -> Tensor:
    """Say before every token that the run does not hang; many tokens take minutes."""
    pulse()
    return scores


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
        # A pad may be the same token as EOS and must not count as repeated: the prompt's first
        # token takes its place.
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
    """Adds Gumbel noise of each prompt's own: the largest sum is a sample of the softmax."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.streams = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        noise = torch.empty_like(scores, dtype=torch.float32)
        for values, stream in zip(noise, self.streams, strict=True):
            values.exponential_(generator=stream)  # -log of an exponential is Gumbel
        return scores.float() - noise.log()
