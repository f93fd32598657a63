"""One frame of numbers: a row a variant, a column a number.

All tables of a report (console, HTML, LaTeX, Markdown) and report.json are made of it. A new column
is one more line in COLUMNS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from forever.report.bootstrap import Estimate
from forever.report.format import NOTHING, estimated, mean_count, number, seconds
from forever.report.row import Row, seconds_of

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
    Column("seconds", lambda row: row.mean(seconds_of), "seconds",
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
