"""SSR: self-synthesised rehearsal (Huang et al. 2024, ACL).

Instead of kept rows, rehearse rows that the model writes: the base model makes up inputs from pairs
of examples, K-means keeps a diverse few, and the model that has just learned the task answers them.
Training is MixReplay's.

Followed: DeepLearnXMU/SSR: custom/icl_gen, custom/niv2-c012; a task is labelled once, right after
it was learned. Not
followed: an answer prompt with an unrelated instruction; cluster quotas that miss their sum; a
filter that wants two tokens of an output that is thrown away (one-word labels would never pass);
dropping inputs of over 510 encoder tokens (they are cut). Ours: copies of training inputs and
duplicates are dropped; the default encoder.
"""

import dataclasses
from sys import stderr
from typing import Annotated

from pydantic import Field
from torch import nn

from forever.config.methods.replay import SsrConfig
from forever.config.run import RunConfig
from forever.data.tasks import Example, Task
from forever.evaluation.decoding import Sampling
from forever.methods.base import Card, Method
from forever.methods.past import Past
from forever.methods.ssr.encoders import load_encoder
from forever.methods.ssr.synthesis import continuations, icl_prompts, parse_icl, select
from forever.models import lora
from forever.seeding import derive
from forever.training.learner import Learner
from forever.training.steps import Step, Steps

Count = Annotated[int, Field(ge=1)]
# Ends every input of the Long Sequence benchmark; it would end the written ones, too.
_SUFFIX = "\nAnswer:"
# A row kept; for few examples the pairs are drawn again until there are so many, or after _TRIES.
_CANDIDATES = 5
_TRIES = 60


class Ssr(Method[SsrConfig]):
    """MixReplay on a memory that the model wrote itself."""

    card = Card(
        title="SSR",
        paper="Huang et al. 2024",
        memory="written rows",
        extra="three continuations for every ordered pair of examples, at the end of a task; steps as MixReplay",
        uncertain="rows kept: 10 % in the paper, 2 % here as for all; the encoder",
    )

    def build(self, model: nn.Module, config: RunConfig, tasks: int) -> None:
        super().build(model, config, tasks)
        if self.config.encoder is not None:
            # Fail now, not after the first task.
            load_encoder(self.config.encoder, next(model.parameters()).device)

    def steps(self, learner: Learner, task: Task) -> Steps:
        for batch in learner.batches(task.train + learner.memory.examples):
            yield Step(batch)

    def remember(self, learner: Learner, task: Task) -> list[Example]:
        return [Example(**row) for row in self.state.get("rows", {}).get(task.name, [])]

    def end_task(self, learner: Learner, task: Task) -> None:
        if learner.last:
            return  # nothing comes that could be mixed with them
        c, written = self.config, self.candidates(learner, task)
        chosen = select(learner, task, written, c.clusters, c.encoder, self.longest_answer(learner))
        # Floats of ranks are only nearly equal.
        rows = learner.world.gather([dataclasses.asdict(e) for e in chosen])[0]
        self.state.setdefault("rows", {})[task.name] = rows
        if not rows and learner.world.leads:
            print(
                f"ssr: no row that the model wrote for {task.name} can be used, so it is not rehearsed",
                file=stderr,
            )
        learner.log_task(candidates=float(len(written)), written=float(len(rows)))

    def longest_answer(self, learner: Learner) -> int:
        """Tokens of an answer to a written row, at most."""
        return min(learner.config.evaluation.max_new_tokens, self.config.max_output)

    def candidates(self, learner: Learner, task: Task) -> list[Example]:
        """Inputs that the base model made up, parsed and filtered; their outputs are not kept."""
        c, seed = self.config, learner.config.seed
        how = Sampling(c.temperature, c.top_p, 0, c.repetition_penalty)
        demos, wanted = (
            learner.memory.choose(task, c.demos),
            _CANDIDATES * learner.memory.quota(len(task.train)),
        )
        suffix = _SUFFIX if all(demo.input.endswith(_SUFFIX) for demo in demos) else ""
        demos = [dataclasses.replace(demo, input=demo.input.removesuffix(suffix)) for demo in demos]
        instructions, prompts = zip(*icl_prompts(demos), strict=True)
        seen = {example.input.removesuffix(suffix).strip() for example in task.train}
        found: list[Example] = []
        with lora.disabled(learner.backbone.model):
            for turn in range(max(c.samples, _TRIES // len(prompts))):
                if turn >= c.samples and len(found) >= wanted:
                    break
                seeds = [derive(seed, "ssr", task.name, i, turn) for i in range(len(prompts))]
                pairs = zip(
                    instructions,
                    continuations(learner, prompts, seeds, how, c.max_tokens),
                    strict=True,
                )
                for instruction, body, output in (
                    (i, *row) for i, text in pairs for row in parse_icl(text)
                ):
                    if body not in seen and self.fits(learner, instruction, body, output):
                        seen.add(body)
                        found.append(
                            Example(
                                f"{task.name}/written/{len(found)}", instruction, body + suffix, ""
                            )
                        )
        return found

    def fits(self, learner: Learner, definition: str, body: str, output: str) -> bool:
        """The filters on length, in tokens."""
        c, (prompt, row, label) = (
            self.config,
            map(learner.encoder.count, (f"{definition} {body}", body, output)),
        )
        return prompt <= c.max_prompt and 1 < row <= c.max_input and label <= c.max_output

    def can_follow(self, past: Past, tasks: int) -> str | None:
        # Nothing is written after the last task of a run.
        if past.config.name == "ssr" and past.task not in past.state.get("rows", {}):
            return (
                f"ssr wrote nothing of {past.task}, the last task of {past.run}, and a fork could "
                "never rehearse it; fork at an earlier task"
            )
        return super().can_follow(past, tasks)
