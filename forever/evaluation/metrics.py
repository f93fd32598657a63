"""What continual learning makes of the scores of answers. Pure functions.

a[i, j] is the score on task i after stage j, in percent. K tasks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean


@dataclass
class PerformanceMatrix:
    """a[i, j] with the score of every test example, kept for statistics.

    `stages` names what was trained: the tasks, or one joint stage. `items` has the scores in [0, 1]
    of task i's test examples after stage j, under (i, j). Both count from 0; stage -1 is before
    training. `mixed` names tasks that were scored on other test examples at first: then BWT, FWT
    and forgetting, which compare early scores with late ones, are None. `missing` has the cells
    whose test examples were not at hand: they are left out, and BWT that needs one is None.
    """

    tasks: tuple[str, ...]
    stages: tuple[str, ...]
    items: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    mixed: tuple[str, ...] = ()
    missing: set[tuple[int, int]] = field(default_factory=set)

    def __getitem__(self, index: tuple[int, int]) -> float | None:
        """Return a[i, j] in percent, or None if task i was not scored after stage j."""
        scores = self.items.get(index)
        return None if scores is None else 100 * fmean(scores)

    def rows(self) -> list[list[float | None]]:
        """Return K rows (tasks) of one number for each stage; None was not measured."""
        table: list[list[float | None]] = []
        for i in range(len(self.tasks)):
            table.append([self[i, j] for j in range(len(self.stages))])
        return table

    def until(self, stage: int) -> "PerformanceMatrix":
        """Return the matrix as it was after stage `stage`; K is then the number of tasks so far."""
        if len(self.stages) != len(self.tasks):
            return self
        so_far = slice(stage + 1)
        tasks, stages = self.tasks[so_far], self.stages[so_far]
        return PerformanceMatrix(tasks, stages, self.items, self.mixed, self.missing)

    def scored(self) -> list[int]:
        """Return the tasks that were scored after the last stage: all whose test examples were at
        hand."""
        last = len(self.stages) - 1
        return [i for i in range(len(self.tasks)) if (i, last) not in self.missing]

    def overall(self) -> float:
        """Return OP = 1/K sum_i a[i, K], the mean of the last column; K counts scored tasks."""
        last = len(self.stages) - 1
        return fmean(100 * fmean(self.items[i, last]) for i in self.scored())

    def backward_transfer(self) -> float | None:
        """Return BWT = 1/(K-1) sum_{i<K} (a[i, K] - a[i, i]); negative means forgetting.

        It is None for joint training, for K = 1, and where test examples changed or are missing.
        """
        changes = self._since(lambda i: 100 * fmean(self.items[i, i]))
        return fmean(changes) if changes else None

    def forgetting(self) -> float | None:
        """Return 1/(K-1) sum_{i<K} (max_{i<=j<K} a[i, j] - a[i, K]) (Chaudhry et al. 2018)."""
        last = len(self.stages) - 1

        def best(i: int) -> float:
            stages = [j for j in range(i, last) if (i, j) not in self.missing]
            return max(100 * fmean(self.items[i, j]) for j in stages)

        losses = self._since(best)
        return -fmean(losses) if losses else None

    def _since(self, reference: Callable[[int], float]) -> list[float]:
        """Return a[i, K] - reference(i) for all tasks but the last; nothing for joint training, and
        where test examples changed or are missing."""
        if len(self.stages) != len(self.tasks) or self.mixed:
            return []
        last = len(self.stages) - 1
        if self.missing & {(i, j) for i in range(last) for j in (i, last)}:
            return []
        return [100 * fmean(self.items[i, last]) - reference(i) for i in range(last)]

    def forward_transfer(self) -> float | None:
        """Return FWT = 1/(K-1) sum_{i>1} (a[i, i-1] - a[i, 0]) (Lopez-Paz and Ranzato 2017).

        That is what earlier tasks give to a task not yet learned. It is None unless these scores
        were measured.
        """
        gains: list[float] = []
        for i in range(1, len(self.tasks)):
            if self.mixed or (i, i - 1) not in self.items or (i, -1) not in self.items:
                return None
            gains.append(100 * (fmean(self.items[i, i - 1]) - fmean(self.items[i, -1])))
        return fmean(gains) if gains else None


def scores_after(matrix: PerformanceMatrix, stage: int) -> dict[str, float | None]:
    """Return what is known when a stage is over, in percent: scores, and OP and BWT so far."""
    so_far = matrix.until(stage)
    scores = {f"acc/{name}": so_far[i, stage] for i, name in enumerate(so_far.tasks)}
    op = so_far.overall() if so_far.scored() else None
    return {**scores, "op": op, "bwt": so_far.backward_transfer()}
