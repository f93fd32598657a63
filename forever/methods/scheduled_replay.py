"""Replay of the whole memory at scheduled times: Algorithm 1 of FOREVER with its three slots open.

The clock says when a day is over, the schedule at which days memory is replayed, the regulariser
how strongly. By default a day is one update without a penalty; FOREVER has its own parts.
"""

from itertools import chain, islice, takewhile, tee
from typing import Literal, TypeVar

from forever.config.methods.ours import ScheduledReplayConfig
from forever.data.batching import Batch, Batches
from forever.data.tasks import Task
from forever.methods.anchored import Anchored
from forever.replay.clock import Clock, StepClock
from forever.replay.schedules import Days, standard_events
from forever.replay.trigger import Due, Trigger
from forever.training.events import ReplayEvent
from forever.training.learner import Learner
from forever.training.steps import Kind, Probe, Step, Steps

Passes = int | Literal["share", "rest"]
R = TypeVar("R", bound=ScheduledReplayConfig)


class ScheduledReplay(Anchored[R]):
    """Algorithm 1; a subclass gives the days, and another clock and regulariser if it has them."""

    def clock(self) -> Clock:
        """Return a clock at the start of a task."""
        return StepClock(day_steps=1, smoothing=1.0)

    def days(self, learner: Learner) -> Days:
        """Return the days at which a replay interrupts the current task."""
        raise NotImplementedError

    def steps(self, learner: Learner, task: Task) -> Steps:
        batches = learner.batches(task.train)
        trigger = Trigger(self.clock(), self.schedule(learner))
        clock = trigger.clock
        learner.log_task(planned=learner.planned_steps, scheduled_events=self.scheduled(learner))
        for batch in batches:
            record = yield Step(batch)
            # tau += Delta; mu <- (1 - lambda) mu + lambda Delta; has the next day come?
            next_day = trigger.next_day
            if not record.skipped:
                self.rate = record.lr
            event = trigger.observe(None if record.skipped else record.update_norm)
            learner.log_step(tau=clock.tau, mu=clock.mu, days=clock.days, next_day=next_day)
            learner.log_task(**clock.findings)
            if event is not None:  # its updates do not move the clock
                yield from self.replay(learner, task, event, self.config.memory_epochs)
        if learner.memory and self.config.end_rate != "none":
            passes = self.consolidation_epochs(learner, trigger.events)
            yield from self.replay(learner, task, trigger.end(), passes)

    def replay(self, learner: Learner, task: Task, event: Due, epochs: Passes) -> Steps:
        """Pass over the memory `epochs` times, at a strength fixed before the first update."""
        kind: Kind = "consolidation" if event.day is None else "replay"
        beta = self.regularizer.strength(event.pace)
        at_end = kind == "consolidation" and self.config.end_rate == "current"
        lr = self.rate if at_end else None
        batches, updates = self.afforded(learner, task, epochs), 1
        if self.penalty_scale == "event":
            batches, counted = tee(batches)
            updates = sum(1 for _ in counted)
        if (first := next(batches, None)) is None:
            return
        done: list[Batch] = []
        before = yield Probe(first)
        for batch in chain([first], batches):
            yield self.step_on(learner, batch, beta, kind, updates, lr)
            done.append(batch)
        after = yield Probe(first)
        learner.log_event(
            ReplayEvent(
                kind=kind,
                task=task.name,
                step=learner.step,
                day=event.day,
                days=event.days,
                tau=event.tau,
                ratio=event.pace,
                strength=self.regularizer.factor(event.pace),
                beta=beta,
                updates=len(done),
                rows=sum(len(batch.examples) for batch in done),
                loss_before=before.loss,
                loss_after=after.loss,
            )
        )

    def afforded(self, learner: Learner, task: Task, epochs: Passes) -> Batches:
        """Return the batches of `epochs` passes as far as the budget lasts, or those of a share of
        it, or of the rest."""
        batches = self.passes(learner, task, epochs if isinstance(epochs, int) else None)
        return learner.budget.afforded(batches, self.parts(learner) if epochs == "share" else 1)

    def parts(self, learner: Learner) -> int:
        """Return into how many equal shares a budget is divided: for J events and the end."""
        return standard_events(learner.planned_steps, self.config.day_steps) + 1

    def passes(self, learner: Learner, task: Task, epochs: int | None) -> Batches:
        """Return the batches of `epochs` shuffled passes over the memory, or of endless ones, which
        begin where the event before ended."""
        if epochs is None:
            return learner.memory.further(learner.examples["replayed"], task.name)
        return learner.memory.batches(epochs, task.name)

    def schedule(self, learner: Learner) -> Days:
        """Return as many of the days as are allowed."""
        return islice(self.days(learner), self.most_events(learner))

    def most_events(self, learner: Learner) -> int | None:
        """Return how many events a task may have: J if budgets are matched, else any number."""
        if not learner.memory:
            return 0
        if self.config.consolidation_epochs == "matched":
            return standard_events(learner.planned_steps, self.config.day_steps)
        return None

    def scheduled(self, learner: Learner) -> int:
        """Count the days that come in this task if all its updates are of equal length."""
        last = learner.planned_steps / self.clock().day_steps
        return sum(1 for _ in takewhile(lambda day: day <= last, self.schedule(learner)))

    def consolidation_epochs(self, learner: Learner, events: int) -> Passes:
        """Return how many passes end a task after its events, or enough for its budget."""
        if self.config.memory_epochs == "share":
            return "rest"
        if whole_budget := learner.budget.passes(len(learner.memory)):
            return whole_budget
        if self.config.consolidation_epochs == "matched":
            return self.config.memory_epochs * ((self.most_events(learner) or 0) - events) + 1
        return self.config.consolidation_epochs
