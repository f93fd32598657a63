"""One frame of numbers: a row a variant, a column a number.

All tables of a report (console, HTML, LaTeX, Markdown) and report.json are made of it. A new column
is one more line in COLUMNS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pandas as pd

from forever.replay.times import day_seven
from forever.report.format import NOTHING, estimated, number
from forever.report.row import Row
from forever.report.run import Run
from forever.stats.bootstrap import Estimate
from forever.stats.verdict import word

Cells = Mapping[str, Any]  # a row of the frame


@dataclass(frozen=True)
class Column:
    """A column of the frame, under `name` there and in report.json."""

    name: str
    value: Callable[[Row], Any]
    title: str = ""
    text: str | Callable[[Cells], str] = ""  # the format of a number, or what writes the cell
    # Those that show it: "scores" and "costs" (one table in HTML, two in LaTeX), "console",
    # "paper", "decided". A column without numbers is left out of a table.
    tables: tuple[str, ...] = ()
    about: str = ""  # what the number is, for the note below the tables
    plain: tuple[str, ...] = ()  # tables that show it without its interval
    short: str = ""  # the title in the console
    stored: bool = True  # whether report.json has it

    def cell(self, row: Cells, plain: bool) -> str:
        value = row[self.name]
        if callable(self.text):
            return self.text(row)
        if isinstance(value, str):
            return value or NOTHING
        if isinstance(value, Estimate):
            return number(value.value, self.text) if plain else estimated(value, self.text)
        return number(value, self.text)


def _compared(name: str) -> Callable[[Row], Any]:
    return lambda row: row.compared(name)


def _published(name: str) -> Callable[[Row], Any]:
    return lambda row: (row.published or {}).get(name)


def _mean(value: Callable[[Run], float | None]) -> Callable[[Row], float | None]:
    return lambda row: row.mean(value)


def _events(row: Cells) -> str:
    replays = row["replays"]
    # A method that replays without events, in batches of its own or mixed into the task's.
    without_events = replays == row["consolidations"] == 0 and bool(row["replayed_rows"])
    if replays is None or without_events:
        return NOTHING
    return f"{row['replays']:,.0f} + {row['consolidations']:,.0f}"


def _folder(row: Row) -> str:
    """The folder of a variant whose name does not say it."""
    source = row.planned[0].source
    return "" if row.variant.endswith(f" ({source})") else source


def _beside(row: Row) -> str:
    """What a variant is compared with, where several folders have variants of one name."""
    return row.reference or "" if row.planned[0].source and row.reference != row.variant else ""


_SCORES, _COSTS, _PAPER, _CONSOLE = ("scores",), ("costs",), ("paper",), ("console",)
_DECIDED = ("decided",)
_SHORTLY = _SCORES + _CONSOLE
_POINTS, _COUNT = "{:+.1f}", "{:,.0f}"

COLUMNS = [
    Column("variant", attrgetter("variant"), "variant", "", _SHORTLY + _COSTS + _PAPER + _DECIDED),
    Column("paper_variant", lambda row: row.planned[0].paper_variant),
    Column("bound", attrgetter("bound")),
    Column("reference", attrgetter("reference"), "less", "", _DECIDED),
    Column("source", _folder, "folder", "", _SHORTLY, stored=False),
    Column("beside", _beside, "less", "", _SHORTLY, stored=False),
    Column("planned", lambda row: len(row.planned)),
    Column("idle", attrgetter("idle")),
    Column("degenerate", attrgetter("degenerate")),
    Column("same_setting", attrgetter("same_setting")),
    Column("nothing_to_forget", attrgetter("nothing_to_forget")),
    Column("runs", lambda row: len(row.runs), "runs",
           lambda row: f"{row['runs']} of {row['planned']}", _SCORES),
    Column("op", _compared("op"), "OP (%)", "{:.1f}", _SHORTLY,
           "mean score on all tasks at the end, in percent", plain=_PAPER),
    Column("paper", attrgetter("published")),
    Column("paper_op", _published("op"), "published OP", "{:.1f}", _PAPER, stored=False),
    Column("apart", attrgetter("apart"), "ours less theirs", _POINTS, _PAPER, stored=False),
    Column("bwt", _compared("bwt"), "BWT", _POINTS, _SCORES,
           "points that tasks gained since they were learned", plain=_PAPER + _CONSOLE),
    Column("paper_bwt", _published("bwt"), "published BWT", _POINTS, _PAPER, stored=False),
    Column("forgetting", _mean(lambda run: run.outcome["forgetting"]), "forgetting", "{:.1f}",
           _SCORES, "how far tasks end below their best, in percent"),
    Column("decided_at", lambda row: row.compared("difference").runs if row.decided else None,
           "seeds", _COUNT, _DECIDED, stored=False),
    Column("difference", _compared("difference"), "Δ OP", _POINTS, _SHORTLY + _PAPER + _DECIDED),
    Column("decided", attrgetter("decided"), "decided", "", _DECIDED),
    Column("seeds_in_all", lambda row: row.compared("all_seeds") and row.compared("all_seeds").runs,
           "all seeds", _COUNT, _DECIDED, stored=False),
    Column("all_seeds", _compared("all_seeds"), "Δ OP of all seeds", _POINTS, _DECIDED),
    Column("caution", lambda row: row.compared("caution") or ""),
    Column("paper_difference", _published("difference"), "published Δ OP", _POINTS, _PAPER,
           stored=False),
    Column("verdict", _compared("verdict"), "verdict", lambda row: word(row["verdict"]) or NOTHING,
           _SHORTLY, short=" "),
    Column("comparable", lambda row: row.dose_gap.comparable),
    Column("at_equal", lambda row: row.dose_gap.equal, "at equal", "", _SCORES,
           "examples or seconds of replay, in which variant and reference are alike"),
    Column("agreement", attrgetter("agreement"), "agreement", "", _PAPER),
    Column("ratio", attrgetter("ratio"), "ours / published", "{:.1f}", _PAPER, stored=False),
    Column("bwt_difference", _compared("bwt_difference"), "Δ BWT", _POINTS, _SCORES, plain=_PAPER),
    Column("paper_bwt_difference", _published("bwt_difference"), "published Δ BWT", _POINTS,
           _PAPER, stored=False),
    Column("p", _compared("p")),
    Column("bwt_p", _compared("bwt_p")),
    Column("p_holm", _compared("p_holm")),
    Column("resolution", _compared("resolution")),
    Column("replays", _mean(lambda run: run.events_of("replay")), "replays", _events,
           _COSTS + _CONSOLE, "mid-task events + end-of-task consolidations"),
    Column("consolidations", _mean(lambda run: run.events_of("consolidation"))),
    Column("replayed_rows", _mean(lambda run: run.examples_of("replayed")), "replayed examples",
           _COUNT, _COSTS + _CONSOLE, "with those that a method mixes into its task batches",
           short="replayed"),
    Column("padded_rows", _mean(lambda run: run.examples_of("padded") or None), "padded examples",
           _COUNT, _COSTS + _CONSOLE, "of the current task, instead of replayed ones",
           short="padded"),
    Column("budget", attrgetter("budget"), "budget", "", _COSTS + _CONSOLE,
           "whether each task replayed what its budget allows"),
    Column("day_7", lambda row: str(day_seven(row.results) or ""), "day 7", "", _COSTS,
           "the update after which the model's day 7 came, and its share of a task; median"),
    Column("updates", _mean(lambda run: sum(run.outcome["updates"].values())), "updates", _COUNT,
           _COSTS),
    Column("seconds", _mean(attrgetter("seconds")), "seconds", _COUNT, _COSTS + _CONSOLE,
           short="s"),
    Column("gpu_hours", _mean(attrgetter("gpu_hours")), "GPU-hours", "{:.2f}", _COSTS),
]  # fmt: skip


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """The frame; None where nothing was measured."""
    values = {column.name: [column.value(row) for row in rows] for column in COLUMNS}
    return pd.DataFrame(values, dtype=object)


def text_table(frame: pd.DataFrame, *tables: str) -> pd.DataFrame:
    """The columns of some tables as text, under their titles, with a line above the bounds."""
    cells = frame.to_dict("records")
    columns: dict[str, list[str]] = {}
    for column in COLUMNS:
        plain = not {*tables}.isdisjoint(column.plain)
        if plain or not {*tables}.isdisjoint(column.tables):
            texts = [column.cell(row, plain) for row in cells]
            if {*texts} != {NOTHING}:
                short = column.short if "console" in tables else ""
                columns[short or column.title] = texts
    shown: Any = pd.DataFrame(columns, dtype=object)
    bound: Any = frame["bound"].astype(bool)
    if "paper" in tables or not bound.any():
        return shown
    line = pd.DataFrame([["bounds"]], columns=shown.columns[:1])
    return pd.concat([shown[~bound], line, shown[bound]], ignore_index=True).fillna("")


def stored_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The frame for report.json, where estimates have `value`, `low`, `high` and `runs`."""
    shown: Any = frame[[column.name for column in COLUMNS if column.stored]]
    return shown.to_dict("records")


def number_table(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame in plain numbers, with the verdict as people read it: an estimate has columns of
    its own for the ends of its interval, `op_low` and `op_high` beside `op`."""
    rows: list[dict[str, Any]] = []
    for row in stored_rows(frame):
        cells: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, Estimate):
                cells |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
            elif not isinstance(value, Mapping):  # the paper's numbers have columns of their own
                cells[name] = value
        rows.append({**cells, "verdict": word(row["verdict"])})
    return pd.DataFrame(rows)
