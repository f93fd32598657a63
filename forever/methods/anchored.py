"""What holds replay to what was known, beside the right answers: FOREVER's *how*, for every *when*.

    L = CE + beta * sum_j w_j (Theta_j - Theta*_j)^2      a distance of the parameters, or
    L = CE + beta * mean over replayed positions of d     one of the answers, where d is
        KL(p* || p)                                       kl
        mean over the vocabulary of (z - z*)^2            logits (DER)

Theta* is the end of the previous task, p* what that model says of the replayed example, z* what the
model said of it at the end of the example's own task. Where K logits of V are kept, both distances
are the KL of the K and of the mass of the rest, which for DER is a departure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forever.config.methods.ours import AnchoredConfig
from forever.data.batching import Batch
from forever.data.encoding import Encoded
from forever.data.tasks import Example, Task
from forever.errors import InputError
from forever.replay.regularizers import PenaltyScale, Regularizer, scaled
from forever.training.forward import answer_logits
from forever.training.importance import fisher_information
from forever.training.learner import Learner
from forever.training.method import C, EndWork, Method
from forever.training.steps import Forward, Kind, Penalty, Step

_ALL = 4096  # logits of a vocabulary that are kept whole unless `method.logits` says otherwise
_MOST = 64  # of a larger one


@dataclass(frozen=True)
class Kept:
    """What a model said where the n tokens of some answers come next.

    Attributes:
        values: [n, V] logits, or [n, K] the largest log-probabilities.
        places: [n, K], the tokens that have those; None for all of the vocabulary.
    """

    values: Tensor
    places: Tensor | None

    def split(self, lengths: Sequence[int]) -> "Iterator[Kept]":
        """Yield the parts that belong to answers of these lengths."""
        values = self.values.split(list(lengths))
        places = [None] * len(values) if self.places is None else self.places.split(list(lengths))
        return (Kept(*part) for part in zip(values, places, strict=True))


class Anchored(Method[C]):
    """A method whose replay may be held; a subclass with an `AnchoredConfig` says by what."""

    vectors = ("anchor", "fisher", "weights")

    def __init__(self, config: C) -> None:
        super().__init__(config)
        self.regularizer = Regularizer("none")
        self.penalty_scale: PenaltyScale = "update"
        if isinstance(config, AnchoredConfig):
            self.penalty_scale = config.penalty_scale
            low, high = config.min_strength, config.max_strength
            self.regularizer = Regularizer(
                config.regularizer, config.beta, config.gamma, low=low, high=high
            )
        self.known: dict[Example, Kept] = {}  # the answers that replayed examples are held to
        self.held: dict[int, Example] = {}  # the current update's replayed groups, by identity
        self.pull = 0.0  # the weight of the distance of their answers
        self.positions = 0  # supervised tokens of theirs

    def begin_task(self, learner: Learner, task: Task) -> None:
        held = self.regularizer.strength(pace=1.0) > 0 and self.regularizer.name != "logits"
        if learner.memory and held:
            self.tensors["anchor"] = learner.parameters.snapshot()  # Theta*: the last task's end
            if self.regularizer.holds_answers:  # computed once, and again by a run that resumes
                learner.examples["probed"] += len(learner.memory)

    def step_on(
        self,
        learner: Learner,
        batch: Batch,
        beta: float,
        kind: Kind = "task",
        updates: int = 1,
        lr: float | None = None,
    ) -> Step:
        """Return the update on a batch, whose replayed examples are held with beta at its scale.

        Args:
            updates: how many its event has.
            lr: the learning rate, if it is not the schedule's.
        """
        replayed = len(batch.examples)
        if kind == "task":
            replayed = sum(example.id not in learner.own for example in batch.examples)
        if beta == 0 or not replayed:
            return Step(batch, kind, lr=lr)
        size = learner.config.optim.batch_size
        beta = scaled(beta, self.penalty_scale, replayed, size, updates)
        if self.regularizer.holds_answers:
            return Step(batch, kind, pull=beta, lr=lr)
        penalty = Penalty(beta, self.tensors["anchor"], self.tensors.get("weights"))
        return Step(batch, kind, penalty, lr=lr)

    # ---- the parameters

    def end_work(self, learner: Learner, task: Task) -> EndWork:
        return EndWork(alone=task.train if self.regularizer.weighted else ())

    def end_task(self, learner: Learner, task: Task) -> None:
        self.tensors.pop("anchor", None)
        self.known.clear()
        keeps = self.regularizer.name == "logits" and task.train
        if keeps and (examples := self.remember(learner, task)):
            kept = self.answers(learner, examples)
            learner.examples["probed"] += len(examples)
            self.constants[f"{learner.stage}/values"] = kept.values
            if kept.places is not None:
                self.constants[f"{learner.stage}/places"] = kept.places
        if not self.regularizer.weighted:
            return
        # PIR: the mean over tasks of the diagonal Fisher information, scaled to mean one so that
        # beta_base keeps its size. A fork may have learned the first tasks without it.
        fisher = fisher_information(learner, task.train)
        count = self.state["fisher_tasks"] = self.state.get("fisher_tasks", 0) + 1
        mean = self.tensors.get("fisher", fisher)
        mean = self.tensors["fisher"] = mean + (fisher - mean) / count
        self.tensors["weights"] = mean / mean.mean().clamp_min(1e-30)

    # ---- the answers

    def encode(self, learner: Learner, step: Step) -> list[tuple[Encoded, ...]]:
        groups = super().encode(learner, step)
        self.pull, self.held, self.positions = step.pull, {}, 0
        for group, example in zip(groups, step.batch.examples, strict=True):
            if step.pull and example.id not in learner.own:
                self.held[id(group)] = example
                self.positions += len(group[0].learned)
        return groups

    def begin_passes(self, learner: Learner) -> None:
        """Compute what replayed examples are held to, once a task, before an update needs it."""
        if not self.pull or self.known:
            return
        for stage, examples in enumerate(learner.memory.kept.values()):
            lengths = [len(learner.encoder.encode(example).learned) for example in examples]
            if self.regularizer.name == "logits":
                if f"{stage}/values" not in self.constants:
                    raise InputError(
                        f"method {self.config.name}: stage {stage + 1} kept no logits to be held "
                        "to; a fork that is held to logits needs a run that was"
                    )
                places = self.constants.get(f"{stage}/places")
                whole = Kept(self.constants[f"{stage}/values"], places)
            else:
                # A resumed run is elsewhere by now, so Theta* is put in place for it.
                with learner.parameters.at(self.tensors["anchor"]):
                    whole = self.answers(learner, examples)
            self.known.update(zip(examples, whole.split(lengths), strict=True))

    @torch.no_grad()
    def answers(self, learner: Learner, examples: Sequence[Example]) -> Kept:
        """Return what the model says where the answers' tokens come next, dropout off. Every rank
        computes all."""
        model, training = learner.backbone.model, learner.backbone.model.training
        model.eval()
        encoded = [learner.encoder.encode(example) for example in examples]
        size = learner.micro_batch or learner.config.optim.batch_size
        parts = [
            self.largest(answer_logits(learner, encoded[i : i + size])[0])
            for i in range(0, len(encoded), size)
        ]
        model.train(training)
        places = [part.places for part in parts if part.places is not None]
        return Kept(
            torch.cat([part.values for part in parts]), torch.cat(places) if places else None
        )

    def largest(self, logits: Tensor) -> Kept:
        """Keep all logits, [n, V], or the largest log-probabilities."""
        assert isinstance(self.config, AnchoredConfig)
        vocabulary, count = logits.shape[-1], self.config.logits
        if count is None:
            count = "all" if vocabulary <= _ALL else _MOST
        if count == "all" or count >= vocabulary:
            return Kept(logits, None)
        return Kept(*logits.log_softmax(-1).topk(count))

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        if not self.held:
            return forward.cross_entropy
        distance = forward.logits.new_zeros(())
        logits = forward.logits.split([len(group[0].learned) for group in forward.groups])
        for group, z in zip(forward.groups, logits, strict=True):
            if id(group) in self.held:
                distance = distance + self.distance(z, self.known[self.held[id(group)]])
        return forward.cross_entropy + self.pull * distance / self.positions

    def distance(self, z: Tensor, known: Kept) -> Tensor:
        """Return the summed distance of the answers at n positions, with logits z [n, V]."""
        if known.places is None:
            if self.regularizer.name == "logits":
                return (z - known.values).square().mean(-1).sum()
            log_p, log_q = z.log_softmax(-1), known.values.log_softmax(-1)
        else:
            log_p = with_rest(z.log_softmax(-1).gather(-1, known.places))
            log_q = with_rest(known.values)
        return (log_q.exp() * (log_q - log_p)).sum()


def with_rest(log_p: Tensor) -> Tensor:
    """Add the logarithm of the mass that K of V log-probabilities leave, [n, K] to [n, K + 1]."""
    rest = (-torch.expm1(log_p.logsumexp(-1, keepdim=True))).clamp_min(
        torch.finfo(log_p.dtype).tiny
    )
    return torch.cat([log_p, rest.log()], -1)
