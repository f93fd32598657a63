"""What is known of a variant from its runs: a row of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix
from forever.report.bootstrap import Unit
from forever.report.run import BOUNDS, Run
from forever.report.statistics import Comparison, compare
from forever.sweeps.parts import Published
from forever.sweeps.published import agreement


@dataclass(frozen=True)
class Row:
    """What is known of one variant.

    Attributes:
        runs: the finished ones.
        planned: how many runs there should be.
        stopped: how many runs a search stopped early.
        bound: whether it is a bound for the others rather than one of them.
        comparison: None if no run is finished.
        reference: the variant that it is compared with; a reference has itself.
        paper: the row of the paper's table, if there is one.
        paper_reference: that of its reference.
        paper_variant: its name in the paper.
        idle: whether it ends as fine-tuning does, to the last digit: a method that did nothing of
            its own, such as SSR when it writes no usable row.
    """

    variant: str
    runs: Sequence[Run] = ()
    planned: int = 0
    stopped: int = 0
    bound: bool = False
    comparison: Comparison | None = None
    reference: str | None = None
    paper: Published | None = None
    paper_reference: Published | None = None
    paper_variant: str = ""
    idle: bool = False

    @property
    def results(self) -> list[Mapping[str, Any]]:
        return [run.outcome for run in self.runs]

    def mean(self, value: Callable[[Run], float | None]) -> float | None:
        """The mean over the finished runs; None unless all of them have the value."""
        values = [value(run) for run in self.runs]
        measured = [value for value in values if value is not None]
        return fmean(measured) if measured and len(measured) == len(values) else None

    def compared(self, field: str) -> Any:
        """A field of the comparison; None if there is none."""
        return getattr(self.comparison, field, None)

    @property
    def published(self) -> dict[str, float | None] | None:
        """The paper's numbers, and what they are less those of its reference."""
        if self.paper is None:
            return None
        numbers = {"op": self.paper.op, "bwt": self.paper.bwt}
        numbers |= {"difference": None, "bwt_difference": None}
        base = self.paper_reference
        if base is not None and self.reference != self.variant:
            numbers["difference"] = self.paper.op - base.op
            if self.paper.bwt is not None and base.bwt is not None:
                numbers["bwt_difference"] = self.paper.bwt - base.bwt
        return numbers

    @property
    def agreement(self) -> str:
        """Whether the verdict agrees with the published difference; "" if there is nothing to
        compare."""
        difference = self.compared("difference")
        if self.idle or difference is None or self.published is None:
            return ""
        verdict = self.compared("verdict")
        return agreement(self.published["difference"], verdict, difference.low, difference.high)

    @property
    def same_setting(self) -> bool:
        return all(run.as_in_the_paper for run in self.runs)

    @property
    def apart(self) -> float | None:
        """By how much OP differs from the published one, where the runs are the paper's."""
        if self.comparison is None or self.paper is None or not self.same_setting:
            return None
        return self.comparison.op.value - self.paper.op

    @property
    def gpu_hours(self) -> float | None:
        """Hours of GPUs a run; None on CPUs."""
        if not all(run.environments and run.environments[0].get("gpus") for run in self.runs):
            return None
        return self.mean(lambda run: run.seconds * run.outcome.get("world_size", 1) / 3600)


def build_rows(
    runs: Sequence[Run],
    reference: str | None,
    references: Mapping[str, str],
    paper: Mapping[str, str],
    published: Callable[[str], Published | None],
) -> list[Row]:
    """All variants of some runs on one benchmark, in their order, bounds last.

    Args:
        reference: the variant that the others are compared with.
        references: for variants that are compared with another one, which.
        paper: the names of variants in the paper, where they have others.
        published: gives a variant's row of the paper's table.
    """
    planned: dict[str, list[Run]] = {}
    finished: dict[str, list[Run]] = {}
    methods: dict[str, set[str]] = {}
    for run in runs:
        planned.setdefault(run.variant, []).append(run)
        done = finished.setdefault(run.variant, [])
        if run.result is not None:
            done.append(run)
            methods.setdefault(run.variant, set()).add(run.outcome["method"])
    bounds = {name for name in methods if name != reference and methods[name].issubset(BOUNDS)}
    if len(bounds) == len(finished):  # nothing lies between them
        bounds = set()
    matrices = {name: _matrices(done) for name, done in finished.items()}
    compared = compare(matrices, reference, outside=bounds, references=references)
    tuned = [name for name in methods if methods[name] == {"finetune"}]
    plain = compared[tuned[0]] if tuned else None
    rows: list[Row] = []
    for name, done in finished.items():
        other, ours = references.get(name, reference), compared.get(name)
        same = ours and plain and (ours.op, ours.bwt) == (plain.op, plain.bwt)
        row = Row(
            variant=name,
            runs=done,
            planned=len(planned[name]),
            stopped=sum(run.state == "stopped early" for run in planned[name]),
            bound=name in bounds,
            comparison=ours,
            reference=other,
            paper=published(name),
            paper_reference=published(other) if other else None,
            paper_variant=paper.get(name, name),
            idle=bool(same) and name not in tuned,
        )
        rows.append(row)
    return sorted(rows, key=lambda row: row.bound)


def _matrices(runs: Sequence[Run]) -> dict[Unit, PerformanceMatrix]:
    by_unit: dict[Unit, Run] = {}
    for run in runs:
        twin = by_unit.setdefault(run.unit, run)
        if twin is not run:
            raise InputError(
                f"{twin.directory.path} and {run.directory.path} hold the same run; "
                "keep one of them"
            )
    return {unit: run.matrix for unit, run in by_unit.items()}
