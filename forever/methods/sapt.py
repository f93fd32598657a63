"""SAPT: a shared attention framework for continual learning of LLMs (Zhao et al. 2024, ACL).

In the LoRA form every task has an adapter and a key. A query computed from the prompt attends over
all keys and so mixes the adapters, in training and at test. On prompts of old tasks the attention
is held where it was when they were learned:

    y = W x + s * sum_i a_i B_i A_i x,   a = softmax(k_i . q(prompt) / sqrt(D))
    L = CE + lambda * sum_{i<t} mean over prompts of task i of KL([abar_i, 0, ..., 0] || a)

Followed from circle-hit/SAPT (src/llama_prompt.py, src/cl_trainer.py):
- the query network, the keys, and the direction of the KL term.

Not followed:
- attention that pads take part in;
- one update for each old task, where ours is one term of the loss;
- a development set: abar_i is a mean over training prompts;
- no gradient through old adapters, which is `detach_frozen` here, and their dropout;
- prompts written by a generator: the kept examples' prompts are used.

B prompts, D model width, H bottleneck, t tasks so far.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Size, Tensor, nn, no_grad

from forever.config.methods.ours import SaptConfig
from forever.config.run import RunConfig
from forever.data.encoding import Encoded
from forever.data.tasks import Task
from forever.models import lora
from forever.seeding import derive
from forever.training.learner import Learner
from forever.training.method import Card, Method
from forever.training.steps import Forward


class Selector(nn.Module):
    """q = LayerNorm(SiLU(W_up W_down u)) of D = `width` and H = `hidden`, and the current key."""

    def __init__(self, width: int, hidden: int, seed: int) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(derive(seed, "query"))
        self.down = _uniform((hidden, width), 1 / math.sqrt(width), stream)
        self.up = _uniform((width, hidden), 1 / math.sqrt(hidden), stream)
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.key = nn.Parameter(torch.zeros(1, width))
        self.draw_key(seed, 0)
        self._pooled: dict[tuple[int, ...], Tensor] = {}

    @torch.no_grad()
    def draw_key(self, seed: int, stage: int) -> None:
        """Draw a new key, uniform in [-1, 1], for the task of a stage."""
        stream = torch.Generator().manual_seed(derive(seed, "key", stage))
        self.key.copy_(torch.empty(self.key.shape).uniform_(-1, 1, generator=stream))

    def all_keys(self, frozen: Tensor | None) -> Tensor:
        """Return the keys of the finished tasks and of the current one, [t, D], oldest first."""
        return self.key.clone() if frozen is None else torch.cat([frozen, self.key])

    def pooled(self, embedding: nn.Embedding, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Return u [B, D], the largest value of each coordinate over a prompt's word embeddings.

        The embedding is frozen, so each prompt is pooled once and kept off the accelerator.
        """
        weight = embedding.weight.detach()
        for prompt in prompts:
            if prompt not in self._pooled:
                words = weight[torch.tensor(prompt, device=weight.device)]
                self._pooled[prompt] = words.float().amax(0).cpu()
        return torch.stack([self._pooled[prompt] for prompt in prompts]).to(weight.device)

    def log_attention(self, words: Tensor, frozen: Tensor | None) -> Tensor:
        """Return log a = log softmax(k_i . q / sqrt(D)), [B, t], of u = `words` over all keys."""
        hidden = F.silu(words @ self.down.T @ self.up.T)
        query = F.layer_norm(hidden, self.scale.shape, self.scale, self.shift)
        return (query @ self.all_keys(frozen).T / math.sqrt(words.shape[1])).log_softmax(-1)


def _uniform(shape: tuple[int, int], bound: float, stream: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=stream))


def divergence(target: Tensor, log_attention: Tensor) -> Tensor:
    """Return the mean over prompts of KL([target, 0, ..., 0] || a), with 0 log 0 = 0.

    The target has at most t weights, and log a is [B, t].
    """
    log_a = log_attention[:, : len(target)]
    return (torch.xlogy(target, target) - target * log_a).sum(-1).mean()


class Sapt(Method[SaptConfig]):
    """Attention of each prompt over the adapters of all tasks."""

    card = Card(
        title="SAPT",
        paper="Zhao et al. 2024",
        memory="prompts",
        extra="Each layer has a frozen branch of rank (t-1) r, and a prompt attends over t keys; "
        "the model never passes over the memory.",
        uncertain="FOREVER may have used written prompts; the target of the KL term is the code's.",
    )
    selector: Selector | None = None

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        lora.adapt(model, config.model, config.seed)
        for _, bank in lora.banks(model):
            bank.detach_frozen = self.config.detach_frozen
        embedding = model.get_input_embeddings().weight  # type: ignore[operator]
        selector = Selector(embedding.shape[1], self.config.hidden, config.seed)
        self.selector = selector.to(embedding.device)
        model.add_module("selector", self.selector)

    def begin_task(self, learner: Learner, task: Task) -> None:
        if self.selector and learner.stage:
            lora.freeze(learner.backbone.model, learner.config.seed)
            self.tensors["keys"] = self.selector.all_keys(self.tensors.get("keys")).detach()
            self.selector.draw_key(learner.config.seed, learner.stage)

    def attention(self, learner: Learner, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Return log a, [B, t], for prompts given as token ids."""
        assert self.selector is not None
        words = self.selector.pooled(learner.backbone.model.get_input_embeddings(), prompts)
        return self.selector.log_attention(words, self.tensors.get("keys"))

    def gate(self, learner: Learner, examples: Sequence[Encoded]) -> Tensor:
        return self.attention(learner, [example.prompt for example in examples]).exp()

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        loss = forward.cross_entropy
        for i, (name, examples) in enumerate(learner.memory.kept.items()):
            if not examples:
                continue
            batch = learner.batch_at(learner.updates, examples, "attention", name)
            prompts = [learner.encoder.encode_prompt(example).prompt for example in batch.examples]
            drift = divergence(self.tensors["targets"][i], self.attention(learner, prompts))
            loss = loss + forward.share * self.config.memory_weight * drift
        return loss

    @no_grad()
    def end_task(self, learner: Learner, task: Task) -> None:
        # Row i is abar_i, the target of task i's prompts from now on; it is zero for newer tasks.
        total = learner.parameters.flat.new_zeros(learner.stage + 1)
        for example in learner.world.share(task.train):
            prompt = learner.encoder.encode_prompt(example).prompt
            total += self.attention(learner, [prompt]).exp()[0]
        old = self.tensors.get("targets", total.new_zeros(0, 0))
        targets = total.new_zeros(learner.stage + 1, learner.stage + 1)
        targets[: len(old), : len(old)] = old
        targets[-1] = learner.world.sum_(total) / len(task.train)
        self.tensors["targets"] = targets

    def carried(self, learner: Learner, stage: int, trained: bool) -> dict[str, Size]:
        width = learner.backbone.model.get_input_embeddings().weight.shape[1]
        done = stage + trained
        return {"keys": Size((stage, width)), "targets": Size((done, done))}

    def save(self, learner: Learner, folder: Path) -> Path:
        model, name = learner.backbone.model, learner.config.model.name
        lora.save_mixture(model, folder / "adapter", name, self.tensors)
        return folder / "adapter"
