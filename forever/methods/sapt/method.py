"""SAPT: a shared attention framework for parameter-efficient continual learning of LLMs (Zhao et
al. 2024, ACL).

In its LoRA form: one adapter and one key a task. A query computed from the prompt attends over all
keys and so mixes the adapters, in training and at test; on prompts of old tasks it is held where it
was when they were learned:

    y = W x + s * sum_i a_i B_i A_i x,   a = softmax(k_i . q(prompt) / sqrt(D))
    L = CE + lambda * sum_{i<t} mean over prompts of task i of KL([abar_i, 0, ..., 0] || a)

Followed: circle-hit/SAPT: src/llama_prompt.py, src/cl_trainer.py. Not followed: attention over
pads; an update per old task; a development set (abar_i is a mean over training prompts); of old
adapters no_grad (`detach_frozen`) and dropout.
"""

from collections.abc import Sequence

from torch import Tensor, nn, no_grad

from forever.config.methods.baselines import SaptConfig
from forever.config.run import RunConfig
from forever.data.encoding import Encoded
from forever.data.tasks import Task
from forever.methods.base import Card, Method
from forever.methods.sapt.selector import Selector, divergence
from forever.models import lora
from forever.training.learner import Learner
from forever.training.steps import Forward


class Sapt(Method[SaptConfig]):
    """Prompt-level attention over one adapter a task."""

    card = Card(
        title="SAPT",
        paper="Zhao et al. 2024",
        memory="prompts",
        extra="a frozen branch of rank (t-1) r; attention over t keys; no pass of the model on memory",
        uncertain="real or written prompts in FOREVER's row; the target of the KL term follows the code",
    )
    mixed = True

    def __init__(self, config: SaptConfig) -> None:
        super().__init__(config)
        self.selector: Selector | None = None

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        lora.adapt(model, config.model, config.seed)
        for _, bank in lora.banks(model):
            bank.detach_frozen = self.config.detach_frozen
        embedding = model.get_input_embeddings().weight  # type: ignore[operator]
        self.selector = Selector(embedding.shape[1], self.config.hidden, config.seed).to(
            embedding.device
        )
        model.add_module("selector", self.selector)

    def begin_task(self, learner: Learner, task: Task) -> None:
        if self.selector and learner.stage:
            lora.freeze(learner.backbone.model, learner.config.seed)
            self.tensors["keys"] = self.selector.all_keys(self.tensors.get("keys")).detach()
            self.selector.draw_key(learner.config.seed, learner.stage)

    def attention(self, learner: Learner, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """log a, [B, t], for prompts given as token ids."""
        assert self.selector is not None
        words = self.selector.pooled(learner.backbone.model.get_input_embeddings(), prompts)
        return self.selector.log_attention(words, self.tensors.get("keys"))

    def gate(self, learner: Learner, rows: Sequence[Encoded]) -> Tensor:
        return self.attention(learner, [row.prompt for row in rows]).exp()

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        loss = forward.cross_entropy
        for i, (name, examples) in enumerate(learner.memory.kept.items()):
            batch = learner.batch_at(learner.updates, examples, "attention", name)
            prompts = [learner.encoder.encode_prompt(example).prompt for example in batch.examples]
            kl = divergence(self.tensors["targets"][i], self.attention(learner, prompts))
            loss = loss + forward.share * self.config.memory_weight * kl
        return loss

    def end_task(self, learner: Learner, task: Task) -> None:
        # Abar, the target from now on; zero for tasks newer than row i.
        mean = self.mean_attention(learner, task)
        old = self.tensors.get("targets", mean.new_zeros(0, 0))
        self.tensors["targets"] = targets = mean.new_zeros(learner.stage + 1, learner.stage + 1)
        targets[: len(old), : len(old)], targets[-1] = old, mean

    def mean_attention(self, learner: Learner, task: Task) -> Tensor:
        """The mean of a over the task's training prompts, [t]."""
        total = learner.parameters.flat.new_zeros(learner.stage + 1)
        with no_grad():
            for example in learner.world.share(task.train):
                total += self.attention(
                    learner, [learner.encoder.encode_prompt(example).prompt]
                ).exp()[0]
        return learner.world.sum_(total) / len(task.train)
