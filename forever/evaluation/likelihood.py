"""Scores by the probabilities that a model gives to answers; it writes none."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp

import torch

from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Example, Task
from forever.evaluation.greedy import TOKENS_READ, Gate
from forever.models.backbone import Backbone
from forever.models.device import fitting
from forever.models.forward import answer_logits
from forever.scores import LABEL_LIKELIHOOD
from forever.stopping import pulse


def score_by_likelihood(
    backbone: Backbone,
    encoder: Encoder,
    task: Task,
    examples: Sequence[Example],
    gate: Gate | None = None,
    packed: bool = True,
) -> list[tuple[str, float]]:
    """Return a prediction and its score for each test example of a task.

    By `label_likelihood` the prediction is the likeliest label of the task, and its score is 1 if
    it is the right one, else 0. By `text_likelihood` there is no prediction; the score is the
    geometric mean of the probabilities of the right answer's tokens, EOS included.
    """
    if task.metric != LABEL_LIKELIHOOD:
        encoded = [encoder.encode(example) for example in examples]
        sums = log_probabilities(backbone, encoded, gate, packed)
        lengths = [len(each.learned) for each in encoded]
        return [("", exp(sum_ / n)) for sum_, n in zip(sums, lengths, strict=True)]

    labels = labels_of(task)
    encoded = [encoder.encode(replace(each, output=label)) for each in examples for label in labels]
    sums = log_probabilities(backbone, encoded, gate, packed)
    chosen: list[tuple[str, float]] = []
    for number, example in enumerate(examples):
        of_labels = sums[number * len(labels) : (number + 1) * len(labels)]
        label = labels[of_labels.index(max(of_labels))]
        chosen.append((label, float(label == example.output.strip())))
    return chosen


def labels_of(task: Task) -> list[str]:
    """Return the answers that a task has; one may be rare enough for no training example."""
    return sorted({*(task.labels or ()), *(example.output.strip() for example in task.test)})


@torch.inference_mode()
def log_probabilities(
    backbone: Backbone, examples: Sequence[Encoded], gate: Gate | None = None, packed: bool = True
) -> list[float]:
    """Return for each example the log-probability of its answer and EOS, given its prompt."""
    backbone.model.eval()

    def work(tokens: int) -> list[float]:
        sums: list[float] = []
        for group in _groups(examples, tokens, packed):
            pulse()
            logits, targets = answer_logits(backbone, group, gate and gate(group), packed)
            of_tokens = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].double()
            parts = of_tokens.split([len(example.learned) for example in group])
            sums += [float(part.sum()) for part in parts]
        return sums

    return fitting(work, TOKENS_READ, None, "tokens")[0]


def _groups(examples: Sequence[Encoded], tokens: int, packed: bool) -> Iterator[list[Encoded]]:
    """Yield neighbours of at most `tokens` in all; a prompt with several answers counts once."""
    group: list[Encoded] = []
    size = 0
    for example in examples:
        is_shared = packed and group and group[-1].prompt == example.prompt
        added = len(example.answer) + (0 if is_shared else len(example.prompt))
        if group and size + added > tokens:
            yield group
            group, size = [], 0
            added = len(example.answer) + len(example.prompt)
        group.append(example)
        size += added
    if group:
        yield group
