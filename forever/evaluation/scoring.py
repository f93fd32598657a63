"""Answers to test examples are scored; no method sees which task a prompt belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from forever.data.encoding import Encoder
from forever.data.tasks import Example, Task
from forever.evaluation.decoding import Gate, Over, decode
from forever.evaluation.likelihood import score_by_likelihood
from forever.models.backbone import Backbone
from forever.scores import BY_LIKELIHOOD, score
from forever.world import World


@dataclass(frozen=True)
class Prediction:
    """A decoded answer, a line of predictions/<stage>/<task>.jsonl.

    Its `score` is in [0, 1]. An answer is `cut` if no answer of the task begins like it: decoding
    stopped there, since it can only be wrong.
    """

    id: str
    prediction: str
    reference: str
    score: float
    cut: bool = False


def evaluate(
    backbone: Backbone,
    encoder: Encoder,
    world: World,
    tasks: Sequence[Task],
    max_new_tokens: int,
    gate: Gate | None = None,
    packed: bool = True,
) -> list[list[Prediction]]:
    """Score the test examples of tasks, shared out over ranks that all return all.

    The model answers them, but for a metric that reads its probabilities.
    """
    over: dict[str, Over | None] = {}
    questions: list[tuple[str, Example]] = []
    for task in tasks:
        if task.metric in BY_LIKELIHOOD:
            continue
        over[task.name] = hopeless_answers(task) if packed else None
        questions += [(task.name, example) for example in task.test]

    def write(share: list[tuple[str, Example]]) -> list[str]:
        names, examples = zip(*share, strict=True) if share else ((), ())
        checks = [over[name] for name in names]
        return decode(backbone, encoder, examples, max_new_tokens, gate, packed, checks)

    texts = iter(world.spread(questions, write))
    predictions: list[list[Prediction]] = []
    for task in tasks:
        if task.metric in BY_LIKELIHOOD:
            work = partial(score_by_likelihood, backbone, encoder, task, gate=gate, packed=packed)
            answers, scores = zip(*world.spread(task.test, work), strict=True)
        else:
            answers = list(islice(texts, len(task.test)))
            scores = score(task.metric, answers, [example.output for example in task.test])
        is_over = over.get(task.name)
        of_task: list[Prediction] = []
        for example, text, value in zip(task.test, answers, scores, strict=True):
            cut = is_over is not None and is_over(text)
            of_task.append(Prediction(example.id, text, example.output, value, cut))
        predictions.append(of_task)
    return predictions


def hopeless_answers(task: Task) -> Over | None:
    """What says of the beginning of an answer that no answer of the task begins so.

    None for a task without labels, or where a part of an answer has a score, too. A label may be
    rare enough for the training examples to lack it.
    """
    if task.metric != "exact_match" or task.labels is None:
        return None
    answers = {*task.labels, *(example.output for example in task.test)}
    labels = [answer.strip().lower() for answer in answers]

    def hopeless(text: str) -> bool:
        begun = text.strip().lower().rstrip("\ufffd")  # a character whose bytes are not all there
        return not any(label.startswith(begun) for label in labels)

    return hopeless
