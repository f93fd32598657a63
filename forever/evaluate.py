"""Greedy decoding of many prompts, and scoring. No method ever sees which task a prompt belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forever.data.encoding import Encoder, collate_prompts
from forever.data.tasks import Example, Task
from forever.metrics import score
from forever.models.backbone import Backbone
from forever.world import World

# Prompt tokens decoded at once, pads included: bounds memory by what the cache holds, not by the number of rows.
_TOKENS_AT_ONCE = 32768


@dataclass(frozen=True)
class Prediction:
    """A decoded answer, a line of predictions/<stage>/<task>.jsonl. `score` is in [0, 1]."""

    id: str
    prediction: str
    reference: str
    score: float


def evaluate(backbone: Backbone, encoder: Encoder, world: World, task: Task, max_new_tokens: int) -> list[Prediction]:
    """Decode and score a task's test rows, shared out over the ranks; every rank returns all of them in order."""
    mine = [(i, task.test[i]) for i in world.share(range(len(task.test)))]
    texts = decode(backbone, encoder, [example for _, example in mine], max_new_tokens)
    gathered = world.gather([[i, text] for (i, _), text in zip(mine, texts, strict=True)])
    answers = {i: text for part in gathered for i, text in part}
    predictions = [answers[i] for i in range(len(task.test))]
    scores = score(task.metric, predictions, [example.output for example in task.test])
    return [
        Prediction(example.id, text, example.output, value)
        for example, text, value in zip(task.test, predictions, scores, strict=True)
    ]


@torch.inference_mode()
def decode(backbone: Backbone, encoder: Encoder, examples: Sequence[Example], max_new_tokens: int) -> list[str]:
    """The greedy answer to each example's prompt, stripped, in order.

    Rows of similar length are decoded together, padded on the left; in fp32 the text equals decoding one by one.
    """
    backbone.model.eval()
    pad = backbone.tokenizer.pad_token_id
    greedy = {"max_new_tokens": max_new_tokens, "do_sample": False, "num_beams": 1}
    rows = [encoder.encode_prompt(example) for example in examples]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].prompt), reverse=True)
    texts = [""] * len(rows)
    while order:
        width = len(rows[order[0]].prompt) + max_new_tokens
        count = max(1, _TOKENS_AT_ONCE // width)
        group, order = order[:count], order[count:]
        ids, mask = collate_prompts([rows[i] for i in group], pad, backbone.device)
        output = backbone.model.generate(input_ids=ids, attention_mask=mask, **greedy)
        for i, answer in zip(group, output[:, ids.shape[1] :].tolist(), strict=True):
            texts[i] = backbone.tokenizer.decode(answer, skip_special_tokens=True).strip()
    return texts
