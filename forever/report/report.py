"""`forever report`: tables with intervals and verdicts, and figures, from run directories.

Everything on the page was measured by a run in the folder; a missing run is named.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import write_text
from forever.format import plural
from forever.report import facts
from forever.report.analyses import analyses, findings, forgetting_table
from forever.report.effects import effects_table
from forever.report.format import NOTHING, distinct, minus
from forever.report.frame import COLUMNS, frame_of, stored_rows, text_table
from forever.report.joined import folder_table, warnings
from forever.report.study import Part, Study, read_study
from forever.report.tables import console_tables, csv_of
from forever.sweeps.named_runs import scale_of
from forever.sweeps.search import importances
from forever.text import visible

__all__ = ["console_tables", "write_report"]

SCHEMA_VERSION = 2  # 1: no runs in estimates; rates of forgetting without an interval


def write_report(folder: Path | Study, to: Path | None = None, of_runs: bool = False) -> Path:
    """Writes report.html, report.json and figures/ into a folder of runs.

    Args:
        folder: a sweep, a folder of run directories, or one run directory; or what was read of it.
        to: the folder to write into, if not that one.
        of_runs: whether single runs are drawn, too.

    Returns:
        The HTML page, which needs no other file.

    Raises:
        InputError: no finished run in the folder, a damaged file, or packages that the report needs
            are not installed.
    """
    study = folder if isinstance(folder, Study) else read_study(folder)
    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise InputError(
                f"a report needs {package}; install it with: pip install 'forever-cl[report]'"
            )
    from jinja2 import Environment, PackageLoader, StrictUndefined

    to = (to or study.folder).absolute()
    weights = {key: f"{weight:.2f}" for key, weight in importances(study.folder).items()}
    templates = files("forever.report").joinpath("templates")
    environment = Environment(
        loader=PackageLoader("forever.report"),
        autoescape=True,
        # Control characters in names and answers are shown as escapes.
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["several"] = plural
    page = environment.get_template("report.html.j2").render(
        study=study,
        style=Markup(templates.joinpath("page.css").read_text("utf-8")),
        script=Markup(templates.joinpath("page.js").read_text("utf-8")),
        folders=folder_table(study),
        warnings=warnings(study),
        subject=facts.subject(study),
        sections=[_section(study, part, to, of_runs) for part in study.parts],
        about=[column for column in COLUMNS if column.about],
        facts=_pairs("", "what ran", facts.facts(study)),
        variants=_pairs("variant", "differs in", facts.changes(study)),
        importances=_pairs("parameter", "importance", weights),
    )
    write_text(to / "report.html", page)
    write_text(to / "report.json", stored(study))
    return to / "report.html"


def _section(study: Study, part: Part, to: Path, of_runs: bool) -> dict[str, Any]:
    """Gathers what the page shows of a benchmark, and writes its figures."""
    from forever.report.figures import pictures
    from forever.report.figures.style import svg

    frame: Any = frame_of(part.rows)
    drawn: list[dict[str, Any]] = []
    for picture in pictures(study, part, of_runs):
        text = svg(picture.figure)
        write_text(to / "figures" / f"{picture.name}.svg", text)
        image = b64encode(text.encode()).decode()
        shown = {"name": picture.name, "caption": picture.caption, "csv": "", "numbers": None,
                 "address": Markup(f"data:image/svg+xml;base64,{image}")}  # fmt: skip
        if picture.numbers is not None:
            text = csv_of(picture.numbers, float_format="%.6g")
            csv = quote(text, errors="replace")
            shown["csv"] = Markup(f"data:text/csv;charset=utf-8,{csv}")
            shown["numbers"] = picture.numbers.map(_shown).rename(columns=str)
        drawn.append(shown)
    scores, costs = text_table(frame, "scores"), text_table(frame, "costs")
    return {
        "part": part,
        "heading": part.benchmark if part.several else "",
        "scores": scores,
        "costs": costs,
        "titles": [*scores.columns, *costs.columns],
        "notes": facts.notes(part),
        "cautions": facts.cautions(part),
        "more": {
            "Main effects": effects_table(part),
            "Forgetting rate, nats an update": forgetting_table(part),
            "Decided": text_table(frame[frame["decided"] != ""], "decided"),
            "Findings": pd.DataFrame(
                findings(part), columns=["finding", "ours", "published", "from"]
            ),
            "Compared with the paper (FOREVER, arXiv 2601.03938)": text_table(
                frame[frame["paper"].notna()], "paper"
            ),
        },
        "too_small": facts.too_small_for(part),
        "pictures": drawn,
    }


def _shown(value: Any) -> str:
    """Writes a cell of a table of numbers."""
    if isinstance(value, str):
        return value
    return NOTHING if pd.isna(value) else minus(f"{value:.4g}")


def _pairs(left: str, right: str, values: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(list(values.items()), columns=[left, right])


def stored(study: Study) -> str:
    """Return the numbers of a report as JSON, for programs and RESULTS.md (scripts/results.py).

    OP is in percent, BWT and differences in points, intervals are at 95 %. Each estimate has the
    number of runs that it is the mean of: a difference is of those that the reference has, too.
    """
    parts: list[dict[str, Any]] = []
    for part in study.parts:
        rows = stored_rows(frame_of(part.rows))
        parts.append({"benchmark": part.benchmark, "rows": rows, "analyses": analyses(part)})
    compared: dict[str, Any] = {}
    if study.folders:
        folders = folder_table(study).to_dict("records")
        compared = {"folders": folders, "warnings": warnings(study)}
    content = {
        "schema_version": SCHEMA_VERSION,
        "name": study.name,
        **compared,
        "reference": study.reference,
        "scale": scale_of(RunConfig.parse(study.example.config), study.example.outcome["rows"]),
        "planned": len(study.runs),
        "finished": len(study.finished),
        "models": distinct(run.settings["model.name"] for run in study.finished),
        "seeds": study.seeds,
        "stopping": study.stopping,
        **facts.origins(study.finished),
        "parts": parts,
    }
    return json.dumps(content, indent=1, default=asdict) + "\n"
