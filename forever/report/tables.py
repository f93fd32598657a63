"""What is known of a variant as text: the cells of a report's table, and the table that the console
shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from forever.report.bootstrap import Estimate
from forever.report.rows import Row
from forever.report.study import Study, read_study

NOTHING = "–"


def summary_table(folder: Path) -> Group:
    """The comparison as tables for the console, one a benchmark.

    Raises:
        InputError: no finished run in the folder, or a damaged file.
    """
    return Group(*(_summary(part) for part in read_study(folder).parts))


def _summary(study: Study) -> Table:
    rows = study.rows
    style: dict[str, Any] = {
        "title_justify": "left",
        "caption_justify": "left",
        "box": box.SIMPLE,
        "collapse_padding": True,
    }
    # With several references the full report says which is whose.
    compared = "Δ OP" if study.others else f"Δ OP to {study.reference}"
    several = f" · {study.benchmark}" if study.several else ""
    table = Table(title=study.name + several, caption=_short_caption(rows), **style)
    table.add_column("variant", no_wrap=True)
    for name in ("OP (%)", "BWT", *_if(study.reference, compared, ""), "replays", "rows", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        texts = row_texts(row)
        difference = f"{texts['difference']} {texts['difference_interval']}".strip()
        judged = _if(study.reference, difference, texts["verdict"])
        scores = (f"{texts['op']} {texts['op_interval']}".strip(), texts["bwt"])
        cells = (*scores, *judged, texts["events"], texts["replayed"], texts["seconds"])
        # Space before the bounds.
        last = number + 1 < len(rows) and row.bound != rows[number + 1].bound
        table.add_row(row.variant, *cells, end_section=last)
    return table


def row_texts(row: Row) -> dict[str, str]:
    """The cells of a variant's row; a variant without a finished run says "missing" and no
    numbers."""
    compared = row.comparison
    op, bwt = (compared.op, compared.bwt) if compared else (None, None)
    difference = compared.difference if compared else None
    bwt_difference = compared.bwt_difference if compared else None
    replays, consolidations = row.events("replay"), row.events("consolidation")
    return {
        "variant": row.variant,
        "reference": row.reference or "",
        "runs": f"{len(row.runs)}"
        if len(row.runs) == row.planned
        else f"{len(row.runs)} of {row.planned}",
        "op": number(op, "{:.1f}")
        if op
        else "stopped early"
        if row.stopped == row.planned
        else "missing",
        "op_interval": _interval(op, "{:.1f}"),
        "bwt": number(bwt, "{:+.1f}"),
        "bwt_interval": _interval(bwt, "{:+.1f}"),
        "forgetting": number(row.forgetting, "{:.1f}"),
        "difference": number(difference, "{:+.1f}"),
        "difference_interval": _interval(difference, "{:+.1f}"),
        "bwt_difference": number(bwt_difference, "{:+.1f}"),
        "bwt_difference_interval": _interval(bwt_difference, "{:+.1f}"),
        "verdict": (compared.verdict or "") if compared else "",
        "p": number(compared.p_holm if compared else None, "{:.2g}"),
        "events": f"{_count(replays)} + {_count(consolidations)}" if row.runs else NOTHING,
        "replayed": _count(row.replayed_rows),
        "updates": _count(row.updates),
        "seconds": number(row.seconds, "{:,.0f}" if (row.seconds or 0) >= 10 else "{:.1f}"),
        "gpu_hours": number(row.gpu_hours, "{:.2f}"),
    }


def paper_texts(row: Row) -> dict[str, str]:
    """The cells of a variant's row beside the paper's."""
    assert row.paper is not None
    compared, paper = row.comparison, row.paper
    op, bwt = (compared.op.value, compared.bwt) if compared else (None, None)
    difference = compared.difference if compared else None
    bwts = (compared.bwt_difference if compared else None, row.paper_bwt_difference)
    bwt_differences = [number(one, "{:+.1f}") for one in bwts]
    return {
        "variant": row.variant,
        "reference": row.reference or "",
        "op": number(op, "{:.1f}") if compared else "missing",
        "paper_op": number(paper.op, "{:.1f}"),
        "apart": number(op - paper.op, "{:+.1f}")
        if op is not None and row.same_setting
        else NOTHING,
        "bwt": number(bwt, "{:+.1f}"),
        "paper_bwt": number(paper.bwt, "{:+.1f}"),
        "difference": number(difference, "{:+.1f}"),
        "difference_interval": _interval(difference, "{:+.1f}"),
        "paper_difference": number(row.paper_difference, "{:+.1f}"),
        "bwt_differences": " / ".join(bwt_differences)
        if {*bwt_differences} != {NOTHING}
        else NOTHING,
        "agreement": "did as finetune" if row.idle else row.agreement or NOTHING,
    }


def _short_caption(rows: list[Row]) -> str:
    runs = max((row.comparison.op.runs for row in rows if row.comparison), default=0)
    if not runs:
        return "No run is finished."
    basis = "items only, 1 seed" if runs == 1 else f"seeds and items, up to {runs} runs a variant"
    judged = "" if runs > 1 else " One seed judges no variant."
    return f"Brackets: 95 % bootstrap intervals ({basis}).{judged} Replays: mid-task + end of task; rows: replayed."


def number(value: Estimate | float | None, form: str) -> str:
    """With a true minus, and no sign before zero; an estimate's without its interval."""
    if value is None:
        return NOTHING
    text = form.format(value.value if isinstance(value, Estimate) else value)
    return text.lstrip("+-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def _interval(estimate: Estimate | None, form: str) -> str:
    return f"[{number(estimate.low, form)}, {number(estimate.high, form)}]" if estimate else ""


def _count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _if(condition: Any, *cells: str) -> tuple[str, ...]:
    return cells if condition else ()
