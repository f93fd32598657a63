"""Rows that a language model writes: in-context synthesis and selection (SSR), prompts learned by heart (SAPT)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

from forever.costs import EndWork
from forever.data.tasks import Example, Task
from forever.errors import InputError
from forever.seeding import derive
from forever.steps import Step, Steps

if TYPE_CHECKING:
    from torch import Tensor

    from forever.config import RunConfig
    from forever.data.encoding import Encoded
    from forever.decoding import Gate, Sampling
    from forever.learner import Learner

# ---- SSR: a completion prompt of two examples, and what comes out of it


def icl_prompts(demos: Sequence[Example]) -> list[tuple[str, str]]:
    """A prompt for every ordered pair of `demos` (a single one is alone): two worked examples, then an open input.

    Returns:
        For each prompt the instruction that it states, the first example's, and its text.
    """
    pairs = list(permutations(demos, 2)) or [(demo,) for demo in demos]
    return [
        (
            pair[0].instruction,
            f"{pair[0].instruction.strip()}\n\n"
            + "".join(f"Input: {demo.input.strip()}\nOutput: {demo.output.strip()}\n\n" for demo in pair)
            + "Input:",
        )
        for pair in pairs
    ]


def continuations(
    learner: Learner, prompts: Sequence[str], seeds: Sequence[int], sampling: Sampling, max_tokens: int
) -> list[str]:
    """A sample for each of `prompts`, in order, drawn by all ranks together.

    Args:
        max_tokens: of a prompt and its continuation.
    """
    from forever.decoding import sample

    def write(mine: list[int]) -> list[str]:
        rows = [learner.encoder.encode_text(prompts[i], max_tokens) for i in mine]
        limits = [max(1, max_tokens - len(row.prompt)) for row in rows]
        return sample(learner.backbone, rows, [seeds[i] for i in mine], limits, sampling)

    return learner.world.spread(range(len(prompts)), write)


def parse_icl(continuation: str) -> list[tuple[str, str]]:
    """(input, output) of each piece of a continuation that has exactly one "Output:" and something before it."""
    found = []
    for piece in continuation.split("Input:"):
        parts = [part.strip() for part in piece.split("Output:")]
        if len(parts) == 2 and all(parts):
            found.append((parts[0], parts[1]))
    return found


def cluster_quotas(sizes: Sequence[int], total: int) -> list[int]:
    """`total` shared out in proportion to `sizes`, by largest remainder, never more than a cluster has."""
    total, whole = min(total, sum(sizes)), max(sum(sizes), 1)
    shares = [total * size / whole for size in sizes]
    quotas = [int(share) for share in shares]
    by_remainder = sorted(range(len(sizes)), key=lambda i: (quotas[i] - shares[i], i))
    for i in by_remainder[: total - sum(quotas)]:
        quotas[i] += 1
    return quotas


def diverse(vectors: Tensor, count: int, clusters: int) -> list[list[int]]:
    """Indices of `vectors` [n, D] by K-means cluster, nearest to the centroid first, with how many to take of each.

    Returns:
        For each cluster: [quota, index, index, ...].
    """
    import numpy as np
    from sklearn.cluster import KMeans

    points = vectors.double().cpu().numpy()
    points = points / np.linalg.norm(points, axis=1, keepdims=True).clip(1e-12)
    distinct = len(np.unique(points.round(9), axis=0))
    means = KMeans(n_clusters=min(clusters, distinct), random_state=0, n_init="auto").fit(points)
    distance = np.linalg.norm(points - means.cluster_centers_[means.labels_], axis=1)
    members = [np.flatnonzero(means.labels_ == c) for c in range(means.n_clusters)]
    quotas = cluster_quotas([len(m) for m in members], count)
    return [
        [q, *(int(i) for i in m[np.argsort(distance[m].round(9), kind="stable")])]  # two points are equally near
        for q, m in zip(quotas, members, strict=True)
    ]


def take(ranked: Sequence[Sequence[int]], answer: Callable[[Sequence[int]], Sequence[str]]) -> dict[int, str]:
    """From each cluster of `diverse` its quota of members with an answer; one without gives way to the next nearest."""
    chosen: dict[int, str] = {}
    waiting = [(quota, list(members)) for quota, *members in ranked]
    while wanted := [i for quota, members in waiting for i in members[:quota]]:
        answers = dict(zip(wanted, answer(wanted), strict=True))
        chosen |= {i: text for i, text in answers.items() if text}
        waiting = [(sum(1 for i in members[:quota] if not answers[i]), members[quota:]) for quota, members in waiting]
    return chosen


def answer(learner: Learner, examples: Sequence[Example], limit: int) -> list[str]:
    """The model's greedy answers, at most `limit` tokens; empty where there is none that could be trained on."""
    from forever.decoding import decode

    texts = decode(learner.backbone, learner.encoder, examples, limit)
    rows = [dataclasses.replace(example, output=text) for example, text in zip(examples, texts, strict=True)]
    return [row.output if _fits(learner, row) else "" for row in rows]


def select(
    learner: Learner, task: Task, written: Sequence[Example], clusters: int, encoder: str | None, limit: int
) -> list[Example]:
    """A diverse choice of written rows, as many as memory keeps, answered by the model as it is now.

    Args:
        encoder: of sentences; None is the backbone. limit: tokens of an answer.
    """
    from forever.models.encoders import embed

    if not written:
        return []
    count = learner.memory.quota(len(task.train))
    vectors = embed(learner.backbone, [example.input for example in written], encoder)
    ranked = diverse(vectors, count, min(clusters, count))
    answers = take(ranked, lambda indices: answer(learner, [written[i] for i in indices], limit))
    return [dataclasses.replace(written[i], output=text) for i, text in sorted(answers.items())]


def icl_work(
    learner: Learner, demos: Sequence[Example], kept: Sequence[Example], turns: int, max_tokens: int, limit: int
) -> EndWork:
    """What writing from `demos` computes at most, for a plan: `turns` continuations of each prompt, and the answers.

    Args:
        kept: rows as long as those that will be chosen and answered.
    """
    lengths = [len(learner.encoder.encode_text(text, max_tokens).prompt) for _, text in icl_prompts(demos)]
    answers = [(len(learner.encoder.encode_prompt(row).prompt), limit) for row in kept]
    return EndWork(texts=[*[[(n, max(1, max_tokens - n)) for n in lengths]] * turns, answers])


def _fits(learner: Learner, row: Example) -> bool:
    """Whether instruction and answer leave room for anything: the model's answers may be longer than real ones."""
    try:
        learner.encoder.encode(row)
    except InputError:
        return False
    return True


# ---- SAPT: an adapter that writes prompts

_TRIGGER, _SEPARATOR = "__gen__", "__inp__"
_DRAWS = 3  # for each prompt that is wanted: some lack the separator
_STEM = "__inp"  # what is looked for: a repetition penalty can keep a writer from closing the separator


def check_writer(run: RunConfig) -> None:
    """Whether an adapter can learn to write prompts in such a run.

    Raises:
        InputError: it would have no rate to learn at, or no prompts to write.
    """
    remedy = "or set method.memory_prompts='real'"
    if run.optim.schedule != "constant":
        raise InputError(
            f"method sapt: optim.schedule={run.optim.schedule!r} is at rate 0 when the adapter that writes prompts "
            f"begins to learn; use 'constant', {remedy}"
        )
    if not run.memory.fraction:
        raise InputError(f"method sapt: memory.fraction=0 leaves no prompts to write; raise it, {remedy}")


def pseudo_examples(task: Task) -> list[Example]:
    """Rows that teach an adapter to write the task's prompts, answers left out."""
    return [_writer_row(f"{task.name}/generator/{i}", e) for i, e in enumerate(task.train)]


def _writer_row(name: str, example: Example) -> Example:
    return Example(name, _TRIGGER, "", f"{example.instruction} {_SEPARATOR} {example.input}")


def encode_writer(learner: Learner, example: Example) -> Encoded:
    """A row of `pseudo_examples` as tokens. If it is too long, the end of the prompt that it teaches gives way."""
    encoder = learner.encoder
    try:
        return encoder.encode(example)
    except InputError:
        whole = encoder.encode_prompt(example)
    ids = encoder.tokenizer(example.output, add_special_tokens=False).input_ids
    room = encoder.max_length - len(whole.prompt) - 1
    return dataclasses.replace(whole, answer=(*ids[:room], encoder.tokenizer.eos_token_id), truncated=True)


def parse_pseudo(text: str) -> tuple[str, str] | None:
    """(instruction, input) of a written prompt, if it has both."""
    instruction, _, body = (part.strip() for part in text.partition(_STEM))
    body = body.lstrip("_").lstrip()
    return (instruction, body) if instruction and body else None


def writer_steps(learner: Learner, task: Task, count: int) -> Steps:
    """Train the current adapter, which starts anew as the optimiser does, to write the task's prompts."""
    from forever.models import lora

    lora.redraw(learner.backbone.model, learner.config.seed)  # nothing happens where there is no model, as in a plan
    if learner.optimizer is not None:
        learner.optimizer.state.clear()
    rows = pseudo_examples(task)
    for n in range(count):
        yield Step(learner.batch_at(n, rows, "generator"), "generator")


def write_prompts(learner: Learner, task: Task, gate: Callable[[Learner, Any], Tensor]) -> list[dict[str, str]]:
    """As many prompts as memory keeps rows, written by the adapter that was trained to (top-k 20, penalty 2.5)."""
    from forever.decoding import Sampling, sample

    count = learner.memory.quota(len(task.train))
    row = learner.encoder.encode_prompt(Example("", _TRIGGER, "", ""))
    seeds = [derive(learner.config.seed, "pseudo", task.name, i) for i in range(_DRAWS * count)]
    weights: Gate = lambda rows: gate(learner, rows)  # noqa: E731
    limit = learner.config.model.max_length - len(row.prompt)
    how = Sampling(top_k=20, repetition_penalty=2.5)
    texts = learner.world.spread(
        seeds, lambda mine: sample(learner.backbone, [row] * len(mine), mine, limit, how, weights)
    )
    parsed = map(parse_pseudo, texts)
    found = [Example(f"{task.name}/pseudo/{i}", *parts, "") for i, parts in enumerate(parsed) if parts]
    usable = [dataclasses.asdict(example) for example in found if _fits(learner, example)][:count]
    if len(usable) < count and learner.world.leads:
        print(
            f"sapt: {len(usable)} of {count} prompts that the model wrote for {task.name} can be used", file=sys.stderr
        )
    learner.note(written=float(len(usable)))
    return usable


def writer_work(learner: Learner, task: Task) -> EndWork:
    """What `write_prompts` computes for a task, for a plan: texts as long as they may get."""
    before = len(learner.encoder.encode_prompt(Example("", _TRIGGER, "", "")).prompt)
    count = _DRAWS * learner.memory.quota(len(task.train))
    return EndWork(texts=[[(before, learner.config.model.max_length - before)] * count])
