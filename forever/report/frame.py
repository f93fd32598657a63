"""One frame of numbers: a row a variant, a column a number.

All tables of a report (console, HTML, LaTeX, Markdown) and report.json are made of it. A new column
is one more line in COLUMNS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix
from forever.report.bootstrap import Estimate, Unit
from forever.report.format import NOTHING, estimated, mean_count, number, seconds
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
        return self.mean(lambda run: _seconds(run) * run.outcome.get("world_size", 1) / 3600)


def _seconds(run: Run) -> float:
    return sum(run.outcome["seconds"].values())


# ---- columns

Cells = Mapping[str, Any]  # a row of the frame


@dataclass(frozen=True)
class Column:
    """A column of the frame.

    Attributes:
        name: the key in the frame and in report.json.
        value: computes it from what is known of a variant.
        title: the heading; a column without one is shown nowhere.
        text: writes the cell.
        tables: the tables that show it: "scores" and "costs" (one in HTML, two in LaTeX),
            "console", "paper". A column without numbers is left out of a table.
        about: what the number is, for the note below the tables.
        stored: whether report.json has it.
        short: the heading in the console, where it is not the title.
    """

    name: str
    value: Callable[[Row], Any]
    title: str = ""
    text: Callable[[Cells], str] = lambda row: NOTHING
    tables: tuple[str, ...] = ()
    about: str = ""
    stored: bool = True
    short: str = ""


def _runs(row: Cells) -> str:
    complete = row["runs"] == row["planned"]
    return f"{row['runs']}" if complete else f"{row['runs']} of {row['planned']}"


def _op(row: Cells) -> str:
    if row["op"] is None:
        return "stopped early" if row["stopped"] == row["planned"] else "missing"
    return estimated(row["op"], "{:.1f}")


def _events(row: Cells) -> str:
    if row["replays"] is None:
        return NOTHING
    return f"{mean_count(row['replays'])} + {mean_count(row['consolidations'])}"


def _agreement(row: Cells) -> str:
    return "did as finetune" if row["idle"] else row["agreement"] or NOTHING


def _plain(name: str, form: str) -> Callable[[Cells], str]:
    """Writes a number, or an estimate without its interval."""

    def write(row: Cells) -> str:
        value = row[name]
        return number(value.value if isinstance(value, Estimate) else value, form)

    return write


def _published(name: str, form: str) -> Callable[[Cells], str]:
    return lambda row: number((row["paper"] or {}).get(name), form)


def _estimate(name: str, form: str) -> Callable[[Cells], str]:
    return lambda row: estimated(row[name], form)


def _apart(row: Row) -> float | None:
    """By how much OP differs from the published one, where the runs are the paper's."""
    if row.comparison is None or row.paper is None or not row.same_setting:
        return None
    return row.comparison.op.value - row.paper.op


_ALL = ("scores", "costs", "console", "paper")
_POINTS = "{:+.1f}"

COLUMNS = [
    Column("variant", lambda row: row.variant, "variant", lambda row: row["variant"], _ALL),
    Column("paper_variant", lambda row: row.paper_variant),
    Column("bound", lambda row: row.bound),
    Column("reference", lambda row: row.reference),
    Column("planned", lambda row: row.planned),
    Column("stopped", lambda row: row.stopped, stored=False),
    Column("idle", lambda row: row.idle),
    Column("same_setting", lambda row: row.same_setting),
    Column("runs", lambda row: len(row.runs), "runs", _runs, ("scores",)),
    Column("op", lambda row: row.compared("op"), "OP (%)", _op, ("scores", "console"),
           "mean score on all tasks at the end, in percent"),
    Column("bwt", lambda row: row.compared("bwt"), "BWT", _estimate("bwt", _POINTS), ("scores",),
           "points that tasks gained since they were learned"),
    Column("bwt_alone", lambda row: row.compared("bwt"), "BWT", _plain("bwt", _POINTS),
           ("console",), stored=False),
    Column("forgetting", lambda row: row.mean(lambda run: run.outcome["forgetting"]),
           "forgetting", _plain("forgetting", "{:.1f}"), ("scores",),
           "how far tasks end below their best, in percent"),
    Column("difference", lambda row: row.compared("difference"), "Δ OP",
           _estimate("difference", _POINTS), ("scores", "console")),
    Column("verdict", lambda row: row.compared("verdict"), "verdict",
           lambda row: row["verdict"] or "", ("scores", "console"), short=" "),
    Column("bwt_difference", lambda row: row.compared("bwt_difference"), "Δ BWT",
           _estimate("bwt_difference", _POINTS), ("scores",)),
    Column("p_holm", lambda row: row.compared("p_holm")),
    Column("resolution", lambda row: row.compared("resolution")),
    Column("replays", lambda row: row.events("replay"), "replays", _events,
           ("costs", "console"), "mid-task events + end-of-task consolidations"),
    Column("consolidations", lambda row: row.events("consolidation")),
    Column("replayed_rows", lambda row: row.mean(lambda run: run.replayed_rows), "replayed rows",
           lambda row: mean_count(row["replayed_rows"]), ("costs", "console"),
           "with those that a method mixes into its task batches", short="rows"),
    Column("updates", lambda row: row.mean(lambda run: sum(run.outcome["updates"].values())),
           "updates", lambda row: mean_count(row["updates"]), ("costs",)),
    Column("seconds", lambda row: row.mean(_seconds), "seconds",
           lambda row: seconds(row["seconds"]), ("costs", "console"), short="s"),
    Column("gpu_hours", lambda row: row.gpu_hours, "GPU-hours", _plain("gpu_hours", "{:.2f}"),
           ("costs",)),
    Column("paper", lambda row: row.published),
    Column("paper_op", lambda row: row.compared("op"), "OP", _plain("op", "{:.1f}"), ("paper",),
           stored=False),
    Column("published_op", lambda row: None, "published OP", _published("op", "{:.1f}"),
           ("paper",), stored=False),
    Column("apart", _apart, "ours less theirs", _plain("apart", _POINTS), ("paper",),
           stored=False),
    Column("paper_bwt", lambda row: None, "BWT", _plain("bwt", _POINTS), ("paper",),
           stored=False),
    Column("published_bwt", lambda row: None, "published BWT", _published("bwt", _POINTS),
           ("paper",), stored=False),
    Column("paper_difference", lambda row: None, "Δ OP", _estimate("difference", _POINTS),
           ("paper",), stored=False),
    Column("published_difference", lambda row: None, "published Δ OP",
           _published("difference", _POINTS), ("paper",), stored=False),
    Column("agreement", lambda row: row.agreement, "agreement", _agreement, ("paper",)),
    Column("paper_bwt_difference", lambda row: None, "Δ BWT",
           _plain("bwt_difference", _POINTS), ("paper",), stored=False),
    Column("published_bwt_difference", lambda row: None, "published Δ BWT",
           _published("bwt_difference", _POINTS), ("paper",), stored=False),
]  # fmt: skip


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """The frame: a row a variant, a column for each of COLUMNS; None where nothing was measured."""
    values = [[column.value(row) for column in COLUMNS] for row in rows]
    return pd.DataFrame(values, columns=[column.name for column in COLUMNS], dtype=object)


def text_table(frame: pd.DataFrame, *tables: str) -> pd.DataFrame:
    """The columns of some tables as text, under their titles, with a line above the bounds.

    A column in which no variant has anything is left out.
    """
    cells = frame.to_dict("records")
    columns: dict[str, list[str]] = {}
    for column in COLUMNS:
        if set(tables).intersection(column.tables):
            texts = [column.text(row) for row in cells]
            if set(texts) - {NOTHING, ""}:
                title = column.short if "console" in tables else ""
                columns[title or column.title] = texts
    shown = pd.DataFrame(columns, dtype=object)
    bounds = [number for number, row in enumerate(cells) if row["bound"]]
    if bounds and "paper" not in tables:
        line = pd.DataFrame([["bounds", *[""] * (len(columns) - 1)]], columns=shown.columns)
        parts = [shown.iloc[: bounds[0]], line, shown.iloc[bounds[0] :]]
        shown = pd.concat(parts, ignore_index=True)
    return shown


def stored_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The frame for report.json: estimates as `value`, `low`, `high` and `runs`."""
    names = [column.name for column in COLUMNS if column.stored]
    rows: list[dict[str, Any]] = frame.loc[:, names].to_dict("records")
    for row in rows:
        for name, value in row.items():
            if isinstance(value, Estimate):
                row[name] = asdict(value)
    return rows


# ---- rows


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
