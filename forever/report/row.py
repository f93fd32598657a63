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
from forever.stats.sequential import Score, caution, decide, half_width, paired, score_of
from forever.stats.verdict import DoseGap, dose_gap, nothing_to_forget, replayed, verdict
from forever.sweeps.parts import Published
from forever.sweeps.published import EQUAL, agreement
from forever.sweeps.sweep import BOUNDS


@dataclass(frozen=True, eq=False)
class Row:
    """What is known of one variant on one benchmark."""

    planned: Sequence[Run]
    # The paper's numbers, and what they are less those of its reference.
    published: Mapping[str, float | None] | None = None
    comparison: Comparison | None = None  # None if no run is finished
    dose_gap: DoseGap = DoseGap()  # to its reference
    bound: bool = False  # whether it is a bound for the others rather than one of them
    # Whether it ends as fine-tuning does, to the last digit: a method that did nothing of its own,
    # such as SSR when it writes no usable example.
    idle: bool = False
    nothing_to_forget: bool = False  # since fine-tuning with the same reference forgot nothing
    decided: str = ""  # the decision of a sweep in rounds, in words

    @property
    def variant(self) -> str:
        return self.planned[0].variant

    @property
    def reference(self) -> str | None:
        return self.planned[0].reference

    @cached_property
    def runs(self) -> list[Run]:
        return finished(self.planned)

    @property
    def results(self) -> list[Mapping[str, Any]]:
        return [run.outcome for run in self.runs]

    @property
    def budget(self) -> str:
        """Whether the runs replayed their budget of examples; the worst of them counts."""
        marks = {result.get("budget") for result in self.results}
        return next((mark for mark in ("over", "under", "exact") if mark in marks), "")

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
        values = [number for number in map(value, self.runs) if number is not None]
        return fmean(values) if values and len(values) == len(self.runs) else None

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
    def ratio(self) -> float | None:
        """Our difference over the published one, where the verdict agrees with that; it does so by
        its sign."""
        published = (self.published or {}).get("difference") or 0.0
        if self.agreement != "agrees" or abs(published) < EQUAL:
            return None
        return self.compared("difference").value / published

    @property
    def same_setting(self) -> bool:
        return all(run.as_in_the_paper for run in self.runs)

    @property
    def apart(self) -> float | None:
        """By how much OP differs from the published one, where the runs are the paper's."""
        if self.comparison is None or self.published is None or not self.same_setting:
            return None
        return self.comparison.op.value - (self.published["op"] or 0.0)


def rows_of(
    runs: Sequence[Run],
    reference: str | None,
    published: Callable[[str], Published | None],
    stopping: Mapping[str, Any] | None,
) -> list[Row]:
    """Compares the variants on one benchmark.

    Args:
        reference: the study's; a run may be compared with another variant.
        published: gives the paper's numbers of a variant, by its name in the paper.
        stopping: the rule of a sweep in rounds.

    Returns:
        A row a variant, in their order, bounds last.
    """
    planned: dict[str, list[Run]] = {}
    for run in runs:
        planned.setdefault(run.variant, []).append(run)
    others = {variant: group[0].reference or variant for variant, group in planned.items()}
    measured = {variant: finished(group) for variant, group in planned.items()}
    measured = {variant: group for variant, group in measured.items() if group}
    # Bounds are not judged, unless nothing lies between them; nor is what replays another dose.
    methods = {name: {run.outcome["method"] for run in group} for name, group in measured.items()}
    bounds = [name for name in measured if methods[name] <= BOUNDS and name != reference]
    if len(bounds) == len(planned):
        bounds = []
    gaps: dict[str, DoseGap] = {}
    for name, group in measured.items():
        base = [] if others[name] == name else measured.get(others[name], [])
        gaps[name] = dose_gap_of(group, base)
    refused = [name for name, gap in gaps.items() if not gap.comparable]
    matrices = {name: matrices_of(group) for name, group in measured.items()}
    compared = compare(matrices, reference, outside=bounds + refused, references=others)
    tuned = {name: compared[name] for name in measured if methods[name] == {"finetune"}}
    rows: list[Row] = []
    for name, group in planned.items():
        other = planned.get(others[name], []) if others[name] != name else []
        base = published(other[0].paper_variant) if other else None
        row = Row(group, _beside(published(group[0].paper_variant), base))
        if name in measured:
            ours, decided = compared[name], ""
            if name in refused:
                ours = replace(ours, verdict="not comparable")
            if stopping is not None and ours.verdict is not None:
                ours, decided = in_rounds(ours, measured[name], other, stopping)
            elif ours.verdict not in (None, "not comparable"):
                values, step = seed_differences(measured[name], other)
                decided_by = 0 if ours.verdict == "tie" else len(values)
                ours = replace(ours, caution=caution(values, step, decided_by))
            idle = bool(tuned) and methods[name] != {"finetune"}
            first = next(iter(tuned.values()), ours)
            idle = idle and (ours.op, ours.bwt) == (first.op, first.bwt)
            # Fine-tuning of the same settings has the same reference, or is it.
            alike = [each for twin, each in tuned.items() if others[twin] == others[name]]
            bwts = [each.bwt for each in alike or tuned.values()]
            nothing = nothing_to_forget([bwt.value for bwt in bwts if bwt])
            about = gaps[name], name in bounds, idle, nothing, decided
            row = Row(group, row.published, ours, *about)
        rows.append(row)
    return sorted(rows, key=lambda row: row.bound)


def finished(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.result is not None]


def matrices_of(runs: Sequence[Run]) -> dict[Unit, PerformanceMatrix]:
    """The performance matrices of finished runs, by what pairs a run with others."""
    by_unit: dict[Unit, Run] = {}
    for run in runs:
        twin = by_unit.setdefault(run.unit, run)
        if twin is not run:
            raise InputError(
                f"{twin.directory.path} and {run.directory.path} hold the same run; "
                "keep one of them"
            )
    return {unit: run.matrix for unit, run in by_unit.items()}


def dose_gap_of(runs: Sequence[Run], base: Sequence[Run]) -> DoseGap:
    """The gap between the doses of a variant's finished runs and its reference's, where both have
    the run."""
    theirs = {run.unit: run for run in base}
    pairs = [(run, theirs[run.unit]) for run in runs if run.unit in theirs]
    if not pairs:
        return DoseGap()
    doses = [replayed(run.outcome) for run, _ in pairs]
    others = [replayed(run.outcome) for _, run in pairs]
    return dose_gap(runs[0].settings, base[0].settings, doses, others)


def seed_differences(runs: Sequence[Run], base: Sequence[Run]) -> tuple[list[float], float]:
    """The differences in OP between a variant's finished `runs` and its reference, whose planned
    runs are `base`, for each seed with which both finished in all orders that the reference has;
    and what a single answer is worth in them (forever/stats/sequential.py)."""
    orders, ours = {run.order for run in base}, {run.unit: run.outcome for run in runs}
    by_seed: dict[int, list[Run]] = {}
    for run in finished(base):
        by_seed.setdefault(run.seed, []).append(run)
    scores: dict[int, Score] = {}
    others: dict[int, Score] = {}
    for seed, theirs in by_seed.items():
        twins = [ours[run.unit] for run in theirs if run.unit in ours]
        if len(twins) == len(theirs) and {run.order for run in theirs} == orders:
            scores[seed] = score_of(twins)
            others[seed] = score_of([run.outcome for run in theirs])
    return paired(scores, others)


def in_rounds(
    comparison: Comparison, runs: Sequence[Run], base: Sequence[Run], stopping: Mapping[str, Any]
) -> tuple[Comparison, str]:
    """Puts the decision of a sweep in rounds into a comparison, also in words: the bootstrap holds
    for a number of seeds that was fixed before."""
    values, step = seed_differences(runs, base)
    alpha, points = stopping["alpha"] / stopping["comparisons"], stopping["points"]
    decision = decide(values, alpha, points, step)
    # There may be runs that pair and no seed that does so in all orders.
    value, judged = decision.value, comparison.verdict
    if comparison.difference and not decision.seeds:
        value = comparison.difference.value
    low, high = -100.0, 100.0
    if decision.half_width is not None:
        low, high = max(value - decision.half_width, low), min(value + decision.half_width, high)
    reason = ""
    if judged == "not comparable":
        decision = replace(decision, verdict=judged)
    else:
        judged = verdict(value, low, high, shown=decision.verdict in ("win", "loss"))
        reason = caution(values, step, decision.seeds if decision.verdict != "tie" else 0)
    difference = Estimate(value, low, high, decision.seeds)
    changed = replace(comparison, difference=difference, verdict=judged, p=None, p_holm=None)
    # The sequence holds after the decision, too, where the mean is no longer one that stopped it.
    if values:
        mean, half = fmean(values), half_width(values, alpha, step)
        low, high = max(mean - half, -100.0), min(mean + half, 100.0)
        changed = replace(changed, all_seeds=Estimate(mean, low, high, len(values)))
    return replace(changed, caution=reason), decision.words(points)


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
