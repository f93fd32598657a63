"""Which of many written examples are kept (SSR): a diverse few, answered by the model as it is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from forever.config.methods.replay import SsrConfig
from forever.data.tasks import Example, Task
from forever.errors import InputError
from forever.evaluation.decoding import decode
from forever.methods.ssr.encoders import embed
from forever.training.learner import Learner


def select(
    learner: Learner, task: Task, written: Sequence[Example], config: SsrConfig
) -> list[Example]:
    """Choose as many written examples as memory keeps of a task."""
    if not written:
        return []
    count = learner.memory.quota(len(task.train))
    vectors = embed(learner.backbone, [example.input for example in written], config.encoder)
    clusters = diverse(vectors, count, min(config.clusters, count))
    limit = min(learner.config.evaluation.max_new_tokens, config.max_output)
    answers = take(
        clusters, lambda indices: _answers(learner, [written[i] for i in indices], limit)
    )
    return [replace(written[i], output=text) for i, text in sorted(answers.items())]


class Cluster(NamedTuple):
    """Indices of similar texts, those nearest to the centroid first, and how many to take."""

    quota: int
    members: list[int]


def diverse(vectors: Tensor, count: int, clusters: int) -> list[Cluster]:
    """Cluster `vectors` [n, D] by K-means and share `count` out over at most `clusters`."""
    from sklearn.cluster import KMeans

    points = vectors.double().cpu().numpy()
    points = points / np.linalg.norm(points, axis=1, keepdims=True).clip(1e-12)
    distinct = len(np.unique(points.round(9), axis=0))
    means = KMeans(n_clusters=min(clusters, distinct), random_state=0, n_init="auto").fit(points)
    distance = np.linalg.norm(points - means.cluster_centers_[means.labels_], axis=1)
    # Rounding must not decide between two points that are equally near.
    nearest = np.argsort(distance.round(9), kind="stable")
    labels = np.asarray(means.labels_)[nearest]
    groups: list[list[int]] = []
    for label in range(means.n_clusters):
        groups.append(nearest[labels == label].tolist())
    return list(map(Cluster, cluster_quotas(list(map(len, groups)), count), groups))


def cluster_quotas(sizes: Sequence[int], total: int) -> list[int]:
    """Share `total` out in proportion to `sizes` and within them, by largest remainder."""
    total = min(total, sum(sizes))
    shares = total * np.array(sizes) / sum(sizes)
    quotas = shares.astype(int)
    by_remainder = np.argsort(quotas - shares, kind="stable")
    quotas[by_remainder[: total - quotas.sum()]] += 1
    return quotas.tolist()


def take(
    clusters: Sequence[Cluster], answers_to: Callable[[Sequence[int]], Sequence[str]]
) -> dict[int, str]:
    """Take each cluster's quota; a member without an answer gives way to the next nearest."""
    taken: dict[int, str] = {}
    waiting = list(clusters)
    while wanted := [i for cluster in waiting for i in cluster.members[: cluster.quota]]:
        answers = dict(zip(wanted, answers_to(wanted), strict=True))
        for i, text in answers.items():
            if text:
                taken[i] = text
        for place, (quota, members) in enumerate(waiting):
            missing = sum(not answers[i] for i in members[:quota])
            waiting[place] = Cluster(missing, members[quota:])
    return taken


def _answers(learner: Learner, examples: Sequence[Example], limit: int) -> list[str]:
    """Answer greedily by at most `limit` tokens; "" is an answer that cannot be trained on."""
    texts = decode(learner.backbone, learner.encoder, examples, limit)
    for place, (example, text) in enumerate(zip(examples, texts, strict=True)):
        try:
            learner.encoder.encode(replace(example, output=text))
        except InputError:  # instruction and answer leave no room for anything
            texts[place] = ""
    return texts
