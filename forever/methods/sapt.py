"""SAPT: a shared attention framework for parameter-efficient continual learning of LLMs (Zhao et al. 2024, ACL).

In its LoRA form: one adapter and one key a task. A query computed from the prompt attends over all keys and so mixes
the adapters, in training and at test; on prompts of old tasks it is held where it was when they were learned:

    y = W x + s * sum_i a_i B_i A_i x,   a = softmax(k_i . q(prompt) / sqrt(D))
    L = CE + lambda * sum_{i<t} mean over prompts of task i of KL([abar_i, 0, ..., 0] || a)

Followed: circle-hit/SAPT: src/llama_prompt.py, src/cl_trainer.py. Not followed: attention over pads; an update per old
task; a development set (abar_i is a mean over training prompts); of old adapters no_grad (`detach_frozen`) and dropout.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from forever.costs import EndWork
from forever.data.tasks import Example, Task
from forever.learner import Learner
from forever.methods.base import Card, Method, MethodConfig, needs_lora
from forever.steps import Forward, Step, Steps
from forever.synthesis import check_writer, encode_writer, write_prompts, writer_steps, writer_work

if TYPE_CHECKING:
    from torch import Tensor, nn

    from forever.config import RunConfig
    from forever.data.encoding import Encoded
    from forever.models.selector import Selector


class SaptConfig(MethodConfig):
    """Sources: gen_script_*.py of the authors' code."""

    name: Literal["sapt"] = "sapt"
    memory_weight: Annotated[float, Field(ge=0)] = 1.0
    """lambda: 1 for LLaMA on SuperNI, 2 on the long sequence; 0.1 to 0.5 for T5."""
    hidden: Annotated[int, Field(ge=1)] = 100
    """Bottleneck of the query network."""
    memory_prompts: Literal["real", "pseudo"] = "real"
    """On which attention is held: those of the kept rows, or written by an adapter that learned them (the paper)."""
    generator_steps: Annotated[int, Field(ge=1)] = 5000
    """Updates of that adapter, at the run's batch size and rate; 5000 of 16 at 1e-3 for T5."""
    detach_frozen: bool = False
    """Cut gradients through old adapters, as the code does."""

    def check(self, run: "RunConfig") -> None:
        needs_lora(run)
        if self.memory_prompts == "pseudo":
            check_writer(run)


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
        self.writing = False  # whether the adapter that writes prompts is being trained

    def build(self, model: "nn.Module", config: "RunConfig", tasks: int) -> None:
        from forever.models import lora
        from forever.models.selector import Selector

        super().build(model, config, tasks)
        for _, bank in lora.banks(model):
            bank.detach_frozen = self.config.detach_frozen
        embedding = model.get_input_embeddings().weight  # type: ignore[operator]
        self.selector = Selector(embedding.shape[1], self.config.hidden, config.seed).to(embedding.device)
        model.add_module("selector", self.selector)

    def begin_task(self, learner: Learner, task: Task) -> None:
        from forever.models import lora

        if self.selector and learner.stage:
            lora.freeze(learner.backbone.model, learner.config.seed)
            self.tensors["keys"] = self.selector.all_keys(self.tensors.get("keys")).detach()
            self.selector.draw_key(learner.config.seed, learner.stage)

    def steps(self, learner: Learner, task: Task) -> Steps:
        yield from super().steps(learner, task)
        if self.config.memory_prompts == "pseudo" and not learner.last:  # of the last task nobody needs prompts
            self.tensors["trained"], self.writing = learner.parameters.snapshot(), True  # put back at the end
            yield from writer_steps(learner, task, self.config.generator_steps)

    def rows(self, learner: Learner, step: Step) -> "list[tuple[Encoded, ...]]":
        if step.kind == "generator":
            return [(encode_writer(learner, example),) for example in step.batch.examples]
        return super().rows(learner, step)

    def attention(self, learner: Learner, prompts: "Sequence[tuple[int, ...]]") -> "Tensor":
        """log a, [B, t], for prompts given as token ids."""
        assert self.selector is not None
        words = self.selector.pooled(learner.backbone.model.get_input_embeddings(), prompts)
        return self.selector.log_attention(words, self.tensors.get("keys"))

    def gate(self, learner: Learner, rows: "Sequence[Encoded]") -> "Tensor":
        if self.writing:  # the new adapter alone
            return learner.parameters.flat.new_tensor([0.0] * learner.stage + [1.0])
        return self.attention(learner, [row.prompt for row in rows]).exp()

    def loss(self, learner: Learner, forward: Forward) -> "Tensor":
        from forever.models.selector import divergence

        loss = forward.cross_entropy
        for i, name in enumerate(() if self.writing else learner.memory.kept):
            if rows := self.prompts(learner, name):
                batch = learner.batch_at(learner.updates, rows, "attention", name)
                prompts = [learner.encoder.encode_prompt(example).prompt for example in batch.examples]
                kl = divergence(self.tensors["targets"][i], self.attention(learner, prompts))
                loss = loss + forward.share * self.config.memory_weight * kl
        return loss

    def prompts(self, learner: Learner, name: str) -> Sequence[Example]:
        """The prompts of a finished task on which attention is held."""
        written = self.state.get("prompts")
        return [Example(**row) for row in written[name]] if written else learner.memory.kept[name]

    def end_task(self, learner: Learner, task: Task) -> None:
        if self.writing:
            self.state.setdefault("prompts", {})[task.name] = write_prompts(learner, task, self.gate)
            learner.parameters.load(self.tensors.pop("trained"))
            self.writing = False
        mean = self.mean_attention(learner, task)  # abar, the target from now on; zero for tasks newer than row i
        old = self.tensors.get("targets", mean.new_zeros(0, 0))
        self.tensors["targets"] = targets = mean.new_zeros(learner.stage + 1, learner.stage + 1)
        targets[: len(old), : len(old)], targets[-1] = old, mean

    def end_work(self, learner: Learner, task: Task) -> EndWork:
        return EndWork() if self.config.memory_prompts == "real" or learner.last else writer_work(learner, task)

    def mean_attention(self, learner: Learner, task: Task) -> "Tensor":
        """The mean of a over the task's training prompts, [t]."""
        from torch import no_grad

        total = learner.parameters.flat.new_zeros(learner.stage + 1)
        with no_grad():
            for example in learner.world.share(task.train):
                total += self.attention(learner, [learner.encoder.encode_prompt(example).prompt]).exp()[0]
        return learner.world.sum_(total) / len(task.train)
