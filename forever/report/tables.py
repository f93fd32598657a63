"""The tables of a report for the console, for notebooks, and as Markdown, LaTeX or CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from forever.errors import InputError
from forever.files import write_text
from forever.report.effects import effects_table
from forever.report.facts import cautions, notes
from forever.report.format import markdown_table
from forever.report.frame import frame_of, stored_rows, text_table
from forever.report.joined import folder_table, warnings
from forever.report.study import Study
from forever.text import Page, PlainTable, html, latex, spreadsheet
from forever.text import markdown as as_markdown

_COSTS = ("replays", "replayed", "padded", "budget", "s")


def console_tables(study: Study) -> Page:
    """Tabulates the comparison for the console, benchmark by benchmark."""
    page = Page(apart=False)
    if study.folders:
        known = folder_table(study)
        records = known.to_dict("records")
        page.add("folders", _console_table(known, "folders", "\n".join(warnings(study)), records))
    for part in study.parts:
        frame: Any = frame_of(part.rows)
        texts = text_table(frame, "console")
        if study.reference and not study.others and not study.folders:
            # With several references the full report says which is whose.
            texts = texts.rename(columns={"Δ OP": f"Δ OP to {study.reference}"})
        if study.folders:  # folders need the room; the report has the costs
            texts = texts.drop(columns=[*_COSTS], errors="ignore")
        title = f"{study.name} · {part.benchmark}" if part.several else study.name
        caption = " ".join([*notes(part), "Replays: mid-task + end of task.", *cautions(part)])
        page.add(part.benchmark, _console_table(texts, title, caption, stored_rows(frame)))
        effects = effects_table(part)
        if len(effects):
            table = _console_table(effects, "main effects", "", effects.to_dict("records"))
            page.add(f"{part.benchmark}, main effects", table)
        decided: Any = frame[frame["decided"] != ""]
        if len(decided):
            table = _console_table(
                text_table(decided, "decided"), "decided", "", stored_rows(frame)
            )
            page.add(f"{part.benchmark}, decided", table)
    return page


def _console_table(
    texts: pd.DataFrame, title: str, caption: str, records: Sequence[Mapping[str, Any]]
) -> PlainTable:
    """Makes a table for the console; `records` are its rows for programs, found by the first
    column."""
    of_row = {next(iter(record.values())): record for record in records}
    table = PlainTable(title=title, caption=caption, collapse_padding=True)
    for name in texts.columns:
        table.add_column(name, justify="right")
    table.columns[0].justify = "left"
    for cells in texts.itertuples(index=False):
        # The line above the bounds is not a row for programs.
        table.add_row(*cells, record=of_row.get(cells[0], {}))
    return table


def notebook_table(table: pd.DataFrame, caption: str) -> str:
    """Writes a table and a line below it as HTML for a notebook; names in it are text."""
    rows = table.to_html(border=0, na_rep="", float_format="{:.1f}".format)
    return f"{rows}\n<p>{html(caption)}</p>"


def latex_table(table: pd.DataFrame, caption: str = "") -> str:
    """Writes a float for LaTeX, which needs the package booktabs."""
    style: Any = table.style.hide(axis="index").format(latex).format_index(latex, axis=1)
    columns = "l" + "r" * (len(table.columns) - 1)
    place: Any = {"position_float": "centering", "column_format": columns}
    return style.to_latex(hrules=True, caption=latex(caption), **place)


def markdown(table: pd.DataFrame) -> str:
    """Writes a Markdown table with its first column to the left."""
    align = [":---", *["---:"] * (len(table.columns) - 1)]
    rows = [list(map(as_markdown, row)) for row in table.itertuples(index=False)]
    return "\n".join(markdown_table(list(map(as_markdown, table.columns)), rows, align))


def csv_of(table: pd.DataFrame, **options: Any) -> str:
    """A table as CSV, in which no name of others is a formula."""

    def cell(value: Any) -> Any:
        return spreadsheet(value) if isinstance(value, str) else value

    return table.map(cell).rename(columns=cell).to_csv(index=False, **options)


def write_tables(study: Study, path: Path) -> None:
    """Writes the tables of scores and costs, one of each a benchmark, in the format of the suffix:
    .md, .tex or .csv.

    Raises:
        InputError: the suffix is another one.
    """
    if path.suffix not in (".md", ".tex", ".csv"):
        raise InputError(f"--table {path}: give a file that ends in .md, .tex or .csv")
    texts: list[str] = []
    for part in study.parts:
        title = f"{study.name} · {part.benchmark}" if part.several else study.name
        for kind in ("scores", "costs"):
            table = text_table(frame_of(part.rows), kind)
            if path.suffix == ".csv":
                texts.append(csv_of(table))
            elif path.suffix == ".tex":
                texts.append(latex_table(table, f"{title}: {kind}"))
            else:
                texts.append(f"{as_markdown(title)}: {kind}\n\n{markdown(table)}\n")
    write_text(path, "\n".join(texts))
