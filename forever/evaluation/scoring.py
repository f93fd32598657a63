"""Greedy answers to test examples are scored; no method sees which task a prompt belongs to."""

from dataclasses import dataclass

from forever.data.encoding import Encoder
from forever.data.tasks import Task
from forever.evaluation.decoding import Gate, decode
from forever.evaluation.metrics import score
from forever.models.backbone import Backbone
from forever.training.world import World


@dataclass(frozen=True)
class Prediction:
    """A decoded answer, a line of predictions/<stage>/<task>.jsonl. `score` is in [0, 1]."""

    id: str
    prediction: str
    reference: str
    score: float


def evaluate(
    backbone: Backbone,
    encoder: Encoder,
    world: World,
    task: Task,
    max_new_tokens: int,
    gate: Gate | None = None,
) -> list[Prediction]:
    """Decode and score a task's test examples, shared out over ranks that all return all."""
    texts = world.spread(
        task.test, lambda share: decode(backbone, encoder, share, max_new_tokens, gate)
    )
    scores = score(task.metric, texts, [example.output for example in task.test])
    predictions: list[Prediction] = []
    for example, text, value in zip(task.test, texts, scores, strict=True):
        predictions.append(Prediction(example.id, text, example.output, value))
    return predictions
