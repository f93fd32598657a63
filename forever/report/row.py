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
from forever.stats.sequential import Decision, Score, decide, paired, score_of
from forever.stats.verdict import Footing, Verdict, footing, replayed, verdict
from forever.sweeps.parts import Published
from forever.sweeps.published import agreement
from forever.sweeps.sweep import BOUNDS


@dataclass(frozen=True, eq=False)
class Row:
    """What is known of one variant; `rows_of` makes it whole."""

    variant: str
    planned: Sequence[Run]
    reference: str | None = None  # the variant that it is compared with; a reference has itself
    paper_variant: str = ""  # its name in the paper
    # The paper's numbers, and what they are less those of its reference.
    published: Mapping[str, float | None] | None = None
    comparison: Comparison | None = None  # None if no run is finished
    footing: Footing = Footing()  # the dose at which it is compared with its reference
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
        if self.comparison is None or self.published is None or not self.same_setting:
            return None
        return self.comparison.op.value - (self.published["op"] or 0.0)

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


def rows_of(
    planned: Mapping[str, Sequence[Run]],
    reference: str | None,
    references: Mapping[str, str],
    paper_names: Mapping[str, str],
    published: Callable[[str], Published | None],
    stopping: Mapping[str, Any] | None,
) -> list[Row]:
    """Compares the variants on one benchmark.

    Args:
        planned: the runs of each variant.
        reference: the variant that the others are compared with but those in `references`.
        published: gives the paper's numbers of a variant, by its name in the paper.
        stopping: the rule of a sweep in rounds.

    Returns:
        A row a variant, in their order, bounds last.
    """
    rows: dict[str, Row] = {}
    for variant, runs in planned.items():
        other = references.get(variant, reference)
        name = paper_names.get(variant, variant)
        base = None if other in (None, variant) else published(paper_names.get(other, other))
        rows[variant] = Row(variant, runs, other, name, _beside(published(name), base))
    # Bounds are not judged, unless nothing lies between them; nor is what replays another dose.
    measured = [row for row in rows.values() if row.runs]
    bounds = [r.variant for r in measured if r.methods <= BOUNDS and r.variant != reference]
    if len(bounds) == len(rows):
        bounds = []
    footings: dict[str, Footing] = {}
    for row in measured:
        other = rows.get(row.reference or "")
        if other is None or other is row or not other.runs:
            footings[row.variant] = Footing()
        else:
            footings[row.variant] = row.footing_beside(other)
    refused = [variant for variant, footing in footings.items() if not footing.comparable]
    matrices = {row.variant: row.matrices() for row in measured}
    others = {row.variant: row.reference or "" for row in measured}
    compared = compare(matrices, reference, outside=bounds + refused, references=others)
    tuned = [compared[row.variant] for row in measured if row.methods == {"finetune"}]
    for row in measured:
        ours, footing, decided = compared[row.variant], footings[row.variant], ""
        if not footing.comparable:
            ours = replace(ours, verdict="not comparable")
        # The bootstrap holds for a number of seeds that was fixed before: where seeds were added
        # in rounds, their rule decides.
        if stopping is not None and ours.verdict is not None and ours.difference is not None:
            alpha, points = stopping["alpha"] / stopping["comparisons"], stopping["points"]
            values, step = row.differences(rows[row.reference or ""])
            decision = decide(values, alpha, points, step)
            difference, verdict = decided_difference(decision, ours.difference)
            if not footing.comparable:
                decision, verdict = replace(decision, verdict="not comparable"), ours.verdict
            ours = replace(ours, difference=difference, verdict=verdict, p=None, p_holm=None)
            decided = decision.words(points)
        idle = False
        if tuned and row.methods != {"finetune"}:
            idle = (ours.op, ours.bwt) == (tuned[0].op, tuned[0].bwt)
        rows[row.variant] = replace(row, comparison=ours, footing=footing, decided=decided,
                                    bound=row.variant in bounds, idle=idle)  # fmt: skip
    return sorted(rows.values(), key=lambda row: row.bound)


def _beside(ours: Published | None, base: Published | None) -> dict[str, float | None] | None:
    """Gives the paper's numbers of a variant, and what they are less those of its reference."""
    if ours is None:
        return None
    difference = bwt_difference = None
    if base is not None:
        difference = ours.op - base.op
        if ours.bwt is not None and base.bwt is not None:
            bwt_difference = ours.bwt - base.bwt
    numbers = {"op": ours.op, "bwt": ours.bwt}
    return {**numbers, "difference": difference, "bwt_difference": bwt_difference}
