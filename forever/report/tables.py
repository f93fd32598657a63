"""A table of texts for the console, HTML, LaTeX and Markdown."""

from __future__ import annotations

from typing import Any

import pandas as pd

from forever.format import plural
from forever.report.format import markdown_table
from forever.report.frame import frame_of, stored_rows, text_table
from forever.report.study import Part, Study
from forever.text import Page, PlainTable, html, latex
from forever.text import markdown as as_markdown


def console_tables(study: Study) -> Page:
    """The comparison as tables for the console, one a benchmark, and what was decided when."""
    page = Page(apart=False)
    for part in study.parts:
        page.add(part.benchmark, _compared(study, part))
        if part.in_rounds:
            page.add(f"{part.benchmark}, decided", _decided(part))
    return page


def _compared(study: Study, part: Part) -> PlainTable:
    frame = frame_of(part.rows)
    texts = text_table(frame, "console")
    if study.reference and not study.others:
        # With several references the full report says which is whose.
        texts = texts.rename(columns={"Δ OP": f"Δ OP to {study.reference}"})
    title = f"{study.name} · {part.benchmark}" if part.several else study.name
    return _console_table(texts, title, _caption(part), frame)


def _decided(part: Part) -> PlainTable:
    assert part.stopping is not None
    frame: Any = frame_of(part.rows)
    level, judged = 100 * part.stopping["alpha"], plural(part.stopping["comparisons"], "comparison")
    caption = (
        "Seeds were added in rounds; Δ OP and verdicts are those of a confidence sequence, wrong "
        f"in at most {level:g} % for {judged} together."
    )
    texts = text_table(frame[frame["decided"] != ""], "decided")
    return _console_table(texts, "decided", caption, frame)


def _console_table(
    texts: pd.DataFrame, title: str, caption: str, frame: pd.DataFrame
) -> PlainTable:
    records = {row["variant"]: row for row in stored_rows(frame)}
    table = PlainTable(title=title, caption=caption, collapse_padding=True)
    for name in texts.columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.columns[0].justify = "left"
    for cells in texts.itertuples(index=False):
        # A row of the report for programs; the line above the bounds is none.
        table.add_row(*cells, record=records.get(cells[0], {}))
    return table


def _caption(part: Part) -> str:
    if not part.measured:
        return "No run is finished."
    replays = "Replays: mid-task + end of task."
    basis = f"seeds and items, up to {part.most_runs} runs a variant"
    judged = ""
    if part.most_runs == 1:
        basis, judged = "items only, 1 seed", "One seed judges no variant. "
    equal = {row.footing.equal for row in part.measured if row.compared("verdict")} - {""}
    if equal:
        judged = f"Verdicts at equal {' or '.join(sorted(equal))}. "
    refused = ""
    if part.refused:
        refused = f" ≠ dose: {'; '.join(part.refused)}; no verdict, see budget.examples."
    return f"Brackets: 95 % bootstrap intervals ({basis}). {judged}{replays}{refused}"


def html_table(table: pd.DataFrame, bold: str | None = None) -> str:
    """The table for a page; intervals are small, and the variant `bold` is emphasised."""
    classes = table.where(table.isin(["better", "worse", "equivalent"]), "")
    first = table.columns[0]
    classes.loc[table[first] == "bounds", first] = "section"
    classes.loc[table[first] == bold, first] = "reference"
    style: Any = table.style.hide(axis="index").format(_html_cell).format_index(html, axis=1)
    kind = "numbers" if len(table.columns) > 2 else "pairs"
    style = style.set_td_classes(classes).set_table_attributes(f'class="{kind}"')
    return style.to_html(table_uuid="table", cell_ids=False)


def _html_cell(text: str) -> str:
    value, bracket, rest = html(text).partition(" [")
    if not bracket:
        return value
    return f'{value}<span class="interval">{bracket}{rest}</span>'


def notebook_table(table: pd.DataFrame, caption: str) -> str:
    """A table and a line below it as HTML that a notebook shows; names in it are text."""
    rows = table.to_html(border=0, na_rep="", float_format="{:.1f}".format)
    return f"{rows}\n<p>{html(caption)}</p>"


def latex_table(table: pd.DataFrame, caption: str) -> str:
    """The table as a float for LaTeX with the package booktabs."""
    style: Any = table.style.hide(axis="index").format(latex).format_index(latex, axis=1)
    columns = "l" + "r" * (len(table.columns) - 1)
    place: Any = {"position_float": "centering", "column_format": columns}
    return style.to_latex(hrules=True, caption=latex(caption), **place)


def markdown(table: pd.DataFrame) -> str:
    """The table as Markdown, its first column to the left."""
    align = [":---", *["---:"] * (len(table.columns) - 1)]
    rows = [list(map(as_markdown, row)) for row in table.itertuples(index=False)]
    return "\n".join(markdown_table(list(map(as_markdown, table.columns)), rows, align))
