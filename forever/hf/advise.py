"""How many old examples a new task needs: pilots at four doses, each a part of the whole training.

A pilot trains as a run would, with old examples evenly between the new ones (`forever.hf.mix`), and
is judged by the loss on held-out examples. The answer is the smallest dose with which the old loss
is within `KEEPS` nats of its start while the new one is less than `COSTS` above that of a pilot
without old data. All pilots together cost one and a half runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from forever.config.run import RunConfig
from forever.data.batching import Batch, batch_count
from forever.data.tasks import Example, Task
from forever.errors import InputError
from forever.evaluation.likelihood import log_probabilities
from forever.hf.mix import mixed_order
from forever.methods.registry import build_method
from forever.seeding import permutation
from forever.training.build import build_learner
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import perform
from forever.training.steps import Step
from forever.world import World

DOSES = (0.0, 0.02, 0.08, 0.3)  # old examples for each new one
KEEPS, COSTS = 0.05, 0.02  # nats a token
COST = 1.5  # runs, all pilots and their losses together
HELD_OUT = 64  # examples of each kind at most, and at most a fifth
_FEWEST_UPDATES = 8  # of a pilot


@dataclass(frozen=True)
class Rise:
    """How far a loss rose, in nats a token, with its 95 % interval over held-out examples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True)
class Pilot:
    """What a dose did: to the old loss since the start, to the new one against no old data."""

    dose: float
    replayed: int
    old: Rise
    new: Rise


@dataclass(frozen=True)
class Advice:
    """The smallest dose that is enough; None is more than was tried.

    `low` is the smallest dose that may be enough, `high` the smallest that is shown to be enough.
    """

    dose: float | None
    low: float | None
    high: float | None
    pilots: tuple[Pilot, ...]
    share: float  # of a run's new examples that a pilot has
    updates: int  # of the pilot without old data
    cost: float  # in runs
    held_out: tuple[int, int]  # old and new examples


def advise(
    config: RunConfig,
    old: Sequence[Example],
    new: Sequence[Example],
    world: World,
    doses: Sequence[float] = DOSES,
    cost: float = COST,
) -> Advice:
    """Train the pilots and judge them.

    Args:
        config: the run that is planned for the new examples: model, adapter, optimiser, epochs.
        doses: those of the pilots, from none upwards.
        cost: what they may cost together, in runs; no pilot is longer than one.

    Raises:
        InputError: there are too few examples for pilots within their cost.
    """
    config = config.override({"method.name": "finetune"})
    old_test, old = _parted(old, config.seed, "old")
    new_test, new = _parted(new, config.seed, "new")
    optim = config.optim
    whole = optim.epochs * len(new)
    # A loss without an update costs a third of one with it; there is one at the start, too.
    losses = (len(doses) + 1) * (len(old_test) + len(new_test)) / 3
    share = min((cost * whole - losses) / (whole * sum(1 + dose for dose in doses)), 1.0)
    shown = int(share * whole)
    if shown < _FEWEST_UPDATES * optim.batch_size:
        raise InputError(
            f"{len(new)} new examples are too few: a pilot would have {max(shown, 0)} of them, and "
            f"{_FEWEST_UPDATES} updates need {_FEWEST_UPDATES * optim.batch_size}; raise "
            "optim.epochs, or lower optim.batch_size"
        )
    method = build_method(config.method)
    learner = build_learner(config, method, world)
    everything = Task("advise", (*new, *new_test, *old, *old_test), (), "rouge_l")
    learner.encoder.encode_all(everything, config.evaluation.max_new_tokens)
    start, examples = learner.parameters.snapshot(), (*new, *old)
    task = Task("new", tuple(new), (), "exact_match")
    before, no_old_data = _losses(learner, old_test), None
    pilots: list[Pilot] = []
    for dose in doses:
        learner.parameters.load(start)
        learner.begin(0, task)
        learner.planned_steps = batch_count(len(new), optim.epochs, optim.batch_size)
        learner.optimizer = build_optimizer(learner.parameters, optim)
        order = mixed_order(len(new), len(old), dose, optim.epochs, config.seed)
        order = order[: round(shown * (1 + dose))]
        for begin in range(0, len(order), optim.batch_size):
            batch = tuple(examples[i] for i in order[begin : begin + optim.batch_size])
            step = Step(Batch(batch))
            learner.count(step, perform(learner, method, step))
        after = _losses(learner, new_test)
        no_old_data = after if no_old_data is None else no_old_data
        kept = _rise(_losses(learner, old_test), before)
        pilots.append(Pilot(dose, learner.examples["replayed"], kept, _rise(after, no_old_data)))
    spent = shown * sum(1 + dose for dose in doses) + losses
    return Advice(
        *(smallest(pilots, bound) for bound in ("value", "low", "high")),
        pilots=tuple(pilots),
        share=share,
        updates=batch_count(shown, 1, optim.batch_size),
        cost=spent / whole,
        held_out=(len(old_test), len(new_test)),
    )


def smallest(pilots: Sequence[Pilot], bound: str) -> float | None:
    """Return the smallest dose that is enough, by the losses' rises or by a bound of them."""
    for pilot in pilots:
        if getattr(pilot.old, bound) <= KEEPS and getattr(pilot.new, bound) < COSTS:
            return pilot.dose
    return None


def _parted(
    examples: Sequence[Example], seed: int, name: str
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Return held-out examples and the others; no question is in both."""
    different = list({example.question: example for example in examples}.values())
    count = min(HELD_OUT, len(different) // 5)
    if count < 2:
        raise InputError(f"{len(different)} different {name} examples; at least 10 are needed")
    order = permutation(len(different), seed, "advise", name)
    chosen = tuple(different[i] for i in order)
    return chosen[:count], chosen[count:]


def _losses(learner: Learner, examples: Sequence[Example]) -> np.ndarray:
    """Return the summed loss of each example's answer and its number of tokens, [examples, 2]."""
    encoded = [learner.encoder.encode(example) for example in examples]
    with torch.no_grad():
        sums = log_probabilities(learner.backbone, encoded, packed=learner.packed)
    return np.array([(-s, len(e.learned)) for s, e in zip(sums, encoded, strict=True)])


def _rise(after: np.ndarray, before: np.ndarray, resamples: int = 2000) -> Rise:
    """Return how far the loss rose on the same examples, with a paired bootstrap over them."""
    gaps, tokens = after[:, 0] - before[:, 0], after[:, 1]
    draws = np.random.default_rng(0).integers(0, len(gaps), (resamples, len(gaps)))
    low, high = np.quantile(gaps[draws].sum(1) / tokens[draws].sum(1), (0.025, 0.975))
    return Rise(float(gaps.sum() / tokens.sum()), float(low), float(high))
