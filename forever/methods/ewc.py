"""EWC: elastic weight consolidation (Kirkpatrick et al. 2017).

One adapter for the whole sequence; each of its entries is pulled towards its value after earlier tasks, as strongly as
the diagonal Fisher information there says that it matters:

    L = CE + lambda/2 * sum_j Omega_j (Theta_j - mu_j)^2

Followed: the paper's Fisher information, one gradient an example at the final weights, dropout off, squared one by one.
No LLM code that we read does that: they square gradients of whole batches, which shrinks as 1/B, so their lambdas (400
in BeyonderXX/TRACE, 0.1 in which47/LLMCL) cannot be compared with each other or with ours.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from forever.costs import EndWork
from forever.data.tasks import Task
from forever.importance import fisher_information
from forever.learner import Learner
from forever.methods.base import Card, Method, MethodConfig
from forever.seeding import derive
from forever.steps import Penalty, Step, Steps

if TYPE_CHECKING:
    from forever.data.encoding import Encoded

_TINY = 1e-30  # where nothing matters the anchor is free, and 0 / 0 must not come into it


class EwcConfig(MethodConfig):
    """Sources differ by four orders of magnitude in lambda because their Fisher information differs."""

    name: Literal["ewc"] = "ewc"
    strength: Annotated[float, Field(ge=0)] = 1e4
    """lambda. Ours: near convergence sum F is 0.01 to 1 and entries drift by 0.01 to 0.05, so that the penalty matters
    from 1e3 on. Sensible: 4e2 to 4e5, tuned on one order only."""
    mode: Literal["online", "separate"] = "online"
    """online: Omega <- gamma Omega + F, mu the end of the last task (Schwarz et al. 2018), constant memory.
    separate: a penalty for each task around its own end (Kirkpatrick), which needs only sums, too."""
    decay: Annotated[float, Field(ge=0, le=1)] = 1.0
    """gamma: what stays of the earlier tasks' importance. 1 keeps all of it, as the paper does."""
    fisher_labels: Literal["gold", "sampled"] = "gold"
    """Answers whose gradients are squared: the data's (as in all code that we read), or drawn from the model, which
    makes it the true Fisher information instead of the empirical one."""


class Ewc(Method[EwcConfig]):
    """A quadratic penalty around what was learned, weighted by importance."""

    card = Card(
        title="EWC",
        paper="Kirkpatrick et al. 2017",
        memory="none",
        extra="one single-row backward pass over the task's rows at its end",
        uncertain="lambda: published values are for other Fisher estimates",
    )

    def steps(self, learner: Learner, task: Task) -> Steps:
        penalty = self.penalty()
        for batch in learner.batches(task.train):
            yield Step(batch, penalty=penalty)

    def penalty(self) -> Penalty | None:
        """lambda/2 Omega (Theta - mu)^2; None in the first task.

        The separate penalties sum_i F_i (Theta - Theta_i)^2 are S (Theta - M/S)^2 up to a constant, with S = sum F_i
        and M = sum F_i Theta_i.
        """
        if not self.tensors or not self.config.strength:
            return None
        omega = self.tensors["fisher"]
        anchor = (
            self.tensors["anchor"] if self.config.mode == "online" else self.tensors["moment"] / omega.clamp_min(_TINY)
        )
        return Penalty(self.config.strength / 2, anchor, omega)

    def end_task(self, learner: Learner, task: Task) -> None:
        rows = task.train if self.config.fisher_labels == "gold" else self.answers(learner, task)
        fisher = fisher_information(learner, rows)
        old = self.tensors.get("fisher", fisher * 0)
        self.tensors["fisher"] = self.config.decay * old + fisher
        if self.config.mode == "online":
            self.tensors["anchor"] = learner.parameters.snapshot()
        else:
            moment = self.config.decay * self.tensors.get("moment", fisher * 0)
            self.tensors["moment"] = moment + fisher * learner.parameters.snapshot()

    def end_work(self, learner: Learner, task: Task) -> EndWork:
        if self.config.fisher_labels == "gold":
            return EndWork(passes=task.train)
        limit = learner.config.evaluation.max_new_tokens
        return EndWork(task.train, [[(len(learner.encoder.encode_prompt(e).prompt), limit) for e in task.train]])

    def answers(self, learner: Learner, task: Task) -> "list[Encoded]":
        """The task's prompts with answers drawn from the model as it is, token by token as they were drawn.

        Written out and read again, other tokens could come of them, and more than fit; and one that was cut off did not
        end. The prompts are those of decoding, so that a row may be longer than a training row by its answer.
        """
        from forever.decoding import Sampling, draw

        prompts = [learner.encoder.encode_prompt(example) for example in task.train]
        limit = learner.config.evaluation.max_new_tokens

        def of(mine: list[int]) -> list[list[int]]:
            seeds = [derive(learner.config.seed, "fisher", task.name, i) for i in mine]
            return draw(learner.backbone, [prompts[i] for i in mine], seeds, limit, Sampling())

        drawn = learner.world.spread(range(len(prompts)), of)
        return [replace(prompt, answer=tuple(ids)) for prompt, ids in zip(prompts, drawn, strict=True)]
