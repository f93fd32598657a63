"""Replay of the whole memory at scheduled times: Algorithm 1 of FOREVER with its three slots open.

clock (when is a day over) x schedule (at which days) x regulariser (how strongly to hold on).
FOREVER fills the slots with the paper's parts, Fixed-interval replay with the plainest ones.
"""

from itertools import islice, takewhile
from typing import Literal, TypeVar

from forever.config.methods.replay import ScheduledReplayConfig
from forever.data.batching import Batch
from forever.data.tasks import Task
from forever.methods.base import Method
from forever.replay.clock import Clock, ModelClock
from forever.replay.regularizers import Regularizer
from forever.replay.schedules import Days, standard_events
from forever.training.events import ReplayEvent
from forever.training.importance import fisher_information
from forever.training.learner import Learner
from forever.training.steps import Penalty, Probe, Step, Steps

R = TypeVar("R", bound=ScheduledReplayConfig)


class ScheduledReplay(Method[R]):
    """Algorithm 1. Subclasses say which clock, which days and which regulariser."""

    def __init__(self, config: R, regularizer: Regularizer) -> None:
        super().__init__(config)
        self.regularizer = regularizer

    def clock(self) -> Clock:
        """A clock at the start of a task."""
        raise NotImplementedError

    def days(self, learner: Learner, task: Task) -> Days:
        """The days at which this task is interrupted by a replay."""
        raise NotImplementedError

    def begin_task(self, learner: Learner, task: Task) -> None:
        if learner.memory and self.regularizer.beta > 0:
            # Theta*: end of the previous task.
            self.tensors["anchor"] = learner.parameters.snapshot()

    def steps(self, learner: Learner, task: Task) -> Steps:
        batches = learner.batches(task.train)
        clock, schedule, events = self.clock(), self.schedule(learner, task), 0
        next_day = next(schedule, None)
        learner.log_task(
            scheduled_events=self.scheduled_events(learner, task) if learner.memory else 0
        )
        for batch in batches:
            record = yield Step(batch)
            clock.advance(record.update_norm)  # tau += Delta; mu <- (1 - lambda) mu + lambda Delta
            learner.log_step(
                tau=clock.tau,
                mu=clock.mu,
                days=clock.days,
                next_day=next_day if learner.memory else None,
            )
            # By the others a day is a number of updates, not a distance.
            if isinstance(clock, ModelClock):
                learner.log_task(tau_day=clock.tau_day)
            # One threshold a step (A8), and replay does not advance the clock (A2).
            if learner.memory and next_day is not None and clock.reached(next_day):
                yield from self.replay(
                    learner, task, clock, "replay", next_day, self.config.memory_epochs
                )
                next_day, events = next(schedule, None), events + 1
        passes = self.consolidation_epochs(learner, events)
        if learner.memory and passes:
            yield from self.replay(learner, task, clock, "consolidation", None, passes)

    def replay(
        self,
        learner: Learner,
        task: Task,
        clock: Clock,
        kind: Literal["replay", "consolidation"],
        day: float | None,
        epochs: int,
    ) -> Steps:
        """One event: `epochs` shuffled passes over the memory at a strength that is fixed when it
        begins (A10)."""
        beta = self.regularizer.strength(clock.pace())
        penalty = (
            Penalty(beta, self.tensors["anchor"], self.tensors.get("weights")) if beta > 0 else None
        )
        batches = self.passes(learner, task, epochs)
        before = yield Probe(batches[0])
        for batch in batches:
            yield Step(batch, kind, penalty)
        after = yield Probe(batches[0])
        learner.log_event(
            ReplayEvent(
                kind=kind,
                task=task.name,
                step=clock.steps,
                day=day,
                days=clock.days,
                tau=clock.tau,
                ratio=clock.pace(),
                strength=self.regularizer.factor(clock.pace()),
                beta=beta,
                updates=len(batches),
                rows=sum(len(batch.examples) for batch in batches),
                loss_before=before.loss,
                loss_after=after.loss,
            )
        )

    def passes(self, learner: Learner, task: Task, epochs: int) -> list[Batch]:
        """Shuffled passes over the memory."""
        return list(learner.memory.batches(epochs, task.name))

    def schedule(self, learner: Learner, task: Task) -> Days:
        """The days, as many as the budget allows."""
        return islice(self.days(learner, task), self.budget(learner))

    def budget(self, learner: Learner) -> int | None:
        """Events that a task may have; "matched" is J, as many as the standard schedule would
        fire."""
        if self.config.consolidation_epochs == "matched":
            return standard_events(learner.planned_steps, self.config.warmup_steps)
        return None

    def scheduled_events(self, learner: Learner, task: Task) -> int:
        """How many days would come in this task if all its updates were of equal length."""
        last = learner.planned_steps / self.clock().warmup_steps
        return sum(1 for _ in takewhile(lambda day: day <= last, self.schedule(learner, task)))

    def consolidation_epochs(self, learner: Learner, events: int) -> int:
        """Passes over the memory when the task is over, after so many events."""
        if self.config.consolidation_epochs == "matched":
            return self.config.memory_epochs * ((self.budget(learner) or 0) - events) + 1
        return self.config.consolidation_epochs

    def end_task(self, learner: Learner, task: Task) -> None:
        self.tensors.pop("anchor", None)
        if not self.regularizer.weighted:
            return
        # PIR: the mean over tasks of the diagonal Fisher information, scaled to mean one so that
        # beta_base keeps its size (A26). A fork may have learned the first tasks without.
        fisher = fisher_information(learner, task.train)
        count = self.state["fisher_tasks"] = self.state.get("fisher_tasks", 0) + 1
        mean = self.tensors.get("fisher", fisher)
        self.tensors["fisher"] = mean + (fisher - mean) / count
        self.tensors["weights"] = self.tensors["fisher"] / self.tensors["fisher"].mean().clamp_min(
            1e-30
        )
