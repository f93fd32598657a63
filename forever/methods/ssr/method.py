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
from sys import stderr

from torch import nn

from forever.config.methods.replay import SsrConfig
from forever.config.run import RunConfig
from forever.data.tasks import Example, Task
from forever.evaluation.decoding import Sampling
from forever.methods.base import Card, Method
from forever.methods.ssr.encoders import load_encoder
from forever.methods.ssr.synthesis import continuations, icl_prompts, parse_icl, select
from forever.models import lora
from forever.runs.past import Past
from forever.seeding import derive
from forever.training.learner import Learner
from forever.training.steps import Step, Steps

# Every input of the Long Sequence benchmark ends so; the written inputs would, too.
_SUFFIX = "\nAnswer:"
# Candidates for each example that is kept. Few pairs are drawn again until there are enough.
_CANDIDATES = 5
_TRIES = 60


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
        for batch in learner.batches(task.train + learner.memory.examples):
            yield Step(batch)

    def remember(self, learner: Learner, task: Task) -> list[Example]:
        written = self.state.get("rows", {}).get(task.name, [])
        return [Example(**fields) for fields in written]

    def end_task(self, learner: Learner, task: Task) -> None:
        if learner.last:
            return  # no later task would rehearse them
        c = self.config
        written = self.candidates(learner, task)
        chosen = select(learner, task, written, c.clusters, c.encoder, self.longest_answer(learner))
        # The leader decides, because floats of ranks are only nearly equal.
        examples = learner.world.gather([dataclasses.asdict(example) for example in chosen])[0]
        self.state.setdefault("rows", {})[task.name] = examples
        if not examples and learner.world.leads:
            problem = f"no example that the model wrote for {task.name} can be used"
            print(f"ssr: {problem}, so it is not rehearsed", file=stderr)
        learner.log_task(candidates=float(len(written)), written=float(len(examples)))

    def longest_answer(self, learner: Learner) -> int:
        """Return how many tokens the answer to a written example may have."""
        return min(learner.config.evaluation.max_new_tokens, self.config.max_output)

    def candidates(self, learner: Learner, task: Task) -> list[Example]:
        """Return inputs that the base model made up, parsed and filtered, without their outputs."""
        c, seed = self.config, learner.config.seed
        sampling = Sampling(c.temperature, c.top_p, 0, c.repetition_penalty)
        wanted = _CANDIDATES * learner.memory.quota(len(task.train))
        demos = learner.memory.choose(task, c.demos)
        suffix = _SUFFIX if all(demo.input.endswith(_SUFFIX) for demo in demos) else ""
        demos = [dataclasses.replace(demo, input=demo.input.removesuffix(suffix)) for demo in demos]
        instructions, prompts = zip(*icl_prompts(demos), strict=True)
        seen = {example.input.removesuffix(suffix).strip() for example in task.train}
        written: list[Example] = []
        with lora.disabled(learner.backbone.model):
            for turn in range(max(c.samples, _TRIES // len(prompts))):
                if turn >= c.samples and len(written) >= wanted:
                    break
                seeds = [derive(seed, "ssr", task.name, i, turn) for i in range(len(prompts))]
                texts = continuations(learner, prompts, seeds, sampling, c.max_tokens)
                for instruction, text in zip(instructions, texts, strict=True):
                    for body, output in parse_icl(text):
                        if body not in seen and self.fits(learner, instruction, body, output):
                            seen.add(body)
                            name = f"{task.name}/written/{len(written)}"
                            written.append(Example(name, instruction, body + suffix, ""))
        return written

    def fits(self, learner: Learner, definition: str, body: str, output: str) -> bool:
        """Tell whether a written example passes the filters on length, in tokens."""
        c, count = self.config, learner.encoder.count
        if count(f"{definition} {body}") > c.max_prompt or count(output) > c.max_output:
            return False
        return 1 < count(body) <= c.max_input

    def can_follow(self, past: Past, tasks: int) -> str | None:
        # Nothing is written after the last task of a run.
        if past.config.name == "ssr" and past.task not in past.state.get("rows", {}):
            return (
                f"ssr wrote nothing of {past.task}, the last task of {past.run}, and a fork could "
                "never rehearse it; fork at an earlier task"
            )
        return super().can_follow(past, tasks)
