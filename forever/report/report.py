"""`forever report`: tables with intervals and verdicts, figures; HTML, Markdown, LaTeX, JSON; from
run directories.

Everything on the page was measured by a run in the folder. A run that is not there is named as
missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import write_bytes, write_text
from forever.format import plural
from forever.reading import check_within
from forever.report import facts
from forever.report.analyses import analyses, findings
from forever.report.analyses.chance import controls
from forever.report.format import distinct, listed
from forever.report.frame import COLUMNS, frame_of, stored_rows, text_table
from forever.report.joined import folder_table, warnings
from forever.report.page.tables import console_tables, latex_table, markdown
from forever.report.study import Part, Study, read_study
from forever.stats.bootstrap import RESAMPLES
from forever.stats.compare import ALPHA
from forever.stats.verdict import APART, EQUIVALENT
from forever.sweeps import published as paper
from forever.sweeps.named_runs import scale_of
from forever.sweeps.studies import importances
from forever.text import markdown as markdown_text
from forever.text import visible_lines

__all__ = ["console_tables", "write_report"]

SCHEMA_VERSION = 2  # 1: no runs in estimates; rates of forgetting without an interval
_NEEDED = ("jinja2", "matplotlib", "vl_convert")
# What writes a table in the format of a page; report.html.j2 does so itself.
_WRITERS = {"html": None, "md": markdown, "tex": latex_table}


def write_report(folder: Path | Study, to: Path | None = None) -> Path:
    """Write report.html, report.md, report.tex, report.json and figures/ into a folder of runs.

    Args:
        folder: a sweep, a folder of run directories, or one run directory; or what was read of it.
        to: the folder to write into, if not that one.

    Returns:
        The HTML page, which needs no other file.

    Raises:
        InputError: no finished run in the folder, a damaged file, or packages that the report needs
            are not installed.
    """
    study = folder if isinstance(folder, Study) else read_study(folder)
    for package in _NEEDED:
        if find_spec(package) is None:
            raise InputError(
                f"a report needs {package}; install it with: pip install 'forever-cl[report]'"
            )
    from forever.report.figures import kinds_of, pictures
    from forever.report.page import parts

    to = (to or study.folder).absolute()
    check_within(to, to / "figures")
    content = _content(study)
    with ThreadPoolExecutor(1) as aside:
        vega = aside.submit(parts.vega) if "timelines" in kinds_of(study) else None
        for section in content["sections"]:
            section["pictures"] = list(pictures(study, section["part"]))
            for picture in section["pictures"]:
                write_bytes(to / "figures" / f"{picture.name}.png", picture.png)
        content |= parts.page(vega.result() if vega else None)
    content["drawn"] = {
        picture.group for section in content["sections"] for picture in section["pictures"]
    }
    environment = _environment()
    environment.filters |= parts.filters(study)
    for name, table in _WRITERS.items():
        page = environment.get_template(f"report.{name}.j2").render(content, table=table)
        write_text(to / f"report.{name}", page)
    write_text(to / "report.json", stored(study))
    return to / "report.html"


def _environment() -> Any:
    """What fills in the templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("forever.report"),
        autoescape=lambda name: bool(name) and name.endswith(".html.j2"),
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"several": plural, "md": markdown_text}
    environment.globals |= {
        "resamples": f"{RESAMPLES:,}",
        "alpha": f"{100 * ALPHA:g}",
        "controls": controls,
        "equivalent": f"{EQUIVALENT:g}",
        "apart": listed(f"{100 * share:g} % of {kind}" for kind, share in APART.items()),
        "equal": f"{paper.EQUAL:g}",
        "alike": f"{paper.ALIKE:g}",
        "about": [column for column in COLUMNS if column.about],
    }
    return environment


def _seen(value: Any) -> Any:
    """What a template fills in, without what is not seen; other values as they are."""
    return visible_lines(value) if type(value) is str else value


def _content(study: Study) -> dict[str, Any]:
    """What the templates fill in."""
    weights = {key: f"{weight:.2f}" for key, weight in importances(study.folder).items()}
    return {
        "study": study,
        "folders": folder_table(study),
        "warnings": warnings(study),
        "subject": facts.subject(study),
        "seeds": listed(study.seeds),
        "sections": [_tables(part) for part in study.parts],
        "facts": _pairs("", "what ran", facts.facts(study)),
        "variants": _pairs("variant", "differs in", facts.changes(study)),
        "importances": _pairs("parameter", "importance", weights),
    }


def _tables(part: Part) -> dict[str, Any]:
    frame: Any = frame_of(part.rows)
    return {
        "part": part,
        "heading": part.benchmark if part.several else "",
        "scores": text_table(frame, "scores"),
        "costs": text_table(frame, "costs"),
        "results": text_table(frame, "scores", "costs"),
        "findings": pd.DataFrame(findings(part), columns=["finding", "ours", "published", "from"]),
        "decided": text_table(frame[frame["decided"] != ""], "decided"),
        "paper": text_table(frame[frame["paper"].notna()], "paper"),
        "too_small": facts.too_small_for(part),
    }


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
        **facts.origins(study),
        "parts": parts,
    }
    return json.dumps(content, indent=1, default=asdict) + "\n"
