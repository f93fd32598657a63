"""What is known of a variant from its runs: a row of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix
from forever.report.run import Run
from forever.stats.bootstrap import Estimate, Unit
from forever.stats.compare import Comparison, compare
from forever.stats.sequential import Decision, Score, paired, score_of
from forever.stats.verdict import Footing, Verdict, footing, replayed, verdict
from forever.sweeps.parts import Published
from forever.sweeps.published import agreement
from forever.sweeps.sweep import BOUNDS


@dataclass(eq=False)
class Row:
    """What is known of one variant. The last fields are what `judge` and `stop` say."""

    variant: str
    planned: Sequence[Run]
    reference: str | None = None  # the variant that it is compared with; a reference has itself
    paper_variant: str = ""  # its name in the paper
    paper: Published | None = None  # its row of the paper's table
    paper_reference: Published | None = None  # that of its reference
    comparison: Comparison | None = None  # None if no run is finished
    footing: Footing = Footing()  # on what it is compared with its reference
    bound: bool = False  # whether it is a bound for the others rather than one of them
    # Whether it ends as fine-tuning does, to the last digit: a method that did nothing of its own,
    # such as SSR when it writes no usable row.
    idle: bool = False
    decided: str = ""  # the decision of a sweep in rounds, in words

    @cached_property
    def runs(self) -> list[Run]:
        """The finished ones."""
        return [run for run in self.planned if run.result is not None]

    @property
    def results(self) -> list[Mapping[str, Any]]:
        return [run.outcome for run in self.runs]

    @property
    def methods(self) -> set[str]:
        return {result["method"] for result in self.results}

    def differences(self, reference: Row) -> tuple[list[float], float]:
        """Less the reference, for each seed with which both finished in all orders that the
        reference has; and what an answer is worth (forever/sweeps/rounds.py)."""
        orders = {run.order for run in reference.planned}
        own = {run.unit: run.outcome for run in self.runs}
        by_seed: dict[int, list[Run]] = {}
        for run in reference.runs:
            by_seed.setdefault(run.seed, []).append(run)
        scores: dict[int, Score] = {}
        base: dict[int, Score] = {}
        for seed, theirs in by_seed.items():
            twins = [own[run.unit] for run in theirs if run.unit in own]
            if len(twins) == len(theirs) and {run.order for run in theirs} == orders:
                scores[seed] = score_of(twins)
                base[seed] = score_of([run.outcome for run in theirs])
        return paired(scores, base)

    def footing_beside(self, reference: Row) -> Footing:
        """On what the runs that both have are compared."""
        theirs = {run.unit: run for run in reference.runs}
        pairs = [(run, theirs[run.unit]) for run in self.runs if run.unit in theirs]
        if not pairs:
            return Footing()
        doses = [replayed(run.outcome) for run, _ in pairs]
        others = [replayed(run.outcome) for _, run in pairs]
        return footing(self.runs[0].settings, reference.runs[0].settings, doses, others)

    def stop(self, decision: Decision, points: float | None) -> None:
        """Put what a sweep in rounds decided in the place of what the bootstrap says: that holds
        for a number of seeds that was fixed before."""
        assert self.comparison is not None
        assert self.comparison.difference is not None
        difference, judged = decided_difference(decision, self.comparison.difference)
        self.comparison.difference = difference
        self.comparison.p = self.comparison.p_holm = None
        if self.footing.comparable:
            self.comparison.verdict = judged
        else:
            decision = replace(decision, verdict="not comparable")
        self.decided = decision.words(points)

    @property
    def source(self) -> str:
        """The folder that it is from, where several are compared."""
        return self.planned[0].source

    @property
    def budget(self) -> str:
        """Whether the runs replayed their budget of examples; the worst of them counts."""
        marks = {result.get("budget") for result in self.results}
        for mark in ("over", "under", "exact"):
            if mark in marks:
                return mark
        return ""

    @property
    def degenerate(self) -> bool:
        """Whether it has days on which to replay, and fewer than half of them came: of those that
        come in updates of equal length, or of all where none of those does. A budget may be spent
        by the first event of a task, and so no other is awaited there."""
        days = self.runs[0].settings.get("method.days") if self.runs else None
        if days in (None, "end_only", "equal", []):
            return False
        scheduled = came = 0
        for run in self.runs:
            came += run.events_of("replay")
            has_budget = run.outcome.get("budget") is not None
            for note in run.outcome["notes"].values():
                days_of_task = note.get("scheduled_events") or 0
                scheduled += min(days_of_task, 1) if has_budget else days_of_task
        return came < max(scheduled, 1) / 2

    def mean(self, value: Callable[[Run], float | None]) -> float | None:
        """The mean over the finished runs; None unless all of them have the value."""
        values: list[float] = []
        for run in self.runs:
            measured = value(run)
            if measured is None:
                return None
            values.append(measured)
        return fmean(values) if values else None

    def compared(self, field: str) -> Any:
        """A field of the comparison; None if there is none."""
        return getattr(self.comparison, field, None)

    @property
    def published(self) -> dict[str, float | None] | None:
        """The paper's numbers, and what they are less those of its reference."""
        if self.paper is None:
            return None
        base = None if self.reference == self.variant else self.paper_reference
        difference = bwt_difference = None
        if base is not None:
            difference = self.paper.op - base.op
            if self.paper.bwt is not None and base.bwt is not None:
                bwt_difference = self.paper.bwt - base.bwt
        numbers = {"op": self.paper.op, "bwt": self.paper.bwt}
        return {**numbers, "difference": difference, "bwt_difference": bwt_difference}

    @property
    def agreement(self) -> str:
        """Whether the verdict agrees with the published difference, where there is one."""
        if self.idle:
            return "did as finetune"
        difference = self.compared("difference")
        if difference is None or self.published is None:
            return ""
        judged = self.compared("verdict")
        return agreement(self.published["difference"], judged, difference.low, difference.high)

    @property
    def same_setting(self) -> bool:
        return all(run.as_in_the_paper for run in self.runs)

    @property
    def apart(self) -> float | None:
        """By how much OP differs from the published one, where the runs are the paper's."""
        if self.comparison is None or self.paper is None or not self.same_setting:
            return None
        return self.comparison.op.value - self.paper.op

    def matrices(self) -> dict[Unit, PerformanceMatrix]:
        """The performance matrices of the finished runs, by what pairs a run with others."""
        by_unit: dict[Unit, Run] = {}
        for run in self.runs:
            twin = by_unit.setdefault(run.unit, run)
            if twin is not run:
                raise InputError(
                    f"{twin.directory.path} and {run.directory.path} hold the same run; "
                    "keep one of them"
                )
        return {unit: run.matrix for unit, run in by_unit.items()}


def decided_difference(decision: Decision, bootstrapped: Estimate) -> tuple[Estimate, Verdict]:
    """The difference and the verdict that a sweep in rounds has decided on."""
    # There may be runs that pair and no seed that does so in all orders.
    value = decision.value if decision.seeds else bootstrapped.value
    low, high = -100.0, 100.0
    if decision.half_width is not None:
        low, high = max(value - decision.half_width, low), min(value + decision.half_width, high)
    shown = decision.verdict in ("win", "loss")
    return Estimate(value, low, high, decision.seeds), verdict(value, low, high, shown)


def judge(rows: Sequence[Row], reference: str | None) -> list[Row]:
    """Put variants on one benchmark beside each other.

    Returns:
        The same rows with their comparisons, in their order, bounds last.
    """
    measured = [row for row in rows if row.runs]
    bounds: list[str] = []
    matrices: dict[str, dict[Unit, PerformanceMatrix]] = {}
    references: dict[str, str] = {}
    for row in measured:
        matrices[row.variant] = row.matrices()
        references[row.variant] = row.reference or ""
        if row.methods <= BOUNDS and row.variant != reference:
            bounds.append(row.variant)
    if len(bounds) == len(rows):  # nothing lies between them
        bounds = []
    refused = stand(measured)
    compared = compare(matrices, reference, outside=bounds + refused, references=references)
    tuned = [compared[row.variant] for row in measured if row.methods == {"finetune"}]
    for row in measured:
        ours = row.comparison = compared[row.variant]
        row.bound = row.variant in bounds
        if row.variant in refused:
            ours.verdict = "not comparable"
        if tuned and row.methods != {"finetune"}:
            row.idle = (ours.op, ours.bwt) == (tuned[0].op, tuned[0].bwt)
    return sorted(rows, key=lambda row: row.bound)


def stand(rows: Sequence[Row]) -> list[str]:
    """Say of each row on what it is compared, and return those that get no verdict for it."""
    by_variant = {row.variant: row for row in rows}
    refused: list[str] = []
    for row in rows:
        if row.reference in by_variant and row.reference != row.variant:
            row.footing = row.footing_beside(by_variant[row.reference])
        if not row.footing.comparable:
            refused.append(row.variant)
    return refused
