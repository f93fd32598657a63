"""Rows that a language model writes: in-context synthesis and selection (SSR), prompts learned by
heart (SAPT)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import permutations

from torch import Tensor

from forever.data.tasks import Example, Task
from forever.errors import InputError
from forever.evaluation import decoding
from forever.evaluation.decoding import Sampling, decode
from forever.methods.ssr.encoders import embed
from forever.training.learner import Learner

# ---- SSR: a completion prompt of two examples, and what comes out of it


def icl_prompts(demos: Sequence[Example]) -> list[tuple[str, str]]:
    """A prompt for every ordered pair of `demos` (a single one is alone): two worked examples, then
    an open input.

    Returns:
        For each prompt the instruction that it states, the first example's, and its text.
    """
    pairs = list(permutations(demos, 2)) or [(demo,) for demo in demos]
    return [
        (
            pair[0].instruction,
            f"{pair[0].instruction.strip()}\n\n"
            + "".join(
                f"Input: {demo.input.strip()}\nOutput: {demo.output.strip()}\n\n" for demo in pair
            )
            + "Input:",
        )
        for pair in pairs
    ]


def continuations(
    learner: Learner,
    prompts: Sequence[str],
    seeds: Sequence[int],
    sampling: Sampling,
    max_tokens: int,
) -> list[str]:
    """A sample for each of `prompts`, in order, drawn by all ranks together.

    Args:
        max_tokens: of a prompt and its continuation.
    """

    def write(mine: list[int]) -> list[str]:
        rows = [learner.encoder.encode_text(prompts[i], max_tokens) for i in mine]
        limits = [max(1, max_tokens - len(row.prompt)) for row in rows]
        return decoding.sample(learner.backbone, rows, [seeds[i] for i in mine], limits, sampling)

    return learner.world.spread(range(len(prompts)), write)


def parse_icl(continuation: str) -> list[tuple[str, str]]:
    """(input, output) of each piece of a continuation that has exactly one "Output:" and something
    before it."""
    found = []
    for piece in continuation.split("Input:"):
        parts = [part.strip() for part in piece.split("Output:")]
        if len(parts) == 2 and all(parts):
            found.append((parts[0], parts[1]))
    return found


def cluster_quotas(sizes: Sequence[int], total: int) -> list[int]:
    """`total` shared out in proportion to `sizes`, by largest remainder, never more than a cluster
    has."""
    total, whole = min(total, sum(sizes)), max(sum(sizes), 1)
    shares = [total * size / whole for size in sizes]
    quotas = [int(share) for share in shares]
    by_remainder = sorted(range(len(sizes)), key=lambda i: (quotas[i] - shares[i], i))
    for i in by_remainder[: total - sum(quotas)]:
        quotas[i] += 1
    return quotas


def diverse(vectors: Tensor, count: int, clusters: int) -> list[list[int]]:
    """Indices of `vectors` [n, D] by K-means cluster, nearest to the centroid first, with how many
    to take of each.

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
        # Two points are equally near.
        [q, *(int(i) for i in m[np.argsort(distance[m].round(9), kind="stable")])]
        for q, m in zip(quotas, members, strict=True)
    ]


def take(
    ranked: Sequence[Sequence[int]], answer: Callable[[Sequence[int]], Sequence[str]]
) -> dict[int, str]:
    """From each cluster of `diverse` its quota of members with an answer; one without gives way to
    the next nearest."""
    chosen: dict[int, str] = {}
    waiting = [(quota, list(members)) for quota, *members in ranked]
    while wanted := [i for quota, members in waiting for i in members[:quota]]:
        answers = dict(zip(wanted, answer(wanted), strict=True))
        chosen |= {i: text for i, text in answers.items() if text}
        waiting = [
            (sum(1 for i in members[:quota] if not answers[i]), members[quota:])
            for quota, members in waiting
        ]
    return chosen


def answer(learner: Learner, examples: Sequence[Example], limit: int) -> list[str]:
    """The model's greedy answers, at most `limit` tokens; empty where there is none that could be
    trained on."""
    texts = decode(learner.backbone, learner.encoder, examples, limit)
    rows = [
        dataclasses.replace(example, output=text)
        for example, text in zip(examples, texts, strict=True)
    ]
    return [row.output if _fits(learner, row) else "" for row in rows]


def select(
    learner: Learner,
    task: Task,
    written: Sequence[Example],
    clusters: int,
    encoder: str | None,
    limit: int,
) -> list[Example]:
    """A diverse choice of written rows, as many as memory keeps, answered by the model as it is
    now.

    Args:
        encoder: of sentences; None is the backbone. limit: tokens of an answer.
    """
    if not written:
        return []
    count = learner.memory.quota(len(task.train))
    vectors = embed(learner.backbone, [example.input for example in written], encoder)
    ranked = diverse(vectors, count, min(clusters, count))
    answers = take(ranked, lambda indices: answer(learner, [written[i] for i in indices], limit))
    return [dataclasses.replace(written[i], output=text) for i, text in sorted(answers.items())]


def _fits(learner: Learner, row: Example) -> bool:
    """Whether instruction and answer leave room for anything: the model's answers may be longer
    than real ones."""
    try:
        learner.encoder.encode(row)
    except InputError:
        return False
    return True
