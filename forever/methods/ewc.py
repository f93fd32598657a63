"""EWC: elastic weight consolidation (Kirkpatrick et al. 2017).

One adapter for the whole sequence; each of its entries is pulled towards its value after earlier
tasks, as strongly as the diagonal Fisher information there says that it matters:

    L = CE + lambda/2 * sum_j Omega_j (Theta_j - mu_j)^2

The Fisher information follows the paper: one gradient an example at the final weights without
dropout, squared one by one. The LLM code that we read squares the gradients of whole batches, which
shrink as 1/B, so its lambdas (400 in BeyonderXX/TRACE, 0.1 in which47/LLMCL) cannot be compared
with each other or with ours.
"""

from forever.config.methods.ours import EwcConfig
from forever.data.tasks import Task
from forever.training.importance import fisher_information
from forever.training.learner import Learner
from forever.training.method import Card, EndWork, Method
from forever.training.steps import Penalty, Step, Steps

_TINY = 1e-30  # where nothing matters the anchor is free, but it must not be 0 / 0


class Ewc(Method[EwcConfig]):
    """Fine-tuning with a quadratic penalty around what was learned, weighted by importance."""

    card = Card(
        title="EWC",
        paper="Kirkpatrick et al. 2017",
        extra="The end of a task has one backward pass for each example alone.",
        uncertain="lambda: published values belong to other estimates of the Fisher information.",
    )

    vectors = ("fisher", "anchor", "moment")

    def steps(self, learner: Learner, task: Task) -> Steps:
        penalty = self.penalty()
        for batch in learner.batches(task.train):
            yield Step(batch, penalty=penalty)

    def penalty(self) -> Penalty | None:
        """Return lambda/2 Omega (Theta - mu)^2; there is none in the first task.

        The separate penalties sum_i F_i (Theta - Theta_i)^2 are S (Theta - M/S)^2 up to a constant,
        with S = sum F_i and M = sum F_i Theta_i, so two sums are enough.
        """
        if not self.tensors or not self.config.strength:
            return None
        omega, anchor = self.tensors["fisher"], self.tensors.get("anchor")
        if anchor is None:
            anchor = self.tensors["moment"] / omega.clamp_min(_TINY)
        return Penalty(self.config.strength / 2, anchor, omega)

    def end_work(self, learner: Learner, task: Task) -> EndWork:
        return EndWork(alone=task.train)

    def end_task(self, learner: Learner, task: Task) -> None:
        fisher = fisher_information(learner, task.train)
        old = self.tensors.get("fisher", fisher * 0)
        self.tensors["fisher"] = self.config.decay * old + fisher
        if self.config.mode == "online":
            self.tensors["anchor"] = learner.parameters.snapshot()
        else:
            moment = self.config.decay * self.tensors.get("moment", fisher * 0)
            self.tensors["moment"] = moment + fisher * learner.parameters.snapshot()
