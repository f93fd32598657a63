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

import dataclasses

from torch import nn

from forever.config.methods.replay import SsrConfig
from forever.config.run import RunConfig
from forever.data.tasks import Example, Task
from forever.methods.ssr.encoders import load_encoder
from forever.methods.ssr.selection import select
from forever.methods.ssr.synthesis import candidates, icl_prompts
from forever.text import complain
from forever.training.learner import Learner
from forever.training.method import Card, EndWork, Method
from forever.training.past import Past
from forever.training.steps import Step, Steps


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
        written = self.state.get("rows", {}).get(task.name, [])
        return [Example(**fields) for fields in written]

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
        # The leader decides, because floats of ranks are only nearly equal.
        examples = learner.world.gather([dataclasses.asdict(example) for example in chosen])[0]
        self.state.setdefault("rows", {})[task.name] = examples
        if not examples and learner.world.leads:
            problem = f"no example that the model wrote for {task.name} can be used"
            complain(f"ssr: {problem}, so it is not rehearsed")
        learner.log_task(candidates=float(len(written)), written=float(len(examples)))

    def can_follow(self, past: Past, tasks: int) -> str | None:
        # Nothing is written after the last task of a run.
        if past.config.name == "ssr" and past.task not in past.state.get("rows", {}):
            return (
                f"ssr wrote nothing of {past.task}, the last task of {past.run}, and a fork could "
                "never rehearse it; fork at an earlier task"
            )
        return super().can_follow(past, tasks)
