"""Examples that a language model writes (SSR).

What it continues, what is read out of that, and which of it is kept.
"""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import NamedTuple

from torch import Tensor

from forever.data.tasks import Example, Task
from forever.errors import InputError
from forever.evaluation import decoding
from forever.evaluation.decoding import Sampling, decode
from forever.methods.ssr.encoders import embed
from forever.training.learner import Learner


def icl_prompts(demos: Sequence[Example]) -> list[tuple[str, str]]:
    """Make a prompt for every ordered pair of `demos`: two worked examples, then an open input.

    Returns:
        For each prompt its instruction, which is the first example's, and its text. A single demo
        makes a prompt alone.
    """
    prompts: list[tuple[str, str]] = []
    for pair in list(permutations(demos, 2)) or [(demo,) for demo in demos]:
        instruction = pair[0].instruction
        text = f"{instruction.strip()}\n\n"
        for demo in pair:
            text += f"Input: {demo.input.strip()}\nOutput: {demo.output.strip()}\n\n"
        prompts.append((instruction, text + "Input:"))
    return prompts


def continuations(
    learner: Learner,
    prompts: Sequence[str],
    seeds: Sequence[int],
    sampling: Sampling,
    max_tokens: int,
) -> list[str]:
    """Sample a continuation of each of `prompts`, in order, on all ranks together.

    Each prompt has its own seed, and at most `max_tokens` with its continuation.
    """

    def write(share: list[int]) -> list[str]:
        encoded = [learner.encoder.encode_text(prompts[i], max_tokens) for i in share]
        limits = [max(1, max_tokens - len(example.prompt)) for example in encoded]
        drawn = [seeds[i] for i in share]
        return decoding.sample(learner.backbone, encoded, drawn, limits, sampling)

    return learner.world.spread(range(len(prompts)), write)


def parse_icl(continuation: str) -> list[tuple[str, str]]:
    """Read (input, output) from each piece with text on both sides of a single "Output:"."""
    pairs: list[tuple[str, str]] = []
    for piece in continuation.split("Input:"):
        parts = [part.strip() for part in piece.split("Output:")]
        if len(parts) == 2 and all(parts):
            pairs.append((parts[0], parts[1]))
    return pairs


def cluster_quotas(sizes: Sequence[int], total: int) -> list[int]:
    """Share `total` out in proportion to `sizes` and within them, by largest remainder."""
    total = min(total, sum(sizes))
    shares = [total * size / max(sum(sizes), 1) for size in sizes]
    quotas = [int(share) for share in shares]
    by_remainder = sorted(range(len(sizes)), key=lambda i: (quotas[i] - shares[i], i))
    for i in by_remainder[: total - sum(quotas)]:
        quotas[i] += 1
    return quotas


class Cluster(NamedTuple):
    """Indices of similar texts, those nearest to the centroid first, and how many to take."""

    quota: int
    members: list[int]


def diverse(vectors: Tensor, count: int, clusters: int) -> list[Cluster]:
    """Cluster `vectors` [n, D] by K-means and share `count` out over at most `clusters`."""
    import numpy as np
    from sklearn.cluster import KMeans

    points = vectors.double().cpu().numpy()
    points = points / np.linalg.norm(points, axis=1, keepdims=True).clip(1e-12)
    distinct = len(np.unique(points.round(9), axis=0))
    means = KMeans(n_clusters=min(clusters, distinct), random_state=0, n_init="auto").fit(points)
    distance = np.linalg.norm(points - means.cluster_centers_[means.labels_], axis=1)
    groups = [np.flatnonzero(means.labels_ == label) for label in range(means.n_clusters)]
    quotas = cluster_quotas([len(group) for group in groups], count)
    chosen: list[Cluster] = []
    for quota, group in zip(quotas, groups, strict=True):
        # Rounding must not decide between two points that are equally near.
        order = np.argsort(distance[group].round(9), kind="stable")
        chosen.append(Cluster(quota, group[order].tolist()))
    return chosen


def take(
    clusters: Sequence[Cluster], answer: Callable[[Sequence[int]], Sequence[str]]
) -> dict[int, str]:
    """Take each cluster's quota; a member without an answer gives way to the next nearest."""
    chosen: dict[int, str] = {}
    waiting = list(clusters)
    while wanted := [i for cluster in waiting for i in cluster.members[: cluster.quota]]:
        answers = dict(zip(wanted, answer(wanted), strict=True))
        chosen |= {i: text for i, text in answers.items() if text}
        for place, (quota, members) in enumerate(waiting):
            missing = sum(not answers[i] for i in members[:quota])
            waiting[place] = Cluster(missing, members[quota:])
    return chosen


def answer(learner: Learner, examples: Sequence[Example], limit: int) -> list[str]:
    """Return the model's greedy answers of at most `limit` tokens; "" cannot be trained on."""
    texts = decode(learner.backbone, learner.encoder, examples, limit)
    for place, (example, text) in enumerate(zip(examples, texts, strict=True)):
        try:
            learner.encoder.encode(dataclasses.replace(example, output=text))
        except InputError:  # instruction and answer leave no room for anything
            texts[place] = ""
    return texts


def select(
    learner: Learner,
    task: Task,
    written: Sequence[Example],
    clusters: int,
    encoder: str | None,
    limit: int,
) -> list[Example]:
    """Choose as many written examples as memory keeps, diverse and answered by the model as it is.

    K-means makes at most so many `clusters`; an answer has at most `limit` tokens.
    """
    if not written:
        return []
    count = learner.memory.quota(len(task.train))
    vectors = embed(learner.backbone, [example.input for example in written], encoder)
    ranked = diverse(vectors, count, min(clusters, count))
    answers = take(ranked, lambda indices: answer(learner, [written[i] for i in indices], limit))
    return [dataclasses.replace(written[i], output=text) for i, text in sorted(answers.items())]
