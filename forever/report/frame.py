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
from forever.report.row import Row
from forever.report.run import Run

Cells = Mapping[str, Any]  # a row of the frame


@dataclass(frozen=True)
class Column:
    """A column of the frame.

    Attributes:
        name: the key in the frame and in report.json.
        value: computes it from what is known of a variant; None for what is only shown.
        title: the heading; a column without one is shown nowhere.
        text: writes the cell.
        tables: the tables that show it: "scores" and "costs" (one in HTML, two in LaTeX),
            "console", "paper". A column without numbers is left out of a table.
        about: what the number is, for the note below the tables.
        stored: whether report.json has it.
        short: the heading in the console, where it is not the title.
    """

    name: str
    value: Callable[[Row], Any] | None = None
    title: str = ""
    text: Callable[[Cells], str] = lambda row: NOTHING
    tables: tuple[str, ...] = ()
    about: str = ""
    stored: bool = True
    short: str = ""


def _field(name: str, *words: Any, **more: Any) -> Column:
    """A column that a row has under that name."""
    return Column(name, lambda row: getattr(row, name), *words, **more)


def _compared(name: str, *words: Any, **more: Any) -> Column:
    """A column that a row's comparison has under that name."""
    return Column(name, lambda row: row.compared(name), *words, **more)


def _mean(name: str, value: Callable[[Run], float | None], *words: Any, **more: Any) -> Column:
    """A column with the mean over the runs."""
    return Column(name, lambda row: row.mean(value), *words, **more)


def _shown(title: str, text: Callable[[Cells], str], *tables: str) -> Column:
    """A column that shows numbers of others in another way."""
    return Column(f"{title} in {tables[0]}", None, title, text, tables, stored=False)


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
    return lambda row: number(getattr(row[name], "value", row[name]), form)


def _published(name: str, form: str) -> Callable[[Cells], str]:
    return lambda row: number((row["paper"] or {}).get(name), form)


def _estimate(name: str, form: str) -> Callable[[Cells], str]:
    return lambda row: estimated(row[name], form)


_POINTS = "{:+.1f}"
_SCORES, _COSTS, _BOTH = ("scores",), ("costs",), ("costs", "console")

COLUMNS = [
    _field("variant", "variant", lambda row: row["variant"], (*_SCORES, *_BOTH, "paper")),
    *map(_field, ("paper_variant", "bound", "reference", "planned")),
    _field("stopped", stored=False),
    *map(_field, ("idle", "same_setting")),
    Column("runs", lambda row: len(row.runs), "runs", _runs, _SCORES),
    _compared("op", "OP (%)", _op, ("scores", "console"),
              "mean score on all tasks at the end, in percent"),
    _compared("bwt", "BWT", _estimate("bwt", _POINTS), _SCORES,
              "points that tasks gained since they were learned"),
    _shown("BWT", _plain("bwt", _POINTS), "console"),
    _mean("forgetting", lambda run: run.outcome["forgetting"], "forgetting",
          _plain("forgetting", "{:.1f}"), _SCORES,
          "how far tasks end below their best, in percent"),
    _compared("difference", "Δ OP", _estimate("difference", _POINTS), ("scores", "console")),
    _compared("verdict", "verdict", lambda row: row["verdict"] or "", ("scores", "console"),
              short=" "),
    _compared("bwt_difference", "Δ BWT", _estimate("bwt_difference", _POINTS), _SCORES),
    *map(_compared, ("p_holm", "resolution")),
    _mean("replays", lambda run: run.events_of("replay"), "replays", _events, _BOTH,
          "mid-task events + end-of-task consolidations"),
    _mean("consolidations", lambda run: run.events_of("consolidation")),
    _mean("replayed_rows", lambda run: run.replayed_rows, "replayed rows",
          lambda row: mean_count(row["replayed_rows"]), _BOTH,
          "with those that a method mixes into its task batches", short="rows"),
    _mean("updates", lambda run: sum(run.outcome["updates"].values()), "updates",
          lambda row: mean_count(row["updates"]), _COSTS),
    _mean("seconds", lambda run: run.seconds, "seconds", lambda row: seconds(row["seconds"]),
          _BOTH, short="s"),
    _field("gpu_hours", "GPU-hours", _plain("gpu_hours", "{:.2f}"), _COSTS),
    Column("paper", lambda row: row.published),
    _shown("OP", _plain("op", "{:.1f}"), "paper"),
    _shown("published OP", _published("op", "{:.1f}"), "paper"),
    _field("apart", "ours less theirs", _plain("apart", _POINTS), ("paper",), stored=False),
    _shown("BWT", _plain("bwt", _POINTS), "paper"),
    _shown("published BWT", _published("bwt", _POINTS), "paper"),
    _shown("Δ OP", _estimate("difference", _POINTS), "paper"),
    _shown("published Δ OP", _published("difference", _POINTS), "paper"),
    _field("agreement", "agreement", _agreement, ("paper",)),
    _shown("Δ BWT", _plain("bwt_difference", _POINTS), "paper"),
    _shown("published Δ BWT", _published("bwt_difference", _POINTS), "paper"),
]  # fmt: skip


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """The frame: a row a variant, a column for each of COLUMNS; None where nothing was measured."""
    columns = {column.name: column.value for column in COLUMNS if column.value}
    values = {name: [value(row) for row in rows] for name, value in columns.items()}
    return pd.DataFrame(values, dtype=object)


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
                short = column.short if "console" in tables else ""
                columns[short or column.title] = texts
    shown: Any = pd.DataFrame(columns, dtype=object)
    bound: Any = frame["bound"].astype(bool)
    if "paper" in tables or not bound.any():
        return shown
    line = pd.DataFrame([["bounds"]], columns=shown.columns[:1])
    return pd.concat([shown[~bound], line, shown[bound]], ignore_index=True).fillna("")


def stored_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The frame for report.json: estimates as `value`, `low`, `high` and `runs`."""
    names = [column.name for column in COLUMNS if column.stored]
    rows: list[dict[str, Any]] = []
    for cells in frame.loc[:, names].to_dict("records"):
        estimates = {k: asdict(cell) for k, cell in cells.items() if isinstance(cell, Estimate)}
        rows.append({**cells, **estimates})
    return rows
