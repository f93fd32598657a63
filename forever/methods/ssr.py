"""SSR: self-synthesised rehearsal (Huang et al. 2024, ACL).

The model rehearses examples that it wrote itself instead of kept ones. The base model makes up
inputs from pairs of examples, K-means keeps a diverse few, and the model that has just learned the
task answers them. Training is MixReplay's.

Followed from DeepLearnXMU/SSR (custom/icl_gen, custom/niv2-c012):
- the prompt of two examples, sampling, filters and clusters;
- a task's examples are answered once, right after it was learned.

Not followed:
- an answer prompt with an unrelated instruction;
- cluster quotas that miss their sum;
- a filter that wants two tokens of an output that is thrown away, which no one-word label passes;
- inputs of over 510 encoder tokens are cut instead of dropped.

Ours: copies of training inputs and duplicates are dropped, and the backbone is the default encoder.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from forever.config.methods.ours import SsrConfig
from forever.config.run import RunConfig
from forever.data.encoding import Encoded
from forever.data.tasks import Example, Task
from forever.errors import InputError
from forever.evaluation import decoding
from forever.evaluation.decoding import Sampling, decode
from forever.methods.sentence_encoders import embed, load_encoder
from forever.models import lora
from forever.seeding import derive
from forever.text import complain
from forever.training.learner import Learner
from forever.training.method import Card, EndWork, Method
from forever.training.steps import Step, Steps

# Every input of the Long Sequence benchmark ends so; the written inputs would, too.
_SUFFIX = "\nAnswer:"
# Candidates for each example that is kept. Few pairs are drawn again until there are enough.
_CANDIDATES = 5
_FIELDS = ("id", "instruction", "input", "output")  # of a written example
_TRIES = 60


def icl_prompts(demos: Sequence[Example]) -> list[tuple[str, str]]:
    """Make a prompt for every ordered pair of `demos`: two worked examples, then an open input.

    Each has its instruction, which is the first example's, and its text. A single demo makes a
    prompt alone.
    """
    prompts: list[tuple[str, str]] = []
    for pair in list(permutations(demos, 2)) or [tuple(demos)]:
        instruction = pair[0].instruction
        text = f"{instruction.strip()}\n\n"
        for demo in pair:
            text += f"Input: {demo.input.strip()}\nOutput: {demo.output.strip()}\n\n"
        prompts.append((instruction, text + "Input:"))
    return prompts


def continuations(
    learner: Learner, prompts: Sequence[tuple[str, int]], config: SsrConfig
) -> list[str]:
    """Sample a continuation of each text by its own seed, in order, on all ranks together."""
    how = Sampling(config.temperature, config.top_p, 0, config.repetition_penalty)
    positions = learner.encoder.limits.positions  # that the model has learned, if it has
    room = min(config.max_tokens, positions or config.max_tokens)

    def write(share: list[tuple[str, int]]) -> list[str]:
        encoded: list[Encoded] = []
        seeds: list[int] = []
        limits: list[int] = []
        for text, seed in share:
            encoded.append(learner.encoder.encode_text(text, room))
            seeds.append(seed)
            limits.append(max(1, room - len(encoded[-1].prompt)))
        return decoding.sample(learner.backbone, encoded, seeds, limits, how)

    return learner.world.spread(prompts, write)


def parse_icl(continuation: str) -> list[tuple[str, str]]:
    """Read (input, output) from each piece with text on both sides of a single "Output:"."""
    pairs: list[tuple[str, str]] = []
    for piece in continuation.split("Input:"):
        parts = [part.strip() for part in piece.split("Output:")]
        if len(parts) == 2 and all(parts):
            pairs.append((parts[0], parts[1]))
    return pairs


def candidates(learner: Learner, task: Task, config: SsrConfig) -> list[Example]:
    """Let the base model make up inputs, parse and filter them; their outputs are left out."""
    demos = learner.memory.choose(task, config.demos)
    suffix = _SUFFIX if all(demo.input.endswith(_SUFFIX) for demo in demos) else ""
    demos = [replace(demo, input=demo.input.removesuffix(suffix)) for demo in demos]
    prompts = icl_prompts(demos)
    wanted = _CANDIDATES * learner.memory.quota(len(task.train))
    seen = {example.input.removesuffix(suffix).strip() for example in task.train}
    written: list[Example] = []
    for turn in range(max(config.samples, _TRIES // len(prompts))):
        if turn >= config.samples and len(written) >= wanted:
            break
        seeded: list[tuple[str, int]] = []
        for i, (_, text) in enumerate(prompts):
            seeded.append((text, derive(learner.config.seed, "ssr", task.name, i, turn)))
        with lora.disabled(learner.backbone.model):
            texts = continuations(learner, seeded, config)
        for (instruction, _), text in zip(prompts, texts, strict=True):
            for body, output in parse_icl(text):
                if body not in seen and _fits(learner, config, instruction, body, output):
                    seen.add(body)
                    name = f"{task.name}/written/{len(written)}"
                    written.append(Example(name, instruction, body + suffix, ""))
    return written


def _fits(learner: Learner, config: SsrConfig, definition: str, body: str, output: str) -> bool:
    """Tell whether a written example passes the filters on length, in tokens."""
    count = learner.encoder.count
    if count(f"{definition} {body}") > config.max_prompt or count(output) > config.max_output:
        return False
    return 1 < count(body) <= config.max_input


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


class Ssr(Method[SsrConfig]):
    """MixReplay on a memory that the model wrote itself."""

    card = Card(
        title="SSR",
        paper="Huang et al. 2024",
        memory="written examples",
        extra="At the end of a task, each ordered pair of examples is continued three times; the "
        "steps are MixReplay's.",
        uncertain="The encoder, and how many examples are kept: 10 % in the paper, 2 % here as for "
        "all methods.",
    )

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        super().build(model, config, tasks)
        if self.config.encoder is not None:
            # A bad name must fail now, not after the first task.
            load_encoder(self.config.encoder, next(model.parameters()).device)

    def steps(self, learner: Learner, task: Task) -> Steps:
        for batch in learner.mixed_batches(task):
            yield Step(batch)

    def remember(self, learner: Learner, task: Task) -> list[Example]:
        rows = self.state.get("rows", {})
        if task.name not in rows and not learner.last and learner.world.leads:
            # A fork begins after the last task of its run, or in a run of another method.
            complain(f"ssr: nothing was written of {task.name}, so it is not rehearsed")
        return [Example(**fields) for fields in rows.get(task.name, [])]

    def end_work(self, learner: Learner, task: Task) -> EndWork:
        if learner.last:
            return EndWork()
        # Every prompt is continued up to its limit; beside that the answers are few.
        limit, texts = self.config.max_tokens, list[tuple[int, int]]()
        for _, text in icl_prompts(learner.memory.choose(task, self.config.demos)):
            prompt = len(learner.encoder.encode_text(text, limit).prompt)
            texts.append((prompt, max(1, limit - prompt)))
        return EndWork(texts=texts, turns=self.config.samples)

    def end_task(self, learner: Learner, task: Task) -> None:
        if learner.last:
            return  # no later task would rehearse them
        written = candidates(learner, task, self.config)
        learner.examples["written"] += len(written)
        chosen = select(learner, task, written, self.config)
        rows = [{name: getattr(example, name) for name in _FIELDS} for example in chosen]
        # The leader decides, because floats of ranks are only nearly equal.
        examples = learner.world.gather(rows)[0]
        self.state.setdefault("rows", {})[task.name] = examples
        if not examples and learner.world.leads:
            problem = f"no example that the model wrote for {task.name} can be used"
            complain(f"ssr: {problem}, so it is not rehearsed")
        learner.log_task(candidates=float(len(written)), written=float(len(examples)))
