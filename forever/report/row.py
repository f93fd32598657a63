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
        return getattr(self.comparison, field) if self.comparison else None

    @property
    def published(self) -> dict[str, float | None] | None:
        """The paper's numbers, and what they are less those of its reference."""
        if self.paper is None:
            return None
        paper, base = self.paper, self.paper_reference
        difference = bwt_difference = None
        if base is not None and self.reference != self.variant:
            difference = paper.op - base.op
            if paper.bwt is not None and base.bwt is not None:
                bwt_difference = paper.bwt - base.bwt
        return {
            "op": paper.op,
            "bwt": paper.bwt,
            "difference": difference,
            "bwt_difference": bwt_difference,
        }

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

    def events(self, kind: str) -> float | None:
        """How many events of a kind a run has."""
        return self.mean(
            lambda run: sum(task.get(kind, 0) for task in run.outcome["events"].values())
        )

    @property
    def gpu_hours(self) -> float | None:
        """Hours of GPUs a run; None on CPUs."""
        if not all(run.environments and run.environments[0].get("gpus") for run in self.runs):
            return None
        return self.mean(lambda run: seconds_of(run) * run.outcome.get("world_size", 1) / 3600)


def seconds_of(run: Run) -> float:
    return sum(run.outcome["seconds"].values())


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
    finished: dict[str, list[Run]] = {run.variant: [] for run in runs}
    for run in runs:
        if run.result is not None:
            finished[run.variant].append(run)
    bounds = _bounds(finished, reference)
    matrices = {name: _matrices(done) for name, done in finished.items()}
    compared = compare(matrices, reference, outside=bounds, references=references)
    rows: list[Row] = []
    for name, done in finished.items():
        planned = [run for run in runs if run.variant == name]
        other = references.get(name, reference)
        rows.append(
            Row(
                variant=name,
                runs=done,
                planned=len(planned),
                stopped=sum(run.state == "stopped early" for run in planned),
                bound=name in bounds,
                comparison=compared.get(name),
                reference=other,
                paper=published(name),
                paper_reference=published(other) if other else None,
                paper_variant=paper.get(name, name),
                idle=_is_idle(name, finished, compared),
            )
        )
    return sorted(rows, key=lambda row: row.bound)


def _bounds(finished: Mapping[str, Sequence[Run]], reference: str | None) -> list[str]:
    bounds: list[str] = []
    for name, runs in finished.items():
        methods = {run.outcome["method"] for run in runs}
        if methods and methods.issubset(BOUNDS) and name != reference:
            bounds.append(name)
    only_bounds = len(bounds) == len(finished)  # nothing lies between them
    return [] if only_bounds else bounds


def _is_idle(
    name: str, finished: Mapping[str, Sequence[Run]], compared: Mapping[str, Comparison]
) -> bool:
    """Whether a variant is not fine-tuning and ends as the first that is."""
    if not finished[name] or finished[name][0].outcome["method"] == "finetune":
        return False
    for other, runs in finished.items():
        if runs and runs[0].outcome["method"] == "finetune":
            ours, plain = compared[name], compared[other]
            return (ours.op, ours.bwt) == (plain.op, plain.bwt)
    return False


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
