"""Scores of answers, and what continual learning makes of them. Pure functions.

a[i, j] is the score on task i after stage j, in percent. K tasks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean
from typing import Any

from forever.data.tasks import Metric


def exact_match(prediction: str, reference: str) -> float:
    """1 if the two are equal but for case and surrounding blanks, else 0."""
    return float(prediction.strip().lower() == reference.strip().lower())


def rouge_l(prediction: str, reference: str) -> float:
    """ROUGE-L F1 with stemming (Lin 2004), by Google's `rouge-score`, on lower-cased text."""
    score = _rouge().score(reference.strip().lower(), prediction.strip().lower())
    return float(score["rougeL"].fmeasure)


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=True)


METRICS = {"exact_match": exact_match, "rouge_l": rouge_l}


def score(metric: Metric, predictions: Sequence[str], references: Sequence[str]) -> list[float]:
    """The score of each answer, in [0, 1]."""
    return [METRICS[metric](p, r) for p, r in zip(predictions, references, strict=True)]


@dataclass
class PerformanceMatrix:
    """a[i, j] with the score of every test item, kept for statistics.

    Attributes:
        tasks: names in the order in which they are learned.
        stages: names of what was trained, in order; the tasks themselves, or one joint stage.
        items: scores in [0, 1] of task i's test rows after stage j, under (i, j). Both count from
        0; stage -1 is
            before training.
    """

    tasks: tuple[str, ...]
    stages: tuple[str, ...]
    items: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def __getitem__(self, index: tuple[int, int]) -> float | None:
        """a[i, j] in percent; None if task i was not scored after stage j."""
        found = self.items.get(index)
        return None if found is None else 100 * fmean(found)

    def rows(self) -> list[list[float | None]]:
        """The matrix as K rows (tasks) of one number a stage; None where nothing was measured."""
        return [[self[i, j] for j in range(len(self.stages))] for i in range(len(self.tasks))]

    def until(self, stage: int) -> "PerformanceMatrix":
        """The matrix as it was when stage `stage` was over: K is then the number of tasks learned
        so far."""
        if len(self.stages) != len(self.tasks):
            return self
        return PerformanceMatrix(self.tasks[: stage + 1], self.stages[: stage + 1], self.items)

    def overall(self) -> float:
        """OP = 1/K sum_i a[i, K]: the mean of the last column."""
        last = len(self.stages) - 1
        return fmean(100 * fmean(self.items[i, last]) for i in range(len(self.tasks)))

    def backward_transfer(self) -> float | None:
        """BWT = 1/(K-1) sum_{i<K} (a[i, K] - a[i, i]): negative means forgetting. None for joint
        training or K = 1."""
        changes = self._since(lambda i: 100 * fmean(self.items[i, i]))
        return fmean(changes) if changes else None

    def forgetting(self) -> float | None:
        """1/(K-1) sum_{i<K} (max_{i<=j<K} a[i, j] - a[i, K]): how far each is below its best
        (Chaudhry et al. 2018)."""
        last = len(self.stages) - 1
        losses = self._since(lambda i: max(100 * fmean(self.items[i, j]) for j in range(i, last)))
        return -fmean(losses) if losses else None

    def forward_transfer(self) -> float | None:
        """FWT = 1/(K-1) sum_{i>1} (a[i, i-1] - a[i, 0]) (Lopez-Paz and Ranzato 2017): what earlier
        tasks give to a task not yet learned, against the untrained model. None unless these scores
        were measured."""
        ahead = [(i, i - 1) for i in range(1, len(self.tasks))]
        if not ahead or any(
            (i, j) not in self.items or (i, -1) not in self.items for i, j in ahead
        ):
            return None
        return fmean(100 * (fmean(self.items[i, j]) - fmean(self.items[i, -1])) for i, j in ahead)

    def _since(self, reference: Callable[[int], float]) -> list[float]:
        """a[i, K] - reference(i) for all tasks but the last; empty if tasks were not learned one
        after another."""
        if len(self.stages) != len(self.tasks):
            return []
        last = len(self.stages) - 1
        return [100 * fmean(self.items[i, last]) - reference(i) for i in range(last)]
